"""The charts of a report, drawn by Matplotlib: those of the page and of the picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from hpcckpt.tools.report.figure_files import AMBER, BLUE, GREEN, GREY, INK, LIGHT_BLUE, RED, SOFT, plain_text
from hpcckpt.tools.report.history import JobHistory, RunHistory, Save
from hpcckpt.tools.report.statistics import Points, curves_of, saves_of
from hpcckpt.tools.report.text import count_words, duration_words, rate_words, size_words

MAX_SAVES = 1500
MAX_JOBS = 30
_JOBS = {"died": RED, "failed": RED, "preempted": AMBER, "halted": AMBER, "running": GREEN}
_SIGNS = {"best": "★", "pinned": "●", "damaged": "✕", "latest": "▾"}


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn into one set of axes.

    Attributes
    ----------
    title : str
        What it shows.
    key : str
        What its colours and signs mean; "" if there is nothing to explain.
    description : str
        What it shows, for people who cannot see it.
    height : float
        In inches.
    draw : callable
        Draws it into a `matplotlib.axes.Axes`.
    is_metric : bool
        Whether it needs half the width only.
    """

    title: str
    key: str
    description: str
    height: float
    draw: Callable[[Any], None]
    is_metric: bool = False


def charts_of(history: RunHistory) -> list[Chart]:
    """Return the charts of a history; of very many saves they show the newest. Pure."""
    saves = list(history.saves[-MAX_SAVES:])
    found = [_time_line(history)] if history.jobs else []
    found += [_sizes(history, saves)] if saves else []
    found += [_stalls(history, saves)] if any(save.stall_s is not None for save in saves) else []
    found += [_bandwidths(history, saves)] if any(save.bandwidth for save in saves) else []
    return found + [_metric(name, points) for name, points in curves_of(history)]


# -- the time line -------------------------------------------------------------------------------


def _time_line(history: RunHistory) -> Chart:
    jobs = history.jobs[-MAX_JOBS:]
    deaths = sum(job.has_died for job in jobs)
    length = duration_words(max(job.last for job in jobs) - min(job.began for job in jobs))
    return Chart(
        "Time line",
        "a bar is a job: blue ended, amber preempted or halted, red died, green running; |\u00a0save, "
        "✕\u00a0failure, ▸\u00a0restored step",
        f"{count_words(len(jobs), 'job')}, {deaths} of them died, in {length}",
        0.7 + 0.26 * len(jobs),
        partial(_draw_jobs, history=history, jobs=jobs),
    )


def _draw_jobs(axes: Any, *, history: RunHistory, jobs: Sequence[JobHistory]) -> None:
    from matplotlib import dates

    for row, job in enumerate(jobs):
        begin, end = _day(job.began), _day(max(job.last, job.began + 1))
        axes.barh(row, end - begin, left=begin, height=0.55, color=_JOBS.get(job.end, LIGHT_BLUE), alpha=0.6)
        times = [_day(save.time) for save in saves_of(job, history)]
        axes.plot(times, [row] * len(times), "|", color=INK, markersize=5, alpha=0.6)
        failed = [_day(each.time) for each in history.failures if job.began <= each.time <= job.last]
        failed += [end] if job.has_died else []
        axes.plot(failed, [row] * len(failed), "x", color=RED, markersize=6)
        for restore in history.restores:
            if job.began <= restore.time <= job.last:
                axes.text(_day(restore.time), row - 0.32, f"▸{restore.step:,}", fontsize=6, color=INK)
    axes.set_yticks(range(len(jobs)), [plain_text((job.job or job.host or "job")[-10:]) for job in jobs])
    axes.set_ylim(len(jobs) - 0.5, -0.8)
    locator = dates.AutoDateLocator(maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.grid(visible=False, axis="y")


def _day(seconds: float) -> Any:
    """Return a time as Matplotlib has dates, in local time."""
    from matplotlib import dates

    convert: Any = dates.date2num  # it has no types
    return convert(datetime.fromtimestamp(seconds).astimezone().replace(tzinfo=None))


# -- saves, one after the other ------------------------------------------------------------------


def _sizes(history: RunHistory, saves: Sequence[Save]) -> Chart:
    stored = sum(save.state == "kept" for save in saves)
    key = "green: stored, grey: removed by retention, prune or rm, framed: gone, red: damaged; "
    key += "★\u00a0best, ▾\u00a0latest, ●\u00a0pinned"
    description = f"{stored} of {count_words(len(saves), 'step')} are stored"
    return Chart("Size per step", key, description, 1.95, partial(_draw_sizes, history=history, saves=saves))


def _draw_sizes(axes: Any, *, history: RunHistory, saves: Sequence[Save]) -> None:
    for state, style in (
        ("kept", {"facecolor": GREEN}),
        ("removed", {"facecolor": GREY, "alpha": 0.45}),
        ("gone", {"facecolor": "none", "edgecolor": GREY, "linestyle": ":", "linewidth": 0.6}),
        ("damaged", {"facecolor": RED}),
    ):
        kinds = ("damaged" if "damaged" in save.tags else save.state for save in saves)
        _bars(axes, [(place, saves[place].nbytes) for place, kind in enumerate(kinds) if kind == state], **style)
    for place, save in enumerate(saves):
        signs = "".join(sign for tag, sign in _SIGNS.items() if tag in save.tags)
        if signs:
            axes.text(place, save.nbytes, signs, ha="center", va="bottom", fontsize=8, color=INK)
    _bytes_axis(axes, 1.15 * max(save.nbytes for save in saves), size_words)
    _step_axis(axes, history, saves)


def _stalls(history: RunHistory, saves: Sequence[Save]) -> Chart:
    longest = max(save.stall_s or 0.0 for save in saves)
    has_slower = any((save.cost_s or 0.0) > (save.stall_s or 0.0) for save in saves)
    return Chart(
        "Stall: how long each save delayed the program",
        "blue: stall, light blue: slower batches besides" if has_slower else "",
        f"of {count_words(len(saves), 'save')}; the longest {duration_words(longest)}",
        1.85,
        partial(_draw_stalls, history=history, saves=saves),
    )


def _draw_stalls(axes: Any, *, history: RunHistory, saves: Sequence[Save]) -> None:
    slower = [(place, save.cost_s) for place, save in enumerate(saves) if save.cost_s is not None]
    stalls = [(place, save.stall_s) for place, save in enumerate(saves) if save.stall_s is not None]
    _bars(axes, slower, facecolor=LIGHT_BLUE)
    _bars(axes, stalls, facecolor=BLUE)
    axes.set_ylim(0, 1.05 * max(seconds for _, seconds in slower + stalls) or 1e-3)
    axes.locator_params(axis="y", nbins=4)
    axes.yaxis.set_major_formatter(lambda value, _: duration_words(value) if value > 0 else "0")
    _step_axis(axes, history, saves)


def _bandwidths(history: RunHistory, saves: Sequence[Save]) -> Chart:
    highest = max(save.bandwidth or 0.0 for save in saves)
    description = f"from the call to the commit; at best {rate_words(highest)}"
    return Chart("Bandwidth of each save", "", description, 1.85, partial(_draw_rates, history=history, saves=saves))


def _draw_rates(axes: Any, *, history: RunHistory, saves: Sequence[Save]) -> None:
    known = [(place, save.bandwidth) for place, save in enumerate(saves) if save.bandwidth is not None]
    axes.plot([place for place, _ in known], [rate for _, rate in known], ".", color=BLUE, markersize=4)
    _bytes_axis(axes, 1.1 * max(rate for _, rate in known), rate_words)
    _step_axis(axes, history, saves)


def _bars(axes: Any, bars: Sequence[tuple[int, float]], **style: Any) -> None:
    """Draw bars of a place and a height; ten times as fast as one object for each."""
    from matplotlib.collections import PolyCollection

    corners = [[(x - 0.42, 0), (x - 0.42, height), (x + 0.42, height), (x + 0.42, 0)] for x, height in bars]
    axes.add_collection(PolyCollection(corners, **style))


def _bytes_axis(axes: Any, high: float, words: Callable[[float], str]) -> None:
    """Label the vertical axis with values that are round in KiB, MiB or GiB."""
    from matplotlib.ticker import MaxNLocator

    unit = 1024.0 ** max(0, math.floor(math.log(max(high, 1.0), 1024)))
    axes.set_yticks([unit * tick for tick in MaxNLocator(4).tick_values(0, high / unit) if tick * unit <= high])
    axes.set_ylim(0, max(high, 1.0))
    axes.yaxis.set_major_formatter(lambda value, _: words(value) if value > 0 else "0")


def _step_axis(axes: Any, history: RunHistory, saves: Sequence[Save]) -> None:
    """Label the horizontal axis with steps, and draw a line where another job begins."""
    firsts = (next((n for n, save in enumerate(saves) if save.time >= job.began), None) for job in history.jobs)
    for first in sorted({first for first in firsts if first}):
        axes.axvline(first - 0.5, color=SOFT, linestyle=":", linewidth=0.8)
    every = math.ceil(len(saves) / 14)
    axes.set_xticks(range(0, len(saves), every), [f"{save.step:,}" for save in saves[::every]])
    axes.set_xlim(-0.6, max(len(saves), 6) - 0.4)
    axes.set_xlabel("step", fontsize=7)


# -- metrics -------------------------------------------------------------------------------------


def _metric(name: str, points: Points) -> Chart:
    description = f"{count_words(len(points), 'value')}, the last {points[-1][1]:.4g}"
    return Chart(name, "", description, 1.85, partial(_draw_metric, points=points), is_metric=True)


def _draw_metric(axes: Any, *, points: Points) -> None:
    if not any(math.isfinite(value) for _, value in points):
        axes.text(0.5, 0.5, "never a finite value", ha="center", transform=axes.transAxes)
        return
    steps: list[float] = []
    values: list[float] = []
    for step, value in points:
        if steps and step < steps[-1]:  # the run resumed from an older step: a gap
            steps.append(step)
            values.append(math.nan)
        steps.append(step)
        values.append(value if math.isfinite(value) else math.nan)
    axes.plot(steps, values, color=BLUE, linewidth=1.2, marker="." if len(points) <= 60 else None)
    axes.set_xlabel("step", fontsize=7)
    axes.locator_params(nbins=4)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}" if step == round(step) else "")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
