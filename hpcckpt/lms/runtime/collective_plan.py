"""Rank 0 says what memory and tier there are, every rank plans by that, and the plans are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from hpcckpt.collective.communicator import Communicator, SerialCommunicator
from hpcckpt.errors import MemoryBudgetError, OptionError, PlanMismatchError, StateError
from hpcckpt.lms import messages
from hpcckpt.lms.graph.filters import device_rule, every_op
from hpcckpt.lms.graph.graph import Graph, Op
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner import memory_limits
from hpcckpt.lms.planner.edited_graph import check
from hpcckpt.lms.planner.make_plan import PlanRequest, PlanResult, make, planner_of
from hpcckpt.lms.planner.memory_limits import Limit
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.verify_step import ATTEMPTS, Measured, tightened
from hpcckpt.lms.runtime import native_engine
from hpcckpt.lms.runtime.options import LmsOptions
from hpcckpt.lms.runtime.trial_step import Trial, Trials
from hpcckpt.lms.settings import LmsSettings, Planner
from hpcckpt.lms.storage_tiers import SPARE, TierConfig


class _Inputs(NamedTuple):
    """What rank 0 measured: all ranks plan with the same figures."""

    limit: Limit | None
    bandwidth: Mapping[str, float]
    keeps_freed: bool
    unfolds_images: bool


def make_tier_ready(options: LmsOptions, spare: int | None = None) -> Any:
    """Load the engine, make its tier ready, and return its ops. Independent.

    `spare` is how many bytes of freed memory the tier keeps for what comes back next.
    """
    settings = options.settings
    given = {name: getattr(settings, name) for name in ("directory", "min_bytes", "window", "host_limit", "file_limit")}
    raw = native_engine.load()
    chosen = {name: value for name, value in {**given, "spare": spare}.items() if value is not None}
    note = native_engine.configure(TierConfig(settings.tier, rank=options.comm.rank, **chosen))
    if note:
        options.lms_log.warn_once(note)
    if not memory_limits.gpus():
        native_engine.release_freed_memory()  # else malloc keeps what is freed, and swapping frees nothing
    return raw


def graph_context_of(options: LmsOptions, graph: Graph, *, is_optimized: bool = False) -> GraphContext:
    """Return a graph with all that planners ask of it."""
    settings = options.settings
    return GraphContext(
        graph,
        is_device_op=device_ops(settings),
        filters=options.filters,
        is_training=options.is_training,
        keras=options.keras,
        batch_size=options.batch_size,
        min_bytes=settings.min_bytes or 0,
        is_optimized=is_optimized,
    )


def device_ops(settings: LmsSettings) -> Callable[[Op], bool]:
    """Return which ops have tensors to swap: those of the accelerator, or all where memory and a file are the tiers."""
    return device_rule(settings.gpu_device) if settings.gpu_device or memory_limits.gpus() else every_op


def decide(options: LmsOptions, context: GraphContext, nbytes_learned: int, target: int | None = None) -> PlanResult:
    """Return the plan, identical on all ranks. Collective.

    Raises
    ------
    CollectiveError, PlanMismatchError
        If planning failed on a rank, or plans differ; the same error on all ranks.
    """
    comm = options.comm
    inputs = comm.on_root("measure the memory and the tier of rank 0", lambda: _measure(options))
    planner = chosen_planner(options, inputs.limit)
    is_on_host = gpu_name(options.settings) is None
    request = PlanRequest(
        context, options.settings, target, inputs.limit, nbytes_learned, inputs.bandwidth, is_on_host,
        inputs.keeps_freed, inputs.unfolds_images,
    )  # fmt: skip
    found: list[PlanResult] = []

    def plan() -> Plan:
        found.append(make(request, planner, options.lms_log))
        check(context.graph, found[0].plan)
        if planner == "cost" and request.has_overhead:
            _use_tier_once(options)
            make_tier_ready(options, _spare(found[0]))
        return found[0].plan

    try:
        check_same_plan(comm, context.graph, plan)
    except StateError as error:  # a fault of the planner on any rank must not end the training
        failure = messages.NOT_PLANNED.format(error=error)
        options.lms_log.warn_once(failure)
        return PlanResult(Plan(), context.levels, None, is_necessary=False, failure=failure)  # nothing to verify
    return found[0]


def _use_tier_once(options: LmsOptions) -> None:
    """Have the tier's threads take their buffers now, before a step is measured; on rank 0 they have them."""
    if not options.comm.is_root:
        make_tier_ready(options)
        native_engine.bandwidth()


def _spare(result: PlanResult) -> int:
    """Return how much freed memory the tier may keep for what comes back next: half of what the budget leaves."""
    if result.budget is None or result.needs is None:
        return SPARE
    return min(SPARE, max(0, result.budget - result.needs) // 2)


def add_trial(options: LmsOptions, trials: Trials, result: PlanResult, measured: Measured) -> None:
    """Take what a plan's step took, and log it; of all ranks the most counts. Collective."""
    peak = options.comm.allreduce(measured.peak, max)
    trials.all.append(Trial(result, measured, peak))
    if result.budget is not None:
        options.lms_log.info(messages.verified_line(peak, result.budget))


def decide_again(options: LmsOptions, context: GraphContext, nbytes_learned: int, trials: Trials) -> PlanResult | None:
    """Return a plan for less, if the last step took more than the budget; `None` if not, or if none is left to try.

    Collective.
    """
    last = trials.all[-1]
    result, budget = last.result, last.result.budget
    if budget is None or last.peak <= budget or len(trials.all) >= ATTEMPTS or not result.can_be_tightened:
        return None
    target = tightened(budget if result.target is None else result.target, budget, last.peak)
    if result.needs is not None and result.least is not None:
        target = max(result.least, min(target, result.needs - (last.peak - budget)))
    with suppress(OptionError, MemoryBudgetError):
        again = decide(options, context, nbytes_learned, target)
        return None if trials.holds(again) else again
    return None


def alone(options: LmsOptions) -> LmsOptions:
    """Return the options for planning without the other ranks: they may have nothing to plan at this moment."""
    return replace(options, comm=SerialCommunicator())


def chosen_planner(options: LmsOptions, limit: Limit | None) -> Planner:
    """Return which planner plans."""
    has_device = limit is not None and limit.is_device and options.autotune_gpu_mem is None
    return planner_of(
        options.settings, has_device_limit=has_device, is_tuned_by_hand=options.autotune_gpu_mem is not None
    )


def _measure(options: LmsOptions) -> _Inputs:
    settings = options.settings
    limit = None
    if settings.memory_budget is None:
        limit = _limit(options)
    bandwidth: Mapping[str, float] = {}
    keeps_freed = unfolds_images = False
    if chosen_planner(options, limit) == "cost":
        make_tier_ready(options)
        write, read = native_engine.bandwidth()
        bandwidth = {"write": write, "read": read}
        keeps_freed = native_engine.allocator_keeps_freed()
        unfolds_images = not (memory_limits.gpus() or memory_limits.uses_onednn())
    return _Inputs(limit, bandwidth, keeps_freed, unfolds_images)


def _limit(options: LmsOptions) -> Limit:
    if options.autotune_gpu_mem is not None:
        return Limit(
            int(options.autotune_gpu_mem * (1 << 30)), "autotune_gpu_mem", is_device=bool(memory_limits.gpus())
        )
    return memory_limits.device_limit(options.settings.gpu_device) or memory_limits.free_host_memory()


def gpu_name(settings: LmsSettings) -> str | None:
    """Return the GPU whose memory is read, as TensorFlow's memory functions call it; `None` without one."""
    if not memory_limits.gpus():
        return None
    number = re.search(r"(\d+)$", settings.gpu_device or "0")
    return f"GPU:{number[1] if number else 0}"


# -- agreement of all ranks -----------------------------------------------------------------------


T = TypeVar("T")


class _PlanSummary(NamedTuple):
    """What a rank says of its plan."""

    digest: str
    n_out: int
    n_in: int
    n_ops: int
    n_edges: int


_Others = tuple[int, tuple[int, _PlanSummary] | None]
"""How many ranks have another plan than root, and the first of them."""


def check_same_plan(comm: Communicator, graph: Graph, make: Callable[[], Plan]) -> Plan:
    """Return this rank's plan, once all ranks have the same one. Collective.

    Raises
    ------
    CollectiveError
        If planning failed on a rank; the same error on all ranks, also of that failure's own class.
    PlanMismatchError
        If a rank's plan is not rank 0's; the same error on all ranks.
    """
    plan = comm.agree("plan Large Model Support", make)
    mine = _PlanSummary(plan.digest, len(plan.swap_outs), len(plan.swap_ins), len(graph.ops), graph.n_edges)
    root = comm.bcast(mine)
    other = None if mine.digest == root.digest else (comm.rank, mine)
    n_others, first = comm.allreduce((int(other is not None), other), _first_and_number)
    if first is not None:
        raise PlanMismatchError(
            f"the plan of rank {first[0]} is not that of rank 0 ({_summary_text(first[1])}, on rank 0 "
            f"{_summary_text(root)}), and {n_others} of {comm.size} ranks differ: give all ranks the same model, batch "
            "size and options of LMS"
        )
    return plan


def _first_and_number(some: _Others, others: _Others) -> _Others:
    return some[0] + others[0], some[1] or others[1]


def _summary_text(summary: _PlanSummary) -> str:
    moved = f"{summary.n_out} swap-outs and {summary.n_in} swap-ins"
    return f"{moved} in {summary.n_ops} ops and {summary.n_edges} edges, {summary.digest[:12]}"
