"""The run directory behind scratch of several places: the disks of the nodes of a job, each seen by its own ranks.

A step is at all places together: each has the files that its own ranks wrote, with the manifest
(:mod:`hpcckpt.closing`).  The lowest rank of a place leads it: it holds the lock there, and tells root what is there;
root decides.  Each rank drains, and reads back, files of its own place.  A step is restored from the run directory:
one that is not there yet is drained first.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt import closing, copying, discovery, layout, publishing
from hpcckpt.copying import Piece
from hpcckpt.discovery import StepInfo
from hpcckpt.draining import Outcome, Task
from hpcckpt.errors import (
    CollectiveError,
    CorruptError,
    LockedError,
    LockLostError,
    ManifestError,
    ReadOnlyError,
    RetiredError,
    StorageError,
)
from hpcckpt.manifest import Manifest
from hpcckpt.plan import FileRecord, StoredEntry
from hpcckpt.run import Candidate
from hpcckpt.tiers.behind import T, Tiers
from hpcckpt.tiers.counting import counting, is_same
from hpcckpt.tiers.drain import Drain, left_by_earlier_job
from hpcckpt.tiers.parts import Part, newest_of_each, parts_in, together
from hpcckpt.tiers.place import make_scratch, mark_of, put_mark, translated

_log = logging.getLogger("hpcckpt")
_NOT_OURS_TO_DRAIN = frozenset({LockedError.kind, LockLostError.kind, ReadOnlyError.kind})
_UNREADABLE = frozenset({CorruptError.kind, ManifestError.kind, StorageError.kind, RetiredError.kind})


class Brought(NamedTuple):
    """What a rank copied of a drained step: how many bytes of each file, the entries of its place, what went wrong."""

    nbytes: Counter[str]
    entries: tuple[StoredEntry, ...]
    warnings: tuple[str, ...]


class TiersOfPlaces(Tiers):
    """The run directory behind a run on scratch of several places; see `Tiers`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seen: list[StepInfo] = []

    # -- before the first save ---------------------------------------------------------------------

    def open(self) -> None:
        """Open both, at all places, and drain what an earlier job left there. Collective.

        Raises
        ------
        CollectiveError
            If another job writes in one of them, or they cannot be written.
        """
        if not self._is_open:
            base = self.near.lineage.step
            for info in self._open_places(-1 if base is None else base):
                self._begin(self._left(info))

    def _open_places(self, upto: float) -> list[StepInfo]:
        """Open all places, and take away what does not count; return what is to be drained. Collective."""
        comm = self.near.comm
        before, now = comm.on_root("open run directory", self._open_marked)
        comm.agree("open scratch", lambda: self._open_place(before, now))
        self._look(is_sure=True)
        keep, pending = comm.on_root("open scratch: choose", self._decide)
        wanted = [info for info in pending if info.step <= upto]
        comm.agree("open scratch: tidy", lambda: self._drop_others(keep, {info.step for info in wanted}))
        self._is_open = True
        return wanted

    def _open_marked(self) -> tuple[str, str]:
        """Open the run directory; return the mark that stood there, and the one that stands there now. Root only."""
        self._open_home()
        with translated("open run directory"):
            before = mark_of(self.home.directory)
            return before, before or put_mark(self.home.directory)

    def _open_place(self, before: str, now: str) -> None:
        """Take the lock of this rank's place, and remove what another run left there; the leader does. Independent."""
        near = self.near
        if not near.is_leading:
            return
        make_scratch(near.directory)
        publishing.regain(near)
        publishing.open_for_writing(near)
        with translated("open scratch"):
            if not before or mark_of(near.directory) != before:
                for step in discovery.step_numbers(near.directory):
                    discovery.unpin(near.directory, step)
                    near.workspace.retire(layout.step_dirname(step))
            put_mark(near.directory, now)

    def _decide(self) -> tuple[set[tuple[int, str]], list[StepInfo]]:
        """Return which saves stay on scratch, and those of them that are not in the run directory. Root only."""
        counting, pending = self._counting_of_places()
        keep, far = {_identity(info) for info in counting}, self._far()
        for info in self._seen:
            if _identity(info) not in keep and not is_same(info, far.get(info.step)):
                why = info.problem or "the run went on without it"
                _log.warning("hpcckpt: step %d is removed from scratch: %s", info.step, why)
        return keep, pending

    def _drop_others(self, keep: set[tuple[int, str]], wanted: set[int]) -> None:
        """Retire what does not count at this rank's place, and pin what is to be drained; leaders do. Independent."""
        near = self.near
        if not near.is_leading:
            return
        with translated("open scratch"):
            for info in map(near.marked, discovery.scan(near.directory, near.manifests)):
                discovery.unpin(near.directory, info.step)
                if info.manifest is not None and _identity(info) not in keep:
                    near.workspace.retire(info.path.name)
                elif info.step in wanted:
                    self.committed(info.step)

    # -- what counts -------------------------------------------------------------------------------

    def look(self) -> None:
        """Let the leaders tell root what they have. Collective."""
        self._look(is_sure=False)

    def _look(self, *, is_sure: bool) -> None:
        """Do so; `is_sure` if what is not seen will be taken for gone, so that nothing may be passed over. Collective.

        Raises
        ------
        CollectiveError
            If a place cannot be looked at.
        """
        comm = self.near.comm
        known = comm.on_root("look at scratch", lambda: {part.save_id for part in self._parts((), is_sure=is_sure)})
        told = comm.reduce_on_root(
            "look at scratch", lambda: self._parts(() if comm.is_root else known, is_sure=is_sure)
        )
        self._seen = together(told or (), self.near.directory)

    def _parts(self, known: Collection[str], *, is_sure: bool) -> tuple[Part, ...]:
        """Return what this rank's place has; the leader says it. Independent."""
        near = self.near
        if not near.is_leading or not (self._is_ours() if is_sure else self._is_ours_to_read()):
            return ()
        return parts_in(near.directory, near.manifests, known, is_sure=is_sure)

    def _counting_of_places(self) -> tuple[list[StepInfo], list[StepInfo]]:
        """Return the steps on scratch that count, and those of them that are not in the run directory. Root only."""
        far = self._far()
        whole = [info for info in self._seen if info.is_restorable]
        found = newest_of_each(counting(whole, tuple(far.values())))
        return found, [info for info in found if not is_same(info, far.get(info.step))]

    def candidates(self) -> list[Candidate]:
        """Return the steps that may be restored, newest first: those in the run directory. Root only."""
        return [Candidate(step, self.home.directory) for step in sorted(self._far(), reverse=True)]

    def infos(self) -> tuple[StepInfo, ...]:
        """Return one restorable copy of each step, in rising order, as `look` has found it. Root only."""
        found = {info.step: info for info in self._far().values() if info.is_restorable}
        found |= {info.step: info for info in self._counting_of_places()[0]}
        return tuple(found[step] for step in sorted(found))

    # -- before a restore --------------------------------------------------------------------------

    def bring_home(self, step: int | None) -> tuple[str, ...]:
        """Drain what may be restored and is on scratch alone; say what cannot be drained. Collective.

        Raises
        ------
        CollectiveError
            If something on scratch is whole, and the run directory does not take it.
        """
        self.look()
        pending, passed_over = self.near.comm.on_root("look at scratch", self._pending)
        if not pending or step not in {None, *pending}:
            return passed_over if step is None else ()
        try:
            wanted = self._open_places(float("inf") if step is None else step)
        except CollectiveError as error:
            if not set(error.kinds.values()) <= _NOT_OURS_TO_DRAIN:
                raise
            return (*passed_over, f"step {pending[-1]} on scratch was skipped: {error}")
        return (*passed_over, *(text for info in wanted if (text := self._bring(info))))

    def _pending(self) -> tuple[list[int], tuple[str, ...]]:
        """Return the steps that are on scratch alone, and what is to be said of those that lack parts. Root only."""
        found, pending = self._counting_of_places()
        newest = max((info.step for info in (*found, *self._far().values()) if info.is_restorable), default=-1)
        lacking = [info.problem for info in self._seen if info.problem and info.step > newest]
        return [info.step for info in pending], tuple(f"{problem}; skipped" for problem in lacking)

    def _bring(self, info: StepInfo) -> str:
        """Drain one step; return why it cannot be read, if that is so. Collective."""
        drain = self._left(info)
        self._begin(drain)
        try:
            self.wait(drain)
        except CollectiveError as error:
            if not set(error.kinds.values()) <= _UNREADABLE:
                raise
            self._drains.remove(drain)  # the run goes on without it
            self.near.damaged[info.step] = drain.save_id
            return f"step {info.step} on scratch was skipped: {error}"
        return ""

    def _left(self, info: StepInfo) -> Drain:
        """Return the drain of a step that an earlier job left, or of one that this job could not drain. Independent."""
        made = replace(left_by_earlier_job(info), manifest=info.manifest)
        for drain in self._drains:
            if drain.save_id == made.save_id and drain.home is None:
                drain.failures = None
                return drain
        return made

    # -- a drain -----------------------------------------------------------------------------------

    def _source(self, drain: Drain) -> Path:
        """Return where the part of this rank's place stands. Pure."""
        return self.near.directory / layout.step_dirname(drain.saved.step)

    def _here(self, drain: Drain, files: Sequence[FileRecord]) -> list[FileRecord]:
        """Return the files that are at this rank's place. Independent."""
        return [file for file in files if discovery.is_there(self._source(drain), file)]

    def _mine(self, drain: Drain, items: Sequence[T], file_of: Callable[[T], str]) -> list[T]:
        """Return this rank's share of what is at its place. Independent."""
        rank, places = self.near.comm.rank, self.near.places
        assert places is not None
        beside, source = places.beside(rank), self._source(drain)
        is_here = {path: (source / path).is_file() for path in {file_of(item) for item in items}}
        here = [item for item in items if is_here[file_of(item)]]
        return copying.share(here, beside.index(rank), len(beside), lambda item: item.nbytes)

    def _headers(self, drain: Drain, manifest: Manifest) -> Sequence[FileRecord]:
        """Return the files whose headers this rank reads back: the leader those of its place. Independent."""
        return self._here(drain, manifest.files) if self.near.is_leading else ()

    def _copy(self, drain: Drain, before: Task | None) -> Any:
        """Retire old parts of this rank's place, then copy this rank's share. Independent."""
        if before is not None:
            before.join(f"step {drain.saved.step} waits for the drain before it")
        warnings = closing.tidy(self.near)
        return super()._copy(drain, before)._replace(warnings=warnings)

    def _brought(self, drain: Drain, manifest: Manifest, pieces: Sequence[Piece]) -> Brought:
        """Return how much of which files this rank copied, and the leader the entries of its place. Independent."""
        nbytes: Counter[str] = Counter()
        for piece in pieces:
            nbytes[piece.path] += piece.nbytes
        entries = copying.entries_of(self._source(drain), manifest, self._headers(drain, manifest))
        return Brought(nbytes, tuple(entries), ())

    def _entries(self, drain: Drain, manifest: Manifest, outcomes: Sequence[Outcome]) -> tuple[StoredEntry, ...]:
        """Return the entries of all places; refuse if files are at none of them any more. Root only."""
        brought: list[Brought] = [outcome.value for outcome in outcomes]
        total: Counter[str] = Counter()
        for each in brought:
            total.update(each.nbytes)
        lost = [file.path for file in manifest.files if file.path not in total or total[file.path] < file.nbytes]
        if lost:
            raise StorageError(f"{', '.join(lost[:5])} of step {drain.saved.step} are at no place any more")
        drain.warnings = tuple(text for each in brought for text in each.warnings)
        return tuple(entry for each in brought for entry in each.entries)

    def _settle(self, drain: Drain, outcome: Outcome) -> None:
        """Take in how a drain ended, and let retention have the part of this rank's place. Independent."""
        super()._settle(drain, outcome)
        if drain.home is not None and self.near.is_leading and not self.near.comm.is_root:
            with contextlib.suppress(StorageError):
                discovery.unpin(self.near.directory, drain.saved.step)  # D5


def _identity(info: StepInfo) -> tuple[int, str]:
    assert info.manifest is not None
    return info.step, info.manifest.save_id
