"""Pictures of a report: memory over time, distances, and what was moved and waited for. Needs Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from hpcckpt.errors import ConfigError

_MIB = 1 << 20


class _Curves(Protocol):
    """Memory over time."""

    @property
    def simulated_without(self) -> Sequence[int]: ...
    @property
    def simulated_with(self) -> Sequence[int]: ...
    @property
    def measured(self) -> Sequence[tuple[float, int]]: ...


class _Moved(Protocol):
    """What one swap-in moved."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


class _Drawn(Protocol):
    """What is drawn of a report, which `Report.save` passes."""

    @property
    def mode(self) -> str: ...
    @property
    def memory_budget(self) -> int | None: ...
    @property
    def memory(self) -> _Curves: ...
    @property
    def histogram(self) -> Mapping[int, int]: ...
    @property
    def traffic(self) -> Sequence[_Moved]: ...
    @property
    def stalls(self) -> Mapping[str, int]: ...


def is_possible() -> bool:
    """Return whether Matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(report: _Drawn, path: str | Path, without: _Drawn | None = None) -> Path:
    """Draw a report, beside that of a run without swapping if there is one, and return the file.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    if not is_possible():
        raise ConfigError("pictures need Matplotlib: pip install 'hpcckpt[plot]'")
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # no display is needed, and pyplot's state is not touched
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 11), layout="constrained")
    FigureCanvasAgg(figure)
    memory, measured, distances, moved = figure.subplots(4, 1)
    _draw_simulated(memory, report)
    _draw_measured(measured, report, without)
    _draw_distances(distances, report)
    _draw_traffic(moved, report)
    figure.savefig(path, dpi=110)
    return Path(path)


def _draw_simulated(axes: Any, report: _Drawn) -> None:
    for name, curve in (
        ("without LMS", report.memory.simulated_without),
        ("with LMS", report.memory.simulated_with),
    ):
        if curve:
            axes.plot([100 * i / len(curve) for i in range(len(curve))], _mib(curve), label=name)
    _budget(axes, report)
    _title(axes, "Simulated memory over a step", "% of its ops", "MiB")


def _draw_measured(axes: Any, report: _Drawn, without: _Drawn | None) -> None:
    for name, each in (("without LMS", without), ("with LMS" if report.mode != "off" else "without LMS", report)):
        if each is not None and each.memory.measured:
            seconds, sizes = zip(*each.memory.measured, strict=True)
            axes.plot(seconds, _mib(sizes), label=name)
    _budget(axes, report)
    _title(axes, "Measured memory over the first step, above the level before it", "s", "MiB")


def _draw_distances(axes: Any, report: _Drawn) -> None:
    axes.bar(list(report.histogram), list(report.histogram.values()), width=1.0)
    if report.histogram:
        axes.set_yscale("log")
    _title(axes, "Edges by distance", "levels between producer and consumer", "edges")


def _draw_traffic(axes: Any, report: _Drawn, limit: int = 25) -> None:
    shown = sorted(report.traffic, key=lambda each: (-each.nbytes, each.name))[:limit]
    stalled = sorted(report.stalls.items(), key=lambda each: (-each[1], each[0]))[:limit]
    places, waits = list(range(len(shown))), list(range(len(shown), len(shown) + len(stalled)))
    axes.bar(places, _mib([each.nbytes for each in shown]), color="tab:blue")
    names = [each.name.removeprefix("lms/")[:28] for each in shown] + [name[-28:] for name, _ in stalled]
    axes.set_xticks(places + waits, names, rotation=90, fontsize=5)
    waited = axes.twinx()
    waited.bar(waits, [ns / 1e6 for _, ns in stalled], color="tab:red")
    waited.set_ylabel("waited, ms", color="tab:red")
    _title(axes, "Bytes that came back, by swap-in (blue), and how long ops waited for them (red)", "", "MiB")


def _budget(axes: Any, report: _Drawn) -> None:
    if report.memory_budget is not None:
        axes.axhline(report.memory_budget / _MIB, color="grey", linestyle="--", label="budget")


def _title(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _mib(sizes: Sequence[int]) -> list[float]:
    return [nbytes / _MIB for nbytes in sizes]
