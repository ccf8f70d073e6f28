"""The journal of one run directory: its jobs and events, as far as they are valid entries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hpcckpt.errors import HpcckptError
from hpcckpt.rundir import journal
from hpcckpt.tools.report.fields import count_of, metrics_of, number_of, steps_of, text_of, time_of
from hpcckpt.tools.report.history import Change, FailedSave, JobHistory, Restore, Save
from hpcckpt.tools.report.run_dirs import RunPart

Entry = dict[str, Any]
T = TypeVar("T")


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of a journal or log; [] if it cannot be read. Independent."""
    try:
        return journal.read_lines(path)
    except HpcckptError:
        return []


@dataclass(slots=True)
class JournalRecords:
    """The contents of the journal of one part."""

    part: RunPart
    has_journal: bool = False
    jobs: list[JobDraft] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    failures: list[FailedSave] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)

    def read(self, log: Sequence[Entry]) -> JournalRecords:
        """Read the journal; if there is none, the saves in the training's log."""
        entries = read_entries(self.part.path / journal.NAME)
        self.has_journal = bool(entries)
        if not entries and self.part.cycle is not None:
            entries = [_of_log(entry) for entry in log if entry.get("cycle") == self.part.cycle]
        for entry in entries:
            when = time_of(entry)
            if when is not None:
                self._take_in(entry["event"], entry, when)
        return self

    def _take_in(self, event: str, entry: Entry, when: float) -> None:
        if event == "start":
            self._start(entry, when)
        elif self.jobs and not text_of(entry, "by"):  # a change by hand is not an entry of a job
            self.jobs[-1].last = max(self.jobs[-1].last, when)
        step = count_of(entry, "step")
        if event == "saved" and step is not None:
            self._saved(entry, when, step)
        elif event == "cost" and step is not None:
            self._cost(step, number_of(entry, "seconds"))
        elif event == "failed" and step is not None:
            self.failures.append(
                FailedSave(self.part.name, when, step, text_of(entry, "kind"), text_of(entry, "message"))
            )
        elif event == "restored" and step is not None:
            self._restored(entry, when, step)
        elif event == "removed":
            self._removed(entry, when)
        elif event in {"copied", "repaired", "resharded"} and step is not None:
            self._came(entry, when, step)
        elif event in {"halted", "preempted", "end"} and self.jobs:
            self.jobs[-1].finish(event, entry)

    def _start(self, entry: Entry, when: float) -> None:
        new = JobDraft(entry, when, when)
        if not (self.jobs and self.jobs[-1].identity == new.identity):
            self.jobs.append(new)
        self.jobs[-1].end = ""

    def _saved(self, entry: Entry, when: float, step: int) -> None:
        self.removed.discard(step)  # one that was removed may be saved again
        save = Save(
            part=self.part.name,
            time=when,
            step=step,
            nbytes=count_of(entry, "bytes") or 0,
            epoch=count_of(entry, "epoch"),
            files=count_of(entry, "files"),
            stall_s=number_of(entry, "stall_seconds"),
            seconds=number_of(entry, "seconds"),
            n_ranks=count_of(entry, "n_ranks"),
            level=text_of(entry, "level"),
            save_id=text_of(entry, "save_id"),
            metrics=metrics_of(entry),
        )
        self.saves.append(save)

    def _removed(self, entry: Entry, when: float) -> None:
        steps = steps_of(entry)
        self.removed.update(steps)
        if verb := text_of(entry, "by"):
            n_steps = count_of(entry, "n_steps") or len(steps)
            self.changes.append(Change(self.part.name, when, verb, steps, n_steps))

    def _came(self, entry: Entry, when: float, step: int) -> None:
        self.removed.discard(step)
        verb, source = text_of(entry, "by") or "copy", text_of(entry, "from")
        self.changes.append(Change(self.part.name, when, verb, (step,), 1, source))

    def _cost(self, step: int, seconds: float | None) -> None:
        if self.saves and self.saves[-1].step == step:
            self.saves[-1] = replace(self.saves[-1], cost_s=seconds)
            return
        for number in range(len(self.saves) - 1, max(-1, len(self.saves) - 8), -1):
            if self.saves[number].step == step:
                self.saves[number] = replace(self.saves[number], cost_s=seconds)
                return

    def _restored(self, entry: Entry, when: float, step: int) -> None:
        found = Restore(
            self.part.name,
            when,
            step,
            number_of(entry, "seconds") or 0.0,
            count_of(entry, "n_ranks") or 0,
            count_of(entry, "ranks_before") or 0,
            count_of(entry, "skipped") or 0,
        )
        self.restores.append(found)
        if self.jobs:
            self.jobs[-1].restored = self.jobs[-1].restored or found


@dataclass(slots=True)
class JobDraft:
    """A job as far as it is read."""

    entry: Entry
    began: float
    last: float
    end: str = ""
    reason: str = ""
    restored: Restore | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """What distinguishes this job from others."""
        return tuple(self.entry.get(name) for name in ("host", "pid", "born", "job"))

    def finish(self, event: str, entry: Entry) -> None:
        """Take in how it stopped, and that it ended."""
        if event == "end":
            error, code = text_of(entry, "error"), count_of(entry, "exit_code")
            has_failed = bool(error) and code != 0
            why = _reason(error, code, text_of(entry, "message")) if has_failed else ""
            self.end, self.reason = (self.end or ("failed" if has_failed else "ended")), self.reason or why
        else:
            self.end, self.reason = event, text_of(entry, "reason")


def _reason(error: str, code: int | None, message: str) -> str:
    """Return what ended a job: ``RuntimeError: the text``, ``SystemExit, exit code 3``. Pure."""
    first_line = message.partition("\n")[0]
    return f"{error}{'' if code is None else f', exit code {code}'}{f': {first_line}' if first_line else ''}"


def merged(lists: Iterable[Sequence[T]], time: Callable[[T], float]) -> list[T]:
    """Merge lists by time, but keep the order of each: clocks of nodes differ, and may be set back. Pure."""
    found: list[tuple[float, T]] = []
    for events in lists:
        latest = itertools.accumulate(map(time, events), max)
        found += zip(latest, events, strict=True)
    return [event for _, event in sorted(found, key=lambda pair: pair[0])]


def joined(drafts: Iterable[Sequence[JobDraft]], *, is_running: bool) -> list[JobHistory]:
    """Return the jobs of all parts in their order; one that worked in several parts is one."""
    found: list[JobDraft] = []
    for draft in merged(drafts, lambda each: each.began):
        if found and found[-1].identity == draft.identity:
            same = found[-1]
            same.last, same.end, same.reason = max(same.last, draft.last), draft.end, draft.reason or same.reason
            same.restored = same.restored or draft.restored
        else:
            found.append(draft)
    return [_job(draft, is_running=is_running and draft is found[-1]) for draft in found]


def _job(draft: JobDraft, *, is_running: bool) -> JobHistory:
    entry, restored = draft.entry, draft.restored
    return JobHistory(
        began=draft.began,
        last=draft.last,
        end=draft.end or ("running" if is_running else "died"),
        reason=draft.reason,
        job=text_of(entry, "job"),
        scheduler=text_of(entry, "scheduler"),
        host=text_of(entry, "host"),
        n_ranks=count_of(entry, "n_ranks") or 0,
        backend=text_of(entry, "backend"),
        version=text_of(entry, "version"),
        restart=count_of(entry, "restart"),
        restored=restored.step if restored else None,
        ranks_before=restored.ranks_before if restored else None,
    )


def _of_log(entry: Entry) -> Entry:
    """Return an entry of the training's log as the journal has it."""
    return {**entry, "epoch": entry.get("epochs")}
