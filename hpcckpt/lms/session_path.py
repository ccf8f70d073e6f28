"""The way for sessions and Estimators: a `tf.Graph` is planned and edited before a session runs it."""

from __future__ import annotations

import time
from typing import Any

from hpcckpt.lms import messages
from hpcckpt.lms.apply_v1 import Swap, apply, check_editable, is_edited
from hpcckpt.lms.debug_lines import debug_lines
from hpcckpt.lms.deciding import add_trial, decide, decide_again, gpu_name, make_tier_ready, scene_of
from hpcckpt.lms.dry_step import dry_step
from hpcckpt.lms.histogram import histogram
from hpcckpt.lms.importers import from_graph, nbytes_learned
from hpcckpt.lms.options import Options, Outcome
from hpcckpt.lms.overhead import refused
from hpcckpt.lms.planning import Made, describe
from hpcckpt.lms.report import write_histogram
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.trials import Trials
from hpcckpt.lms.verification import OUT_OF_MEMORY, Measured


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
        return Outcome("none" if made.failure else "off", _name(graph), scene, made, measured, n_attempts)
    added = apply(graph, made.plan, swapping(options))
    say(f"Editing model for LMS, took: {(time.perf_counter() - start) * 1000} ms")
    return Outcome("graph", _name(graph), scene, made, measured, n_attempts, added)


def say_plan(options: Options, scene: Scene, made: Made) -> None:
    """Say what was decided, in the words of the original, and write its histogram if it is wanted."""
    say = options.speaker.say
    if not made.is_necessary:
        if not made.failure:
            say(messages.NOT_NECESSARY)
        return
    plan = made.plan
    if plan.planner == "distance":
        say(messages.USES_FOUND if made.is_found else messages.USES_GIVEN)
        for line in messages.parameter_lines(dict(plan.parameters)):
            say(line, offset=2)
    else:
        say(messages.USES_GIVEN)
        for line in messages.planned_lines(plan.parameters, made.budget, made.needs):
            say(line, offset=2)
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

    def release(tensor: Any, name: str) -> Any:
        with tf.device(device):
            return raw.hpcckpt_release(tensor, name=name)

    return Swap(out, back, release)


# -- a plan that was verified


def _verified(options: Options, graph: Any, scene: Scene) -> tuple[Made, Measured | None, int]:
    """Return a plan whose step, run on a copy of the graph, kept the budget; else the best one that was tried.

    Raises
    ------
    MemoryBudgetError
        If a memory budget was given, and no plan that was tried kept it.
    """
    learned = nbytes_learned(graph)
    trials, level = Trials(), None
    made: Made | None = decide(options, scene, learned)
    while made is not None:
        measured = _dry(options, graph, made, level)
        if measured is None:
            return made, None, len(trials.all) + 1
        level = measured.level
        add_trial(options, trials, made, measured)
        made = decide_again(options, scene, learned, trials)
    best = trials.best
    if best.made.budget is not None and best.peak > best.made.budget:
        _refuse_or_warn(options, best.peak, best.made.budget)
    return best.made, best.measured, len(trials.all)


def _refuse_or_warn(options: Options, peak: int, budget: int) -> None:
    if options.settings.memory_budget is not None and peak < OUT_OF_MEMORY:
        raise refused(budget, peak + peak // 20)
    options.speaker.warn_once(messages.not_kept(peak, budget))


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
