"""What Large Model Support did: a table for people, JSON for programs, a picture, and the original's histogram file."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcckpt.core.units import nbytes_text
from hpcckpt.lms.messages import planned_lines

Mode = Literal["graph", "pass", "off", "none"]
MODES: Mapping[str, str] = {
    "graph": "edited graph (before the session)",
    "pass": "native pass (when the function was made ready to run)",
    "off": "off: LMS is not necessary",
    "none": "none: it did not act",
}
_SHOWN = 8
_WIDTH = 80
HEADER = "#distance\tfrequency\n"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one swap-in moved, over all steps so far, and how long it took for it, from its start to its end."""

    name: str
    nbytes: int
    took_ns: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory over time: simulated after each op, in bytes; measured as seconds and bytes above the level before.

    The measured curve has a sample every 5 ms; `Report.peak` also counts what rose and fell between two of them.
    """

    simulated_without: tuple[int, ...] = ()
    simulated_with: tuple[int, ...] = ()
    measured: tuple[tuple[float, int], ...] = ()

    @property
    def peaks(self) -> dict[str, int | None]:
        """The peak of each curve; `None` where there is none."""
        measured = [nbytes for _, nbytes in self.measured]
        curves = {
            "simulated_without": self.simulated_without,
            "simulated_with": self.simulated_with,
            "measured": measured,
        }
        return {name: max(curve, default=None) for name, curve in curves.items()}


@dataclass(frozen=True, slots=True)
class Report:
    """What LMS did, and what was measured; `str` returns it as a table.

    Attributes
    ----------
    mode : {"graph", "pass", "off", "none"}
        How LMS acted: it edited a graph; it ran as native pass; it was not necessary; it did not act.
    target : str
        What was edited: a graph, or a function by its name.
    plan : mapping
        Planner, parameters, counts, bytes and the digest of what was done.
    memory_budget : int or None
        Bytes that a step may use in addition to those in memory before it.
    peak : int or None
        Peak of the step that was verified, in bytes above `level`, as measured.
    level : int or None
        Bytes in memory before that step.
    histogram : mapping of int to int
        Number of edges of each distance.
    traffic : tuple of Traffic
        What each swap-in moved.
    stalls : mapping of str to int
        For each op the nanoseconds that it waited for swap-ins after all its other inputs were ready, over all steps so
        far.
    stats : mapping
        The counters of the swap engine.
    notes : tuple of str
        Where LMS could not act, and what to do.
    """

    mode: Mode = "none"
    target: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    n_ops: int = 0
    n_edges: int = 0
    n_levels: int = 0
    batch_size: int | None = None
    memory_budget: int | None = None
    peak: int | None = None
    level: int | None = None
    n_attempts: int = 0
    memory: Memory = field(default_factory=Memory)
    histogram: Mapping[int, int] = field(default_factory=dict)
    traffic: tuple[Traffic, ...] = ()
    stalls: Mapping[str, int] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    n_ranks: int = 1
    notes: tuple[str, ...] = ()

    @property
    def is_verified(self) -> bool | None:
        """Whether the measured step kept the budget.

        It is `None` if there is no budget, or no step was measured.
        """
        if self.peak is None or self.memory_budget is None:
            return None
        return self.peak <= self.memory_budget

    def to_json(self) -> str:
        """Return it as JSON."""
        figures = asdict(self) | {"is_verified": self.is_verified, "peaks": self.memory.peaks}
        return json.dumps(figures, indent=2, default=str)

    def save(self, directory: str | Path) -> list[Path]:
        """Write ``report.json``, and ``report.png`` if Matplotlib is installed.

        Returns the paths of the files.
        """
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        written = [place / "report.json"]
        written[0].write_text(self.to_json(), encoding="utf-8")
        from hpcckpt.lms.report import plots

        return [*written, *([plots.draw(self, place / "report.png")] if plots.is_possible() else [])]

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        plain: Any = {"markup": False, "emoji": False, "highlight": False, "color_system": None, "force_jupyter": False}
        console = Console(file=text, width=_WIDTH, **plain)  # text, also in a notebook
        console.print(_summary(self))
        if self.traffic:
            shown = f"{min(_SHOWN, len(self.traffic))} of {len(self.traffic)} swap-ins"
            console.print(f"{shown}, bytes and time in total over all steps so far")
            console.print(_swaps(self.traffic))
        if self.stalls:
            console.print(
                f"Ops that waited for swap-ins: {_ms(sum(self.stalls.values()))} in total over all steps so far"
            )
            console.print(_stalls(self.stalls))
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _summary(report: Report) -> Any:
    from rich.table import Table

    table = Table(title="Large Model Support", show_header=False, title_justify="left")
    for name, value in _rows(report):
        table.add_row(name, value)
    return table


def _rows(report: Report) -> list[tuple[str, str]]:
    plan, peaks = report.plan, report.memory.peaks
    rows = [("path", MODES[report.mode]), ("target", report.target or "–")]
    if report.n_ops:
        rows.append(("graph", f"{report.n_ops} ops, {report.n_edges} edges, {report.n_levels} levels"))
    if plan:
        figures = {name: value for name, value in plan["parameters"].items() if isinstance(value, int | float | str)}
        is_by_cost = plan["planner"] == "cost" and "floor" in figures
        lines = (
            planned_lines(figures, None, None) if is_by_cost else [f"{name}={value}" for name, value in figures.items()]
        )
        parameters = ", ".join(lines)
        rows.append(("planner", f"{plan['planner']} ({parameters})"))
        out, back = nbytes_text(plan["nbytes_out"]), nbytes_text(plan["nbytes_in"])
        moved = f"{_count(plan['n_swap_outs'], 'swap-out')} ({out}), {_count(plan['n_swap_ins'], 'swap-in')} ({back})"
        rows.append(("per step", f"{moved}, {plan['n_copies']} computed again"))
        rows.append(("plan", f"{plan['digest'][:16]} on {_count(report.n_ranks, 'rank')}"))
    for name, title in (("simulated_without", "simulated peak, no LMS"), ("simulated_with", "simulated peak")):
        if (simulated := peaks[name]) is not None:
            rows.append((title, nbytes_text(simulated)))
    if report.peak is not None:
        rows.append(("measured peak", f"{nbytes_text(report.peak)} in the step that was measured"))
    rows.append(("memory budget", "–" if report.memory_budget is None else nbytes_text(report.memory_budget)))
    words = {None: "no", True: "the budget was kept", False: "the budget was NOT kept"}
    rows.append(("verified", words[report.is_verified]))
    return rows + [("note", note) for note in report.notes]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.1f} ms"


def _swaps(traffic: Sequence[Traffic], limit: int = _SHOWN) -> Any:
    from rich.table import Table

    table = Table()
    for name in ("swap-in", "bytes", "time"):
        table.add_column(name, justify="left" if name == "swap-in" else "right")
    for each in sorted(traffic, key=lambda each: (-each.nbytes, -each.took_ns, each.name))[:limit]:
        table.add_row(each.name, nbytes_text(each.nbytes), _ms(each.took_ns))
    return table


def _stalls(stalls: Mapping[str, int], limit: int = _SHOWN) -> Any:
    from rich.table import Table

    table = Table()
    table.add_column("op")
    table.add_column("waited", justify="right")
    for name in sorted(stalls, key=lambda name: (-stalls[name], name))[:limit]:
        table.add_row(name, _ms(stalls[name]))
    return table


def write_histogram(histogram: Mapping[int, int], directory: str | Path = ".lms") -> Path:
    """Write the original's file of distances, and return it: ``#distance<TAB>frequency``, a line for each distance."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place, delete=False, encoding="utf-8") as file:
        file.write(HEADER + "".join(f"{distance}\t{histogram[distance]}\n" for distance in sorted(histogram)))
    return Path(file.name).absolute()
