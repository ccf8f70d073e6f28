"""Read the history of a run: journals of all parts, existing steps, and the log of ``hpcckpt train``. Read only.

A journal may be truncated, lost or foreign: what it lacks is taken from the steps, and lines that are not valid entries
are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcckpt.core.options import Best
from hpcckpt.errors import HpcckptError
from hpcckpt.format import layout
from hpcckpt.preemption.halt import read_halt
from hpcckpt.rundir import discovery, journal, lock, pins
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.leftovers import Usage, find_leftovers, usage_of
from hpcckpt.tools.report.fields import count_of, iso_time, metrics_of, time_of
from hpcckpt.tools.report.history import Epoch, RunHistory, Save
from hpcckpt.tools.report.journals import Entry, JournalRecords, joined, merged, read_entries
from hpcckpt.tools.report.run_dirs import LOG, RunPart, parts_of
from hpcckpt.tools.report.text import duration_words

JUST_NOW_S = 5.0


def read_run_history(
    directory: Path,
    best: Best | None = None,
    *,
    manifests: dict[Path, discovery.Manifests] | None = None,
    has_usage: bool = False,
) -> RunHistory:
    """Return what became of a run. Independent.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory, of one run or of ``hpcckpt train``.
    best : Best, optional
        What "best" means; by default the validation loss if steps have it, else the loss.
    manifests : dict, optional
        Those that were read before, of each part, if the run is read repeatedly.
    has_usage : bool
        Whether to look up what takes space beside the steps, which reads all directories.

    Raises
    ------
    StepNotFoundError
        If there is no run.
    """
    parts = parts_of(directory)
    holders = [holder for part in parts if (holder := _holder(part.path))]
    known = {} if manifests is None else manifests
    standing = {part.name: _standing(part, best, known.setdefault(part.path, discovery.Manifests())) for part in parts}
    log = read_entries(directory / LOG)
    records = [JournalRecords(part).read(log) for part in parts]
    jobs = joined([each.jobs for each in records], is_running=bool(holders))
    if jobs and jobs[-1].end == "died":
        jobs[-1] = replace(jobs[-1], reason=_how_it_died([part.path for part in parts]))
    saves = [saves for each in records for saves in _with_fate(each, standing[each.part.name])]
    problems = [info.problem for found in standing.values() for info in found.steps if info.problem]
    return RunHistory(
        directory=str(directory),
        parts=tuple(part.name for part in parts),
        jobs=tuple(jobs),
        saves=_in_order(saves),
        failures=_in_order(each.failures for each in records),
        restores=_in_order(each.restores for each in records),
        epochs=tuple(_epochs(log)),
        changes=_in_order(each.changes for each in records),
        writing="".join(holders[-1:]),
        asked=_asked([directory, *(part.path for part in parts)]),
        has_journal=any(each.has_journal for each in records),
        problems=tuple(problems),
        other=_usage([directory, *(part.path for part in parts)]) if has_usage else (),
    )


def _usage(places: Sequence[Path]) -> tuple[Usage, ...]:
    return usage_of([each for place in dict.fromkeys(places) for each in find_leftovers(place)])


def _in_order(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(merged(lists, lambda event: event.time))


def _holder(directory: Path) -> str:
    found = lock.describe(directory)
    return "" if found is None or found[1] else str(found[0])


def _how_it_died(places: Sequence[Path]) -> str:
    """Return what the lock that a dead job left shows of its end. Independent."""
    for place in places:
        found = lock.read_holder(place / layout.LOCK)
        if found is None:
            continue
        here = lock.this_holder()
        if found.host != here.host or found.pid_ns != here.pid_ns:
            age = duration_words(max(0.0, time.time() - _modified(place / layout.LOCK)))
            return f"no heartbeat of {found} for {age}: it was killed, or its node was lost"
        if found.boot_id != here.boot_id:
            return f"{found.host} was restarted while {found} was running"
        return f"{found} was killed: it does not exist any more, and has left its lock"
    return "it ended without closing its checkpointer"


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _asked(places: Sequence[Path]) -> str:
    for place in places:
        try:
            halt = read_halt(place)
        except (HpcckptError, OSError):
            return "something that is not understood"
        if halt is not None:
            return str(halt) or "now"
    return ""


# -- existing steps ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Standing:
    steps: tuple[StepInfo, ...]
    tags: dict[int, tuple[str, ...]]


def _standing(part: RunPart, best: Best | None, manifests: discovery.Manifests) -> _Standing:
    steps = tuple(info for info in discovery.scan(part.path, manifests) if info.manifest or info.path.exists())
    named = {name for info in steps if info.manifest for name in info.manifest.metrics}
    chosen = best or next((Best(name) for name in ("val_loss", "loss") if name in named), None)
    found = discovery.best_of(steps, chosen)[:1] if chosen else []
    restart = discovery.first_restorable(reversed(steps))[0]
    newest = restart.step if restart is not None else None
    pinned = pins.pins(part.path)
    tags = {}
    for info in steps:
        facts = {
            "best": info.step in found,
            "latest": info.step == newest,
            "pinned": info.step in pinned,
            "damaged": bool(info.problem),
        }
        tags[info.step] = tuple(tag for tag, is_so in facts.items() if is_so)
    return _Standing(steps, tags)


def _with_fate(records: JournalRecords, standing: _Standing) -> tuple[list[Save], list[Save]]:
    """Return the saves of a part, each with its state: steps that are not in the journal, and those that are."""
    there = {info.step: info for info in standing.steps}
    last = {save.step: number for number, save in enumerate(records.saves)}
    recorded = []
    for number, save in enumerate(records.saves):
        is_kept = last[save.step] == number and _is_kept(save, there.get(save.step), records.part)
        state = "kept" if is_kept else "removed" if save.step in records.removed else "gone"
        recorded.append(replace(save, state=state, tags=standing.tags.get(save.step, ()) if is_kept else ()))
    known = {save.step for save in recorded if save.state == "kept"}
    unrecorded = [_unrecorded(info, records.part, standing) for info in standing.steps if info.step not in known]
    if records.has_journal:  # a step is committed a moment before it is in the journal
        unrecorded = [save for save in unrecorded if not _is_new(save)]
    return sorted(unrecorded, key=lambda save: save.time), recorded


def _is_kept(save: Save, info: StepInfo | None, part: RunPart) -> bool:
    if info is None:  # it may have come while the journal was read
        return _is_new(save) and (part.path / layout.step_dirname(save.step)).is_dir()
    return info.manifest is None or not save.save_id or info.manifest.save_id == save.save_id


def _is_new(save: Save) -> bool:
    return abs(time.time() - save.time) < JUST_NOW_S


def _unrecorded(info: StepInfo, part: RunPart, standing: _Standing) -> Save:
    """Return an existing step that is not in a journal, from its manifest."""
    manifest = info.manifest
    created = iso_time(manifest.created) if manifest else None
    if created is None:
        created = info.path.stat().st_mtime if info.path.exists() else 0.0
    return Save(
        part=part.name,
        time=created,
        step=info.step,
        nbytes=manifest.nbytes if manifest else 0,
        epoch=journal.epoch_of(manifest.objects) if manifest else None,
        files=len(manifest.files) if manifest else None,
        n_ranks=manifest.n_ranks if manifest else None,
        level=manifest.level if manifest else "",
        save_id=manifest.save_id if manifest else "",
        metrics=dict(manifest.metrics) if manifest else {},
        tags=standing.tags[info.step],
    )


# -- what hpcckpt train wrote ----------------------------------------------------------------------


def _epochs(log: Sequence[Entry]) -> list[Epoch]:
    found = []
    for entry in log:
        when, epoch, cycle = time_of(entry), count_of(entry, "epoch"), count_of(entry, "cycle")
        if entry["event"] == "epoch" and when is not None and epoch is not None and cycle is not None:
            found.append(Epoch(f"cycle-{cycle}", when, epoch, count_of(entry, "step") or 0, metrics_of(entry)))
    return found
