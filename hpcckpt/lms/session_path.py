"""The way for sessions and Estimators: a `tf.Graph` is planned and edited before a session runs it."""

from __future__ import annotations

import time
from typing import Any

from hpcckpt.lms import messages
from hpcckpt.lms.apply_v1 import Swap, apply, check_editable, is_edited
from hpcckpt.lms.debug_lines import debug_lines
from hpcckpt.lms.deciding import decide, decide_again, gpu_name, make_tier_ready, scene_of
from hpcckpt.lms.dry_step import dry_step
from hpcckpt.lms.edited import check
from hpcckpt.lms.histogram import histogram
from hpcckpt.lms.importers import from_graph, nbytes_learned
from hpcckpt.lms.options import Options, Outcome
from hpcckpt.lms.planning import Made, describe
from hpcckpt.lms.report import write_histogram
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.verification import Measured


def edit(options: Options, graph: Any) -> Outcome:
    """Plan and edit a graph. Collective.

    Raises
    ------
    CodeError
        If the graph is finalized.
    """
    say = options.speaker.say
    check_editable(graph)
    if is_edited(graph):
        say(messages.ALREADY)
        return Outcome()
    say(messages.EDITING)
    start = time.perf_counter()
    scene = scene_of(options, from_graph(graph))
    describe(scene, nbytes_learned(graph), options.speaker, is_gpu=gpu_name(options.settings) is not None)
    made, measured, n_attempts = _verified(options, graph, scene)
    say_plan(options, scene, made)
    if not made.is_necessary:
        return Outcome("off", _name(graph), scene, made, measured, n_attempts)
    check(scene.graph, made.plan)
    added = apply(graph, made.plan, swapping(options))
    say(f"Editing model for LMS, took: {(time.perf_counter() - start) * 1000} ms")
    return Outcome("graph", _name(graph), scene, made, measured, n_attempts, added)


def say_plan(options: Options, scene: Scene, made: Made) -> None:
    """Say what was decided, in the words of the original, and write its histogram if it is wanted."""
    say = options.speaker.say
    if not made.is_necessary:
        say(messages.NOT_NECESSARY)
        return
    plan = made.plan
    if plan.planner == "distance":
        say(messages.USES_FOUND if made.is_found else messages.USES_GIVEN)
        for line in messages.parameter_lines(dict(plan.parameters)):
            say(line, offset=2)
    else:
        say(messages.USES_GIVEN)
        for name, value in plan.parameters.items():
            if isinstance(value, int | float | str):
                say(f"{name}: {value}", offset=2)
    if options.autotune_plot and options.comm.is_root:
        say(f"A histogram of distances was written to {write_histogram(histogram(scene.graph, scene.levels))}")
    if options.settings.debug:
        for each in debug_lines(scene.graph, made.levels, plan):
            say(*each)
    say(messages.added_line(len(plan.swap_outs), plan.nbytes_out, len(plan.swap_ins), plan.nbytes_in))


def _name(graph: Any) -> str:
    return f"a graph of {len(graph.get_operations())} ops"


def swapping(options: Options) -> Swap:
    """Return how tensors are moved: by native ops on the CPU, by identities on the host for a device."""
    settings = options.settings
    if gpu_name(settings) is not None:
        return _through_host(settings.cpu_device)
    return _through_tier(settings.cpu_device, make_tier_ready(options))


def _through_host(device: str) -> Swap:
    import tensorflow as tf

    def move(tensor: Any, name: str) -> Any:
        with tf.device(device):
            return tf.identity(tensor, name=name)

    return Swap(move, lambda tensor, name, _: move(tensor, name))


def _through_tier(device: str, raw: Any) -> Swap:
    import tensorflow as tf

    def out(tensor: Any, name: str) -> Any:
        with tf.device(device):
            return raw.hpcckpt_swap_out(tensor, name=name)

    def back(handle: Any, name: str, dtype: Any) -> Any:
        with tf.device(device):
            return raw.hpcckpt_swap_in(handle, T=dtype, name=name)

    return Swap(out, back)


# -- a plan that was verified


def _verified(options: Options, graph: Any, scene: Scene) -> tuple[Made, Measured | None, int]:
    """Return a plan whose step, run on a copy of the graph, kept the budget; or the last one that there is."""
    learned = nbytes_learned(graph)
    made, attempt = decide(options, scene, learned), 1
    level = None
    while (measured := _dry(options, graph, made, level)) is not None:
        level = measured.level
        again = decide_again(options, scene, learned, made, measured, attempt)
        if again is None:
            break
        made, attempt = again, attempt + 1
    return made, measured, attempt


def _dry(options: Options, graph: Any, made: Made, level: int | None) -> Measured | None:
    """Run one step on a copy of the graph, in a session of its own: the user's variables are not touched."""
    if not options.settings.verify or made.budget is None:
        return None
    plan = made.plan if made.is_necessary else None
    outcome = dry_step(graph, plan, swapping(options), options.batch_size, gpu_name(options.settings), level)
    told = options.comm.allgather(outcome.why_not)
    whys = [why for why in told if why]
    if whys:
        options.speaker.say(messages.NOT_VERIFIED.format(why=whys[0]))
        return None
    return outcome.measured
