"""Rank 0 says what memory and tier there are, every rank plans by that, and the plans are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.errors import MemoryBudgetError, OptionError
from hpcckpt.lms import engine, limits, messages
from hpcckpt.lms.agreement import planned_alike
from hpcckpt.lms.filters import device_rule, every_op
from hpcckpt.lms.graph import Graph, Op
from hpcckpt.lms.limits import Limit
from hpcckpt.lms.options import Options
from hpcckpt.lms.plan import Plan
from hpcckpt.lms.planning import Made, Task, make, planner_of
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.settings import Planner, Settings
from hpcckpt.lms.tiers import TierConfig
from hpcckpt.lms.verification import ATTEMPTS, Measured, tightened


class _Inputs(NamedTuple):
    """What rank 0 measured: with it, all ranks plan alike."""

    limit: Limit | None
    bandwidth: Mapping[str, float]


def make_tier_ready(options: Options) -> Any:
    """Load the engine, make its tier ready, and return its ops. Independent."""
    settings = options.settings
    given = {name: getattr(settings, name) for name in ("directory", "min_bytes", "window", "host_limit", "file_limit")}
    raw = engine.load()
    chosen = {name: value for name, value in given.items() if value is not None}
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
        If planning failed on a rank, or plans differ; alike on all ranks.
    """
    comm = options.comm
    inputs = comm.on_root("measure the memory and the tier of rank 0", lambda: _measure(options))
    planner = chosen_planner(options, inputs.limit)
    task = Task(scene, options.settings, target, inputs.limit, nbytes_learned, inputs.bandwidth)
    found: list[Made] = []

    def plan() -> Plan:
        found.append(make(task, planner, options.speaker))
        return found[0].plan

    planned_alike(comm, scene.graph, plan)
    return found[0]


def decide_again(
    options: Options, scene: Scene, nbytes_learned: int, made: Made, measured: Measured, attempt: int
) -> Made | None:
    """Return a plan for less, if a step took more than the budget; `None` if it did not, or there is none. Collective.

    What the ranks' steps took is compared with the budget, the most counts.
    """
    if made.budget is None:
        return None
    peak = max(options.comm.allgather(measured.peak))
    options.speaker.say(messages.verified_line(peak, made.budget))
    if peak <= made.budget:
        return None
    if attempt < ATTEMPTS and made.can_be_tightened:
        target = tightened(made.budget if made.target is None else made.target, made.budget, peak)
        with suppress(OptionError, MemoryBudgetError):
            return decide(options, scene, nbytes_learned, target)
    options.speaker.warn_once(messages.not_kept(peak, made.budget))
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
    if chosen_planner(options, limit) == "cost":
        make_tier_ready(options)
        write, read = engine.bandwidth()
        bandwidth = {"write": write, "read": read}
    return _Inputs(limit, bandwidth)


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
