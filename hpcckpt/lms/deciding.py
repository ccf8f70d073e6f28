"""Rank 0 says what memory and tier there are, every rank plans by that, and the plans are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.errors import MemoryBudgetError, OptionError, StateError
from hpcckpt.lms import engine, limits, messages
from hpcckpt.lms.agreement import planned_alike
from hpcckpt.lms.edited import check
from hpcckpt.lms.filters import device_rule, every_op
from hpcckpt.lms.graph import Graph, Op
from hpcckpt.lms.limits import Limit
from hpcckpt.lms.options import Options
from hpcckpt.lms.plan import Plan
from hpcckpt.lms.planning import Made, Task, make, planner_of
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.settings import Planner, Settings
from hpcckpt.lms.tiers import SPARE, TierConfig
from hpcckpt.lms.trials import Trial, Trials
from hpcckpt.lms.verification import ATTEMPTS, Measured, tightened


class _Inputs(NamedTuple):
    """What rank 0 measured: with it, all ranks plan alike."""

    limit: Limit | None
    bandwidth: Mapping[str, float]
    keeps_freed: bool


def make_tier_ready(options: Options, spare: int | None = None) -> Any:
    """Load the engine, make its tier ready, and return its ops. Independent.

    `spare` is how many bytes of freed memory the tier keeps for what comes back next.
    """
    settings = options.settings
    given = {name: getattr(settings, name) for name in ("directory", "min_bytes", "window", "host_limit", "file_limit")}
    raw = engine.load()
    chosen = {name: value for name, value in {**given, "spare": spare}.items() if value is not None}
    told = engine.configure(TierConfig(settings.tier, rank=options.comm.rank, **chosen))
    if told:
        options.speaker.warn_once(told)
    if not limits.gpus():
        engine.release_freed_memory()  # else malloc keeps what is freed, and swapping frees nothing
    return raw


def scene_of(options: Options, graph: Graph, *, is_optimized: bool = False) -> Scene:
    """Return a graph with all that planners ask of it."""
    settings = options.settings
    return Scene(
        graph,
        is_device_op=device_ops(settings),
        filters=options.filters,
        is_training=options.is_training,
        keras=options.keras,
        batch_size=options.batch_size,
        min_bytes=settings.min_bytes or 0,
        is_optimized=is_optimized,
    )


def device_ops(settings: Settings) -> Callable[[Op], bool]:
    """Return which ops have tensors to swap: those of the accelerator, or all where memory and a file are the tiers."""
    return device_rule(settings.gpu_device) if settings.gpu_device or limits.gpus() else every_op


def decide(options: Options, scene: Scene, nbytes_learned: int, target: int | None = None) -> Made:
    """Return what is to be done, the same on all ranks. Collective.

    Raises
    ------
    CollectiveError, PlanMismatchError
        If planning failed on a rank, or plans differ; the same error on all ranks.
    """
    comm = options.comm
    inputs = comm.on_root("measure the memory and the tier of rank 0", lambda: _measure(options))
    planner = chosen_planner(options, inputs.limit)
    is_on_host = gpu_name(options.settings) is None
    task = Task(
        scene, options.settings, target, inputs.limit, nbytes_learned, inputs.bandwidth, is_on_host, inputs.keeps_freed
    )  # fmt: skip
    found: list[Made] = []

    def plan() -> Plan:
        found.append(make(task, planner, options.speaker))
        check(scene.graph, found[0].plan)
        if planner == "cost" and task.has_overhead:
            _use_tier_once(options)
            make_tier_ready(options, _spare(found[0]))
        return found[0].plan

    try:
        planned_alike(comm, scene.graph, plan)
    except StateError as error:  # a fault of the planner, on any rank: no reason to end a training
        failure = messages.NOT_PLANNED.format(error=error)
        options.speaker.warn_once(failure)
        return Made(Plan(), scene.levels, options.settings.memory_budget, is_necessary=False, failure=failure)
    return found[0]


def _use_tier_once(options: Options) -> None:
    """Have the tier's threads take their buffers now, before a step is measured; on rank 0 they have them."""
    if not options.comm.is_root:
        make_tier_ready(options)
        engine.bandwidth()


def _spare(made: Made) -> int:
    """Return how much freed memory the tier may keep for what comes back next: half of what the budget leaves."""
    if made.budget is None or made.needs is None:
        return SPARE
    return min(SPARE, max(0, made.budget - made.needs) // 2)


def add_trial(options: Options, trials: Trials, made: Made, measured: Measured) -> None:
    """Take what a plan's step took, and log it; of all ranks the most counts. Collective."""
    peak = max(options.comm.allgather(measured.peak))
    trials.all.append(Trial(made, measured, peak))
    if made.budget is not None:
        options.speaker.say(messages.verified_line(peak, made.budget))


def decide_again(options: Options, scene: Scene, nbytes_learned: int, trials: Trials) -> Made | None:
    """Return a plan for less, if the last step took more than the budget; `None` if not, or if none is left to try.

    Collective.
    """
    last = trials.all[-1]
    made, budget = last.made, last.made.budget
    if budget is None or last.peak <= budget or len(trials.all) >= ATTEMPTS or not made.can_be_tightened:
        return None
    target = tightened(budget if made.target is None else made.target, budget, last.peak)
    if made.needs is not None and made.least is not None:
        target = max(made.least, min(target, made.needs - (last.peak - budget)))
    with suppress(OptionError, MemoryBudgetError):
        again = decide(options, scene, nbytes_learned, target)
        return None if trials.holds(again) else again
    return None


def alone(options: Options) -> Options:
    """Return the options for planning without the other ranks: they may have nothing to plan at this moment."""
    return replace(options, comm=SerialCommunicator())


def chosen_planner(options: Options, limit: Limit | None) -> Planner:
    """Return which planner plans."""
    has_device = limit is not None and limit.is_device and options.autotune_gpu_mem is None
    return planner_of(
        options.settings, has_device_limit=has_device, is_tuned_by_hand=options.autotune_gpu_mem is not None
    )


def _measure(options: Options) -> _Inputs:
    settings = options.settings
    limit = None
    if settings.memory_budget is None:
        limit = _limit(options)
    bandwidth: Mapping[str, float] = {}
    keeps_freed = False
    if chosen_planner(options, limit) == "cost":
        make_tier_ready(options)
        write, read = engine.bandwidth()
        bandwidth = {"write": write, "read": read}
        keeps_freed = engine.allocator_keeps_freed()
    return _Inputs(limit, bandwidth, keeps_freed)


def _limit(options: Options) -> Limit:
    if options.autotune_gpu_mem is not None:
        return Limit(int(options.autotune_gpu_mem * (1 << 30)), "autotune_gpu_mem", is_device=bool(limits.gpus()))
    return limits.device_limit(options.settings.gpu_device) or limits.free_host_memory()


def gpu_name(settings: Settings) -> str | None:
    """Return the GPU whose memory is read, as TensorFlow's memory functions call it; `None` without one."""
    if not limits.gpus():
        return None
    number = re.search(r"(\d+)$", settings.gpu_device or "0")
    return f"GPU:{number[1] if number else 0}"
