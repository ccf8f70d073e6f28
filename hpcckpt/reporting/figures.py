"""Figures of a story: what saves cost, how often jobs die, how fast the training goes. Pure."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcckpt.reporting.story import Job, Save, Story

REMEMBERED_SAVES = 50


@dataclass(frozen=True, slots=True)
class Figures:
    """What a story comes to; ``None`` is what nobody told.

    Attributes
    ----------
    n_jobs, n_deaths, n_saves, n_failed : int
        Jobs, those that died, saves that were committed, and those that failed.
    nbytes, standing_nbytes : int
        Bytes that were saved in all, and those of the steps that stand.
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


def figures_of(story: Story) -> Figures:
    """Compute the figures of a story. Pure."""
    running_s = sum(job.seconds for job in story.jobs)
    deaths = sum(job.has_died for job in story.jobs)
    recent = _settled(story)[-REMEMBERED_SAVES:]
    costs = [_cost(save) for save in recent]
    known = [cost for cost in costs if cost is not None]
    return Figures(
        n_jobs=len(story.jobs),
        n_deaths=deaths,
        n_saves=len(story.saves),
        n_failed=len(story.failures),
        nbytes=sum(save.nbytes for save in story.saves),
        standing_nbytes=sum(save.nbytes for save in story.saves if save.state == "stands"),
        stall_s=sum(save.stall_s or 0.0 for save in story.saves),
        running_s=running_s,
        cost_s=statistics.fmean(known) if known else None,
        save_s=max((save.seconds for save in recent if save.seconds is not None), default=None),
        restart_s=_mean(restore.seconds for restore in story.restores),
        interval_s=_median(_intervals(story)),
        steps_per_second=_speed(story),
        bandwidth=_median(save.bandwidth for save in story.saves if save.bandwidth is not None),
        mtbf_s=running_s / deaths if deaths and running_s > 0 else None,
    )


def _cost(save: Save) -> float | None:
    return save.stall_s if save.cost_s is None else save.cost_s


def _settled(story: Story) -> list[Save]:
    """Return the saves without the first of each job, which plans and touches memory, if there are others."""
    firsts = {id(group[0]) for job in story.jobs if len(group := saves_of(job, story)) > 1}
    return [save for save in story.saves if id(save) not in firsts and save.seconds is not None]


def saves_of(job: Job, story: Story) -> list[Save]:
    """Return the saves of a job. Pure."""
    first = bisect_left(story.saves, job.began, key=_time)
    return list(story.saves[first : bisect_right(story.saves, job.last, key=_time)])


def _time(save: Save) -> float:
    return save.time


def _intervals(story: Story) -> list[float]:
    found = []
    for job in story.jobs:
        times = [save.time for save in saves_of(job, story)]
        found += [after - before for before, after in itertools.pairwise(times)]
    return found


def _speed(story: Story) -> float | None:
    """Return the steps a second of the newest job that tells; steps of different cycles do not count on."""
    for job in reversed(story.jobs):
        mine = saves_of(job, story)
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
