"""What is known of an outcome, brought into a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hpcckpt.lms.graph.levels import histogram
from hpcckpt.lms.report.report import Memory, Report, Traffic
from hpcckpt.lms.runtime import native_engine
from hpcckpt.lms.runtime.options import LmsOptions, LmsOutcome


def report_of(options: LmsOptions, outcome: LmsOutcome, notes: Sequence[str]) -> Report:
    """Return the report of an outcome. Independent."""
    common: dict[str, Any] = {
        "rank": options.comm.rank,
        "n_ranks": options.comm.size,
        "notes": tuple(notes),
        "batch_size": options.batch_size,
    }
    result, context = outcome.result, outcome.context
    if result is None or context is None:
        return Report(**common)
    if result.failure:
        common["notes"] = (*notes, result.failure)
    stats = asdict(native_engine.stats()) if native_engine.is_loaded() else {}
    measured = outcome.measured
    curve = measured.curve if measured is not None else ()
    return Report(
        mode=outcome.mode,
        target=outcome.target,
        plan=result.plan.summary() if result.is_necessary else {},
        n_ops=len(context.graph.ops),
        n_edges=context.graph.n_edges,
        n_levels=len(result.levels),
        memory_budget=result.budget,
        peak=measured.peak if measured is not None else None,
        level=measured.level if measured is not None else None,
        n_attempts=outcome.n_attempts,
        memory=Memory(result.memory.simulated_without, result.memory.simulated_with, curve),
        histogram=histogram(context.graph, context.levels),
        traffic=_traffic(outcome, stats),
        stalls={op: ns for op, ns in (stats.get("stall_by_op") or {}).items() if op in context.graph.ops},
        stats=stats,
        **common,
    )


def _traffic(outcome: LmsOutcome, stats: dict[str, Any]) -> tuple[Traffic, ...]:
    """Return the swap-ins of the plan, with what the engine says that was waited for each."""
    assert outcome.result is not None
    plan, moved = outcome.result.plan, stats.get("ins") or {}
    sizes = {out.name: out.nbytes for out in plan.swap_outs}
    found = []
    for back in plan.swap_ins:
        counted = moved.get(back.name)
        nbytes = counted["nbytes"] if counted else sizes[back.swap_out]
        found.append(Traffic(back.name, nbytes, counted["wait_ns"] if counted else 0))
    return tuple(found)
