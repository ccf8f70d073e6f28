"""Large Model Support of a cycle: made from the key ``lms``; its result is logged once and recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import HpcckptError
from hpcckpt.train.config.cycles import Cycle
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside
from hpcckpt.train.loop.distribution import Team

if TYPE_CHECKING:
    from hpcckpt.lms.report.report import Report

__all__ = ["facts", "large_model_support", "line"]


def large_model_support(cycle: Cycle, team: Team) -> Any:
    """Return Large Model Support for this rank; ``None`` if it is not asked for. Independent.

    Raises
    ------
    TrainConfigError
        If its options make no sense.
    """
    if cycle.lms is None:
        return None
    from hpcckpt.lms import LMS

    try:
        return LMS(**cycle.lms, comm=team.comm)
    except (HpcckptError, TypeError) as error:
        where = inside(inside("", cycle.index), "lms")
        raise TrainConfigError.of([ConfigProblem(where, str(error), "give it what hpcckpt.lms.LMS takes")]) from error


def facts(report: Report) -> dict[str, Any]:
    """Return what the log says of one rank. Pure."""
    numbers = {name: value for name, value in report.plan.items() if isinstance(value, int | float | str)}
    return {"rank": report.rank, "mode": report.mode, **numbers, "peak": report.peak, "notes": list(report.notes)}


def line(report: Report) -> str:
    """Return what is said of a cycle that is over. Pure."""
    from hpcckpt.lms.report.report import MODES

    if not report.plan:
        return f"lms: {MODES[report.mode]}{''.join(f'; {note}' for note in report.notes)}"
    plan = report.plan
    moved = f"{plan['n_swap_outs']} swap-outs ({nbytes_text(plan['nbytes_out'])}) a step"
    ranks = f" on each of {report.n_ranks} ranks" if report.n_ranks > 1 else ""
    return f"lms: {MODES[report.mode]}, {moved}{ranks}"
