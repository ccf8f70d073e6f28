"""The report of a run as one picture. Needs Matplotlib."""

from __future__ import annotations

import math

from hpcckpt.tools.report.charts import charts_of
from hpcckpt.tools.report.figure_files import drawing, dress, new_figure, plain_text, png_of
from hpcckpt.tools.report.history import RunHistory
from hpcckpt.tools.report.statistics import figures_of
from hpcckpt.tools.report.text import count_words, duration_words, moment_words, percent_words, rate_words, size_words

MAX_METRICS = 6


def picture_of(history: RunHistory) -> bytes:
    """Return the picture of a history as PNG.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    charts = charts_of(history)
    wide = [chart for chart in charts if not chart.is_metric]
    metrics = [chart for chart in charts if chart.is_metric][:MAX_METRICS]
    heights = [chart.height for chart in wide] + [chart.height for chart in metrics[::2]]
    with drawing():
        figure = new_figure(11, 1.1 + sum(heights))
        figure.suptitle(_title(history), fontsize=11, ha="left", x=0.02)
        rows = figure.add_gridspec(max(1, len(heights)), 2, height_ratios=heights or [1])
        places = [(row, slice(None)) for row in range(len(wide))]
        places += [(len(wide) + math.floor(n / 2), slice(n % 2, n % 2 + 1)) for n in range(len(metrics))]
        for chart, place in zip([*wide, *metrics], places, strict=True):
            axes = figure.add_subplot(rows[place])
            dress(axes)
            chart.draw(axes)
            title = f"{chart.title} ({chart.key})" if chart.key else chart.title
            axes.set_title(plain_text(title, 180), fontsize=8, loc="left")
        return png_of(figure)


def _title(history: RunHistory) -> str:
    figures = figures_of(history)
    parts = [
        count_words(figures.n_saves, "save") + (f" ({figures.n_failed} failed)" if figures.n_failed else ""),
        count_words(figures.n_jobs, "job") + (f" ({figures.n_deaths} died)" if figures.n_deaths else ""),
        f"stall {duration_words(figures.stall_s)} ({percent_words(figures.stall_part)})",
        rate_words(figures.bandwidth),
        f"{size_words(figures.standing_nbytes)} stored",
    ]
    times = [save.time for save in history.saves]
    period = f"{moment_words(min(times))} to {moment_words(max(times))}" if times else "nothing saved yet"
    return f"{plain_text(history.directory, 100)}   {period}\n{', '.join(parts)}"
