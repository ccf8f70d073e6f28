"""What campaigns found: tallies that add up, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign._common import FAILURES, Campaign, Outcome

_SHOWN_FAILURES = 50


@dataclass
class Figure:
    """A measurement over all cases that have it."""

    count: int = 0
    total: float = 0.0
    largest: float = float("-inf")

    def add(self, other: Figure) -> None:
        """Add the measurements of another part."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)


@dataclass
class Tally:
    """The outcomes of some cases of one campaign; two of them add up.

    Attributes
    ----------
    spans : list
        ``[seed, first, last + 1]`` of the numbers that were run, so that nothing is counted twice.
    """

    campaign: str
    promise: str
    planned: int
    is_gate: bool = True
    verdicts: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    spans: list[list[int]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    note: str = ""

    @classmethod
    def of(cls, campaign: Campaign) -> Tally:
        """Return an empty tally."""
        return cls(campaign.name, campaign.promise, campaign.full, campaign.is_gate)

    @property
    def run(self) -> int:
        """How many cases were run."""
        return sum(count for verdict, count in self.verdicts.items() if verdict != "skipped")

    @property
    def n_failed(self) -> int:
        """How many cases broke the promise."""
        return sum(self.verdicts.get(verdict, 0) for verdict in FAILURES)

    @property
    def is_broken(self) -> bool:
        """Whether this is a reason to fail."""
        return self.is_gate and (self.n_failed > 0 or bool(self.note))

    def count(self, seed: int, number: int, outcome: Outcome) -> None:
        """Count one case."""
        self.verdicts[outcome.verdict] = self.verdicts.get(outcome.verdict, 0) + 1
        if outcome.what:
            self.kinds[outcome.what] = self.kinds.get(outcome.what, 0) + 1
        for name, value in outcome.figures.items():
            self.figures.setdefault(name, Figure()).add(Figure(1, value, value))
        if outcome.verdict in FAILURES:
            found = {"seed": seed, "number": number, "verdict": outcome.verdict, "what": outcome.what}
            self.failures.append({**found, "text": outcome.text})

    def add(self, other: Tally) -> None:
        """Add another part of the same campaign.

        Raises
        ------
        ValueError
            If some case is in both.
        """
        for seed, first, end in other.spans:
            if any(seed == s and first < e and f < end for s, f, e in self.spans):
                raise ValueError(f"{self.campaign}: cases {first} to {end - 1} of seed {seed} are in two of the parts")
        self.verdicts = dict(Counter(self.verdicts) + Counter(other.verdicts))
        self.kinds = dict(Counter(self.kinds) + Counter(other.kinds))
        for name, figure in other.figures.items():
            self.figures.setdefault(name, Figure()).add(figure)
        self.failures += other.failures
        self.seconds += other.seconds
        self.spans += other.spans
        self.commands += other.commands
        self.note = "; ".join(filter(None, (self.note, other.note)))

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**dataclasses.asdict(self), "run": self.run, **{v: self.verdicts.get(v, 0) for v in FAILURES}}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Tally:
        """Return the tally that `document` made."""
        known = {f.name for f in dataclasses.fields(cls)}
        figures = {name: Figure(**values) for name, values in document["figures"].items()}
        return cls(**{**{name: value for name, value in document.items() if name in known}, "figures": figures})


def read(path: Path) -> list[Tally]:
    """Return the tallies of a report."""
    return [Tally.from_document(document) for document in json.loads(path.read_text(encoding="utf-8"))["campaigns"]]


def merged(tallies: Iterable[Tally]) -> list[Tally]:
    """Add up the parts of each campaign."""
    found: dict[str, Tally] = {}
    for tally in tallies:
        if tally.campaign in found:
            found[tally.campaign].add(tally)
        else:
            found[tally.campaign] = tally
    return [found[name] for name in sorted(found)]


def write(path: Path, tallies: Sequence[Tally]) -> None:
    """Write ``path.json`` and ``path.md``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": _machine(), "campaigns": [tally.document() for tally in tallies]}
    _replace(path.with_suffix(".json"), json.dumps(document, indent=1))
    _replace(path.with_suffix(".md"), page(tallies))


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _machine() -> dict[str, str]:
    return {"system": platform.platform(), "python": platform.python_version(), "processor": platform.machine()}


def page(tallies: Sequence[Tally]) -> str:
    """Return the report as Markdown."""
    lines = ["# Fault campaigns", "", f"{', '.join(_machine().values())}", ""]
    lines += ["| campaign | planned | run | good | detected | lost | wrong | hung | seconds | seed |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    lines += [_row(tally) for tally in tallies]
    for tally in tallies:
        lines += ["", f"## {tally.campaign}", "", tally.promise, *_details(tally)]
    return "\n".join(lines) + "\n"


def _row(tally: Tally) -> str:
    counts = [tally.verdicts.get(name, 0) for name in ("good", "detected", "lost", "wrong", "hung")]
    seeds = ", ".join(map(str, sorted({span[0] for span in tally.spans})))
    cells = [tally.campaign, tally.planned, tally.run, *counts, f"{tally.seconds:.0f}", seeds]
    return f"| {' | '.join(map(str, cells))} |"


def _details(tally: Tally) -> list[str]:
    lines = [""]
    lines += [f"- `{command}`" for command in dict.fromkeys(tally.commands)]
    if tally.note:
        lines += ["", f"**{tally.note}**"]
    if tally.verdicts.get("skipped"):
        lines += ["", f"{tally.verdicts['skipped']} cases could not be run here."]
    if tally.kinds:
        lines += ["", "| kind | cases |", "|---|---:|"]
        lines += [f"| {kind} | {count} |" for kind, count in sorted(tally.kinds.items())]
    if tally.figures:
        lines += ["", "| figure | mean | largest |", "|---|---:|---:|"]
        lines += [
            f"| {name} | {f.total / f.count:.4g} | {f.largest:.4g} |" for name, f in sorted(tally.figures.items())
        ]
    for failure in tally.failures[:_SHOWN_FAILURES]:
        where = f"case {failure['number']} of seed {failure['seed']}: {failure['verdict']}"
        lines += ["", f"### {where} {failure['what']}", "", "```", failure["text"].rstrip(), "```"]
    if len(tally.failures) > _SHOWN_FAILURES:
        lines += ["", f"… and {len(tally.failures) - _SHOWN_FAILURES} more failures (all of them in the JSON)."]
    return lines
