"""Statistics of a run's history: what saves cost, how often jobs die, how fast the training is. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcckpt.tools.report.history import Epoch, JobHistory, RunHistory, Save

REMEMBERED_SAVES = 50


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Statistics of a run's history; None where a figure is unknown.

    Attributes
    ----------
    n_jobs, n_deaths, n_saves, n_failed : int
        Jobs, those that died, saves that were committed, and those that failed.
    nbytes, standing_nbytes : int
        Bytes that were saved in total, and those of the steps that exist.
    stall_s : float
        How long saves held the training up, in all.
    running_s : float
        How long jobs ran, as far as is known.
    cost_s : float or None
        What a save costs the training, on average over the last ones.
    save_s : float or None
        How long a save takes in all: the longest of the last ones.
    restart_s : float or None
        How long a restore takes, on average.
    interval_s : float or None
        From one save to the next, in the middle of a job; the median.
    steps_per_second : float or None
        How fast the training goes, over the last job.
    bandwidth : float or None
        Bytes a second; the median.
    mtbf_s : float or None
        Running time between two deaths.
    """

    n_jobs: int
    n_deaths: int
    n_saves: int
    n_failed: int
    nbytes: int
    standing_nbytes: int
    stall_s: float
    running_s: float
    cost_s: float | None
    save_s: float | None
    restart_s: float | None
    interval_s: float | None
    steps_per_second: float | None
    bandwidth: float | None
    mtbf_s: float | None

    @property
    def stall_part(self) -> float | None:
        """The part of the time that saves held the training up."""
        return self.stall_s / self.running_s if self.running_s > 0 else None


def figures_of(history: RunHistory) -> RunStatistics:
    """Compute the figures of a history. Pure."""
    running_s = sum(job.seconds for job in history.jobs)
    deaths = sum(job.has_died for job in history.jobs)
    recent = _settled(history)[-REMEMBERED_SAVES:]
    costs = [save.stall_s if save.cost_s is None else save.cost_s for save in recent]
    known = [cost for cost in costs if cost is not None]
    return RunStatistics(
        n_jobs=len(history.jobs),
        n_deaths=deaths,
        n_saves=len(history.saves),
        n_failed=len(history.failures),
        nbytes=sum(save.nbytes for save in history.saves),
        standing_nbytes=sum(save.nbytes for save in history.saves if save.state == "kept"),
        stall_s=sum(save.stall_s or 0.0 for save in history.saves),
        running_s=running_s,
        cost_s=statistics.fmean(known) if known else None,
        save_s=max((save.seconds for save in recent if save.seconds is not None), default=None),
        restart_s=_mean(restore.seconds for restore in history.restores),
        interval_s=_median(_intervals(history)),
        steps_per_second=_speed(history),
        bandwidth=_median(save.bandwidth for save in history.saves if save.bandwidth is not None),
        mtbf_s=running_s / deaths if deaths and running_s > 0 else None,
    )


def _settled(history: RunHistory) -> list[Save]:
    """Return the saves without the first of each job, which plans and touches memory, if there are others."""
    firsts = {id(group[0]) for job in history.jobs if len(group := saves_of(job, history)) > 1}
    return [save for save in history.saves if id(save) not in firsts and save.seconds is not None]


def saves_of(job: JobHistory, history: RunHistory) -> list[Save]:
    """Return the saves of a job. Pure."""
    return [save for save in history.saves if job.began <= save.time <= job.last]


def _intervals(history: RunHistory) -> list[float]:
    found = []
    for job in history.jobs:
        times = [save.time for save in saves_of(job, history)]
        pairs = itertools.pairwise(times)
        found += [after - before for before, after in pairs if after >= before]  # else the clock was set back
    return found


def _speed(history: RunHistory) -> float | None:
    """Return the steps per second of the newest job that has them, each cycle counted by itself."""
    for job in reversed(history.jobs):
        mine = saves_of(job, history)
        same = [save for save in mine if save.part == mine[-1].part]
        if len(same) > 1 and same[-1].time > same[0].time and same[-1].step > same[0].step:
            return (same[-1].step - same[0].step) / (same[-1].time - same[0].time)
    return None


def _median(values: Iterable[float]) -> float | None:
    found: Sequence[float] = list(values)
    return statistics.median(found) if found else None


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


# -- metrics as curves ----------------------------------------------------------------------------


MAX_CURVES = 24
Points = list[tuple[float, float]]


def curves_of(history: RunHistory) -> list[tuple[str, Points]]:
    """Return each metric's name and its values over steps; in a run of cycles one for each cycle. Pure."""
    found: dict[tuple[str, str], Points] = {}
    with_epochs = {epoch.part for epoch in history.epochs}
    listed: list[Epoch | Save] = [*history.epochs, *(save for save in history.saves if save.part not in with_epochs)]
    for each in listed:
        for name, value in each.metrics.items():
            found.setdefault((each.part, name), []).append((float(each.step), value))
    has_parts = len({part for part, _ in found}) > 1
    return [
        (f"{name} ({part})" if has_parts and part else name, points)
        for (part, name), points in list(found.items())[:MAX_CURVES]
    ]
