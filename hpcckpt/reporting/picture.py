"""The report of a run as one picture. Needs Matplotlib."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from hpcckpt.reporting.charts import MAX_JOBS, boundaries_of, shown_saves
from hpcckpt.reporting.drawing import new_figure, plain_text, png_of
from hpcckpt.reporting.figures import figures_of, saves_of
from hpcckpt.reporting.metrics import curves_of
from hpcckpt.reporting.scales import binary_ticks
from hpcckpt.reporting.story import Save, Story
from hpcckpt.reporting.words import count_words, duration_words, moment_words, percent_words, rate_words, size_words

MAX_METRICS = 6
_JOBS = {"died": "#d98880", "failed": "#d98880", "preempted": "#d9b36c", "halted": "#d9b36c", "running": "#7dc29b"}
_FATES = {"stands": "#1a7f4b", "removed": "#c9cdd3", "gone": "#e6e8eb"}
BLUE, LIGHT, RED = "#1f6fb2", "#a9cbe6", "#c0322b"


def picture_of(story: Story) -> bytes:
    """Return the picture of a story as PNG.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    curves = curves_of(story)[:MAX_METRICS]
    panels = ["jobs"] if story.jobs else []
    panels += ["size", "stall", "rate"] if story.saves else []
    n_rows = math.ceil(len(curves) / 2)
    heights = [0.7 + 0.22 * min(len(story.jobs), MAX_JOBS) if name == "jobs" else 1.5 for name in panels]
    figure = new_figure(11, 1.1 + sum(heights) + 1.7 * n_rows)
    figure.suptitle(_title(story), fontsize=11, ha="left", x=0.02)
    rows = figure.add_gridspec(max(1, len(panels) + n_rows), 2, height_ratios=(heights + [1.7] * n_rows) or [1])
    saves = shown_saves(story)
    draw = {"jobs": _draw_jobs, "size": _draw_sizes, "stall": _draw_stalls, "rate": _draw_rates}
    for number, name in enumerate(panels):
        draw[name](figure.add_subplot(rows[number, :]), story, saves)
    for number, (name, points) in enumerate(curves):
        axes = figure.add_subplot(rows[len(panels) + number // 2, number % 2])
        axes.plot([step for step, _ in points], [value for _, value in points], color=BLUE, linewidth=1.2,
                  marker="." if len(points) < 60 else None)  # fmt: skip
        _dress(axes, plain_text(name))
    return png_of(figure)


def _title(story: Story) -> str:
    figures = figures_of(story)
    parts = [
        count_words(figures.n_saves, "save") + (f" ({figures.n_failed} failed)" if figures.n_failed else ""),
        count_words(figures.n_jobs, "job") + (f" ({figures.n_deaths} died)" if figures.n_deaths else ""),
        f"stall {duration_words(figures.stall_s)} ({percent_words(figures.stall_part)})",
        rate_words(figures.bandwidth),
        f"{size_words(figures.standing_nbytes)} stand",
    ]
    times = [save.time for save in story.saves]
    period = f"{moment_words(min(times))} to {moment_words(max(times))}" if times else "nothing saved yet"
    return f"{plain_text(story.directory, 100)}   {period}\n{', '.join(parts)}"


def _draw_jobs(axes: Any, story: Story, saves: list[Save]) -> None:
    del saves
    jobs = story.jobs[-MAX_JOBS:]
    for number, job in enumerate(jobs):
        begin = _date(job.began)
        axes.barh(number, _date(max(job.last, job.began + 1)) - begin, left=begin, color=_JOBS.get(job.end, LIGHT))
        mine = [_date(save.time) for save in saves_of(job, story)]
        axes.plot(mine, [number] * len(mine), "|", color="#333333", markersize=5, alpha=0.6)
        bad = [_date(each.time) for each in story.failures if job.began <= each.time <= job.last]
        axes.plot(bad, [number] * len(bad), "x", color=RED, markersize=6)
    axes.set_yticks(range(len(jobs)), [plain_text((job.job or job.host)[-10:]) for job in jobs])
    axes.invert_yaxis()
    axes.xaxis_date()
    _dress(axes, "jobs (red: died, amber: stopped, green: running), saves | and failures ×")


def _date(seconds: float) -> Any:
    from matplotlib import dates

    convert: Any = dates.date2num  # it has no types
    return convert(datetime.fromtimestamp(seconds).astimezone().replace(tzinfo=None))


def _draw_sizes(axes: Any, story: Story, saves: list[Save]) -> None:
    axes.bar(
        range(len(saves)), [save.nbytes for save in saves], color=[_FATES[save.state] for save in saves], width=0.85
    )
    for number, save in enumerate(saves):
        words = {"best": "★", "pinned": "●", "damaged": "✕"}
        text = "".join(sign for tag, sign in words.items() if tag in save.tags)
        axes.annotate(text, (number, save.nbytes), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(top=1.15 * max([save.nbytes for save in saves] + [1]))
    _over_saves(axes, story, saves, "size per step (green: stands, grey: removed; ★ best, ● pinned)", size_words)


def _draw_stalls(axes: Any, story: Story, saves: list[Save]) -> None:
    places = range(len(saves))
    axes.bar(places, [max(save.cost_s or 0.0, save.stall_s or 0.0) for save in saves], color=LIGHT, width=0.85)
    axes.bar(places, [save.stall_s or 0.0 for save in saves], color=BLUE, width=0.85)
    _over_saves(axes, story, saves, "stall of each save (light: slower batches besides)", duration_words)


def _draw_rates(axes: Any, story: Story, saves: list[Save]) -> None:
    told = [(number, save.bandwidth) for number, save in enumerate(saves) if save.bandwidth is not None]
    axes.plot([number for number, _ in told], [rate for _, rate in told], ".", color=BLUE, markersize=4)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.6, len(saves) - 0.4)
    _over_saves(axes, story, saves, "bandwidth of each save", rate_words)


def _over_saves(axes: Any, story: Story, saves: list[Save], title: str, words: Any) -> None:
    for number in boundaries_of(story, saves):
        axes.axvline(number - 0.5, color="grey", linestyle=":", linewidth=0.8)
    every = max(1, math.ceil(len(saves) / 14))
    axes.set_xticks(range(0, len(saves), every), [f"{save.step:,}" for save in saves[::every]])
    axes.set_xlim(-0.6, len(saves) - 0.4)
    if words is not duration_words:
        axes.set_yticks(binary_ticks(axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda value, _: words(value) if value > 0 else "0")
    _dress(axes, title)


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=8, loc="left")
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, axis="y", alpha=0.25)
    axes.set_axisbelow(True)
