"""What ``list`` shows of a run: its steps, the unfinished ones, their tags."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hpcckpt.core.options import Best
from hpcckpt.format import layout
from hpcckpt.rundir import discovery, lock, pins
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.journal import epoch_of
from hpcckpt.rundir.leftovers import Leftover, Usage, find_leftovers, tree_nbytes, usage_of


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One line of ``hpcckpt list``; its fields are the keys of ``--json``; a left-over may have no step."""

    step: int | None
    epoch: int | None
    created: str
    nbytes: int
    ranks: int | None
    backend: str | None
    level: str | None
    metrics: Mapping[str, float]
    valid: bool
    committed: bool
    problem: str
    tags: tuple[str, ...]
    path: str
    save_id: str | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """All that ``hpcckpt list`` shows; its fields are the keys of ``--json``."""

    directory: str
    resume_step: int | None
    best_step: int | None
    metric: str | None
    checkpoints: Sequence[StepSummary] = field(default_factory=tuple)
    other: Sequence[Usage] = ()
    nbytes: int = 0


def summarize(directory: Path, best: Best | None) -> RunSummary:
    """Look at every step of a run. Independent."""
    steps = discovery.scan(directory)
    chosen = best or default_best(steps)
    found = discovery.best_of(steps, chosen) if chosen else []
    restart = discovery.first_restorable(reversed(steps))[0]
    newest = restart.step if restart is not None else None
    marks = _Marks(newest, found[0] if found else None, pins.pins(directory))
    rows = [_committed(info, marks) for info in steps]
    leftovers = find_leftovers(directory)
    holder = holder_of(directory)
    rows += [_unfinished(each, holder) for each in leftovers if each.kind in _ROWS]
    metric = chosen.metric if chosen else None
    other = usage_of([each for each in leftovers if each.kind not in _ROWS])
    nbytes = sum(row.nbytes for row in rows) + sum(each.nbytes for each in other)
    return RunSummary(str(directory), newest, marks.best, metric, tuple(sorted(rows, key=order_of)), other, nbytes)


_ROWS = frozenset({"saving", "unfinished"})
"""The kinds of leftovers that have lines among the checkpoints."""


def order_of(row: StepSummary) -> float:
    """Return the sort key of a line: its step; a line without a step is new, and comes last. Pure."""
    return float("inf") if row.step is None else row.step


@dataclass(frozen=True, slots=True)
class _Marks:
    newest: int | None
    best: int | None
    pinned: Collection[int]


def default_best(steps: Sequence[StepInfo]) -> Best | None:
    """Return the default of "best": the validation loss if there is one, else the loss. Pure."""
    named = {name for info in steps if info.manifest for name in info.manifest.metrics}
    return next((Best(name) for name in ("val_loss", "loss") if name in named), None)


def _committed(info: StepInfo, marks: _Marks) -> StepSummary:
    manifest = info.manifest
    return StepSummary(
        step=info.step,
        epoch=epoch_of(manifest.objects) if manifest else None,
        created=manifest.created if manifest else modified(info.path),
        nbytes=manifest.nbytes if manifest else tree_nbytes(info.path),
        ranks=manifest.n_ranks if manifest else None,
        backend=manifest.backend if manifest else None,
        level=manifest.level if manifest else None,
        metrics=dict(manifest.metrics) if manifest else {},
        valid=info.is_restorable,
        committed=True,
        problem=info.problem,
        tags=_tags(info, marks),
        path=str(info.path),
        save_id=manifest.save_id if manifest else None,
    )


def _tags(info: StepInfo, marks: _Marks) -> tuple[str, ...]:
    facts = {
        "best": info.step == marks.best,
        "latest": info.step == marks.newest,
        "pinned": info.step in marks.pinned,
        "damaged": not info.is_restorable,
    }
    return tuple(tag for tag, is_so in facts.items() if is_so)


def holder_of(directory: Path) -> str:
    """Return the holder of a run directory's lock; "" if there is none. Independent."""
    found = lock.describe(directory)
    return "" if found is None or found[1] else str(found[0])


def _unfinished(each: Leftover, holder: str) -> StepSummary:
    is_saving = each.kind == "saving"
    return StepSummary(
        step=layout.parse_step(each.path.name[1:].partition(".tmp-")[0]),
        epoch=None,
        created=modified(each.path),
        nbytes=each.nbytes,
        ranks=None,
        backend=None,
        level=None,
        metrics={},
        valid=False,
        committed=False,
        problem=f"being saved by {holder}" if is_saving else "left by a killed job; 'hpcckpt prune' removes it",
        tags=("saving" if is_saving else "incomplete",),
        path=str(each.path),
        save_id=None,
    )


def modified(path: Path) -> str:
    """Return when a directory was changed last, as UTC ISO time; "" if it is gone."""
    try:
        seconds = path.lstat().st_mtime
    except OSError:
        return ""
    return iso_of(seconds)


def iso_of(seconds: float) -> str:
    """Return seconds since 1970 as UTC ISO time; "" after the year 9999, as file systems may say. Pure."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""
