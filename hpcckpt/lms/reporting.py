"""What is known of an outcome, brought into a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hpcckpt.lms import engine
from hpcckpt.lms.histogram import histogram
from hpcckpt.lms.options import Options, Outcome
from hpcckpt.lms.report import Memory, Report, Traffic
from hpcckpt.lms.scene import Scene


def report_of(options: Options, outcome: Outcome, notes: Sequence[str]) -> Report:
    """Return the report of an outcome. Independent."""
    common: dict[str, Any] = {
        "rank": options.comm.rank,
        "n_ranks": options.comm.size,
        "notes": tuple(notes),
        "batch_size": options.batch_size,
    }
    made, scene = outcome.made, outcome.scene
    if made is None or scene is None:
        return Report(**common)
    if made.failure:
        common["notes"] = (*notes, made.failure)
    stats = asdict(engine.stats()) if engine.is_loaded() else {}
    measured = outcome.measured
    curve = measured.curve if measured is not None else ()
    return Report(
        mode=outcome.mode,
        target=outcome.target,
        plan=made.plan.summary() if made.is_necessary else {},
        n_ops=len(scene.graph.ops),
        n_edges=scene.graph.n_edges,
        n_levels=len(made.levels),
        memory_budget=made.budget,
        peak=measured.peak if measured is not None else None,
        level=measured.level if measured is not None else None,
        n_attempts=outcome.n_attempts,
        memory=Memory(made.memory.simulated_without, made.memory.simulated_with, curve),
        histogram=histogram(scene.graph, scene.levels),
        traffic=_traffic(outcome, stats),
        stalls=_stalls(scene, stats),
        stats=stats,
        **common,
    )


def _stalls(scene: Scene, stats: dict[str, Any]) -> dict[str, int]:
    """Return how long ops of this graph waited: the engine counts for the whole process."""
    return {name: ns for name, ns in (stats.get("stall_by_op") or {}).items() if name in scene.graph.ops}


def _traffic(outcome: Outcome, stats: dict[str, Any]) -> tuple[Traffic, ...]:
    """Return the swap-ins of the plan, with what the engine says that was waited for each."""
    assert outcome.made is not None
    plan, moved = outcome.made.plan, stats.get("ins") or {}
    sizes = {out.name: out.nbytes for out in plan.swap_outs}
    found = []
    for back in plan.swap_ins:
        counted = moved.get(back.name)
        nbytes = counted["nbytes"] if counted else sizes[back.swap_out]
        found.append(Traffic(back.name, nbytes, counted["wait_ns"] if counted else 0))
    return tuple(found)
