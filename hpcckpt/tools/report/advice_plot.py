"""The picture of an advice: what each interval loses. Needs Matplotlib."""

from __future__ import annotations

from hpcckpt.tools.report.advice import IntervalAdvice, curve
from hpcckpt.tools.report.figure_files import drawing, new_figure, png_of
from hpcckpt.tools.report.text import duration_words

TICKS_S = (0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400)


def draw_advice(advice: IntervalAdvice) -> bytes:
    """Return the picture as PNG.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    with drawing():
        return _draw(advice)


def _draw(advice: IntervalAdvice) -> bytes:
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    points = curve(advice)
    axes.plot([each for each, _ in points], [100 * lost for _, lost in points], color="#2a78b5")
    axes.set_xscale("log")
    lowest = advice.advised.lost
    axes.set_ylim(0, 100 * min(1.0, max(4 * lowest, 1.3 * (advice.now.lost if advice.now else 0.0))))
    for choice in advice.choices:
        if choice.what in {"advised", "now"}:
            colour, marker = ("#1b7f4b", "o") if choice.what == "advised" else ("#b5492a", "s")
            label = f"{choice.what}: {duration_words(choice.interval_s)}, {100 * choice.lost:.3g} % lost"
            axes.plot([choice.interval_s], [100 * choice.lost], marker, color=colour, label=label, markersize=8)
    ticks = [tick for tick in TICKS_S if points[0][0] <= tick <= points[-1][0]]
    axes.set_xticks(ticks, [duration_words(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("work between two saves")
    axes.set_ylabel("% of the time that is lost")
    axes.set_title(
        f"a save costs {duration_words(advice.cost_s)}, a failure every {duration_words(advice.mtbf_s)}", fontsize=10
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return png_of(figure)
