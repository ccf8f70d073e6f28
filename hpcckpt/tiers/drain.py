"""The drain of one step: what is known of it here, and what the ranks do.

Two collective tasks: copy (D1, D2); verify and commit (D3, D4).  The steps are those of :mod:`hpcckpt.tiers`.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpcckpt.collective.background import CollectiveTask
from hpcckpt.collective.outcomes import Outcome, reduce_outcomes
from hpcckpt.collective.planner import SavePlan
from hpcckpt.core import failpoints
from hpcckpt.core.plan import FileRecord, StoredEntry
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import (
    CollectiveError,
    Failure,
    LockLostError,
    NoSpaceError,
    RetiredError,
    StorageError,
    as_failure,
    collective_error,
)
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import commit, discovery, pins
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.run_directory import Lineage, RunDirectory
from hpcckpt.saving import node_local
from hpcckpt.tiers import copy
from hpcckpt.tiers.copy import Piece, Rules

_log = logging.getLogger("hpcckpt")
T = TypeVar("T", Piece, StoredEntry)


@dataclass(slots=True, eq=False)
class Drain:
    """One step that is drained, on this rank.

    Attributes
    ----------
    number : int
        Which save of the checkpointer it is; -1 of one that an earlier job left.
    saved : SavedStep
        The step on scratch.
    overwrite : bool
        Whether it replaces another save of its number.
    began : float
        When the save began, or the drain if it is repeated, on the monotonic clock.
    manifest : Manifest or None
        Of a step that an earlier job left on several nodes: this rank's may have nothing of it.
    task : CollectiveTask or None
        The task that is running.
    drained : SavedStep or None
        The step in the run directory, once it is known here to be there.
    failures : mapping of int to Failure
        What prevented that.
    is_committed : bool
        Root only: True if the run directory has it; set under `commit_mutex`, before any rank knows the outcome.
    is_reported : bool
        Whether its outcome was returned or raised already.
    warnings : tuple of str
        Root only: what went wrong on scratch meanwhile, with nothing lost.
    is_left : bool
        Whether the run went back to an earlier step since: then it does not continue from this one.
    """

    number: int
    saved: SavedStep
    save_id: str
    overwrite: bool
    began: float
    manifest: Manifest | None = None
    task: CollectiveTask | None = None
    drained: SavedStep | None = None
    failures: Mapping[int, Failure] | None = None
    is_committed: bool = False
    is_reported: bool = False
    warnings: tuple[str, ...] = ()
    is_left: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known here."""
        return self.drained is not None or self.failures is not None

    def error(self, failures: Mapping[int, Failure]) -> CollectiveError:
        """Return the error that every rank raises. Pure."""
        return collective_error(f"drain step {self.saved.step} from {self.saved.path} to the run directory", failures)


class CopyReport(NamedTuple):
    """What a rank copied of a step: bytes of each file; of a leader also the entries of its node, and warnings."""

    nbytes: Counter[str]
    entries: Sequence[StoredEntry]
    warnings: tuple[str, ...]


class DrainOutcome(NamedTuple):
    """What root sends all ranks about a drain: the drained step, the failures by rank, or the entries to read back."""

    drained: SavedStep | None = None
    failures: Mapping[int, Failure] = {}
    entries: tuple[StoredEntry, ...] = ()


class DrainTasks:
    """What the ranks do to drain a step, on threads, without messages; `drains` are those that are known, in order."""

    def __init__(self, scratch: RunDirectory, persistent: RunDirectory, rules: Rules, drains: Sequence[Drain]) -> None:
        self._scratch, self._persistent = scratch, persistent
        self._rules, self._drains = rules, drains
        self._files = scratch.system.files

    # -- what is where -----------------------------------------------------------------------------

    def _source(self, drain: Drain) -> Path:
        return self._scratch.path / layout.step_dirname(drain.saved.step)

    def _manifest(self, drain: Drain) -> Manifest:
        """Return the manifest of a step that is on scratch here. Independent."""
        if drain.manifest is not None:
            return drain.manifest
        manifest = discovery.read_manifest(self._source(drain), self._files)
        if manifest.save_id != drain.save_id:
            raise RetiredError(f"{self._source(drain)} was replaced on scratch before it was drained")
        return manifest

    def _files_here(self, drain: Drain, manifest: Manifest) -> Sequence[FileRecord]:
        """Return the files of a step that are on this rank's node. Independent."""
        if self._scratch.nodes.is_shared:
            return manifest.files
        return [file for file in manifest.files if discovery.is_there(self._source(drain), file, self._files)]

    def _share(self, items: Sequence[T]) -> list[T]:
        """Return this rank's share of what is to be done on its node. Pure."""
        neighbours = self._scratch.nodes.ranks_with(self._scratch.rank)
        return copy.share(items, neighbours.index(self._scratch.rank), len(neighbours), lambda item: item.nbytes)

    # -- copy --------------------------------------------------------------------------------------

    def copy(self, drain: Drain) -> CopyReport:
        """Copy this rank's share of the pieces, and make it durable. Independent."""
        warnings = node_local.retain_parts(self._scratch)
        failpoints.reached("drain-begun", self._scratch.rank)
        source, manifest = self._source(drain), self._manifest(drain)
        staged = copy.staging_of(self._persistent.path, manifest)
        if self._scratch.is_root:
            self._prepare(drain, manifest, staged)
        for directory in (staged.path, staged.path / layout.DATA):
            self._files.mkdir(directory)
        files = self._files_here(drain, manifest)
        pieces = self._share(copy.pieces_of(files))
        copy.copy_pieces(source, staged.path, pieces, self._rules, is_resumed=False)  # D1
        copy.sync_files(staged.path, {piece.path for piece in pieces}, self._files)  # D2
        entries = copy.entries_of(source, manifest, files) if self._scratch.is_leading else ()
        nbytes: Counter[str] = Counter()
        for piece in pieces:
            nbytes[piece.path] += piece.nbytes
        return CopyReport(nbytes, entries, warnings)

    def _prepare(self, drain: Drain, manifest: Manifest, staged: commit.Staged) -> None:
        """Do what may fail before the first byte. Root only."""
        persistent, workspace = self._persistent, self._persistent.workspace
        workspace.reserve(staged.name, persistent)  # before a lock that was released is taken again, which sweeps
        persistent.reacquire()
        persistent.open()
        workspace.reserve(staged.name, persistent)  # after one that was lost; if it is lost again, step D4 notices
        with workspace.commit_mutex:  # the drain before may be committed just now: its step is then our lineage
            if not self._is_drained(drain):
                self._check_conflicts(drain)
        need = SavePlan((), manifest.tensors, manifest.nbytes, ())
        workspace.check_space(need, persistent.n_ranks)

    def reduce_copy(self, drain: Drain, outcomes: Sequence[Outcome]) -> DrainOutcome:
        """Return what is to be read back, if all ranks copied their shares. Root only."""
        return self._reduced(drain, outcomes, lambda: self._entries(drain, [outcome.value for outcome in outcomes]))

    def _entries(self, drain: Drain, reports: Sequence[CopyReport]) -> DrainOutcome:
        """Return the entries of all nodes; raise if files are on none of them any more. Root only."""
        total: Counter[str] = Counter()
        for report in reports:
            total.update(report.nbytes)
        files = self._manifest(drain).files
        lost = [file.path for file in files if file.path not in total or total[file.path] < file.nbytes]
        if lost:
            raise StorageError(f"{', '.join(lost[:5])} of step {drain.saved.step} are on no node any more")
        drain.warnings = tuple(text for report in reports for text in report.warnings)
        return DrainOutcome(entries=tuple(entry for report in reports for entry in report.entries))

    # -- verify and commit -------------------------------------------------------------------------

    def verify(self, drain: Drain, entries: Sequence[StoredEntry]) -> None:
        """Compare this rank's share of the copy with the checksums of the save. Independent."""
        source, manifest = self._source(drain), self._manifest(drain)
        staged = copy.staging_of(self._persistent.path, manifest)
        files = self._files_here(drain, manifest)
        names = {file.path for file in files}
        mine = self._share([entry for entry in entries if entry.file in names])
        headers = files if self._scratch.is_leading else ()  # one look at them is enough
        copy.verify_files(source, staged.path, manifest, headers, mine, self._rules)  # D3

    def reduce_commit(self, drain: Drain, outcomes: Sequence[Outcome]) -> DrainOutcome:
        """Commit what all ranks copied and verified. Root only."""
        return self._reduced(drain, outcomes, lambda: DrainOutcome(self._commit(drain)))

    def _reduced(self, drain: Drain, outcomes: Sequence[Outcome], fn: Callable[[], DrainOutcome]) -> DrainOutcome:
        """Return what `fn` returns, unless it or a rank failed: the copy is removed then. Root only."""
        result, failures = reduce_outcomes(outcomes, fn)
        if result is not None:
            return result
        self._abort(copy.staged_as(self._persistent.path, drain.saved.step, drain.save_id))
        _log.error("hpcckpt: %s", drain.error(failures))
        return DrainOutcome(failures=failures)

    def _abort(self, staged: commit.Staged) -> None:
        """Remove a copy, unless another job may be making it now: it has the same name there. Root only."""
        workspace = self._persistent.workspace
        with workspace.commit_mutex, contextlib.suppress(StorageError, NoSpaceError):
            lock = self._persistent.lock
            if workspace.is_reserved(staged.name) and lock is not None and lock.is_mine():
                workspace.abort(staged)

    def _commit(self, drain: Drain) -> SavedStep:
        """Commit the step in the run directory, and retire old ones there. Root only."""
        persistent, manifest = self._persistent, self._manifest(drain)
        staged = copy.staging_of(persistent.path, manifest)
        lock = persistent.open()  # it may have been lost
        path = persistent.path / layout.step_dirname(manifest.step)
        with persistent.workspace.commit_mutex:
            if self._is_drained(drain):
                self._abort(staged)
            elif not persistent.workspace.is_reserved(staged.name):
                raise LockLostError(f"another job held {persistent.path}; the step stays on scratch, try again")
            else:
                persistent.check_current(manifest.step)
                conflicts = self._check_conflicts(drain)
                copy.commit_staged(staged, manifest, lock, conflicts, persistent.system)  # D4
                persistent.note_commit()
                if not self._is_late(drain):
                    persistent.lineage = Lineage(manifest.run_id, manifest.save_id, manifest.step)
            drain.is_committed = True
        persistent.workspace.release(staged.name)
        failpoints.reached("drain-published", 0)
        kept, warnings = self._apply_retention(drain, lock)
        seconds = self._scratch.system.clock.monotonic() - drain.began
        self._scratch.journal.drained(manifest.step, seconds, self._scratch.path)
        _log.info("hpcckpt: drained step=%d to=%s durable=%.3fs", manifest.step, path, seconds)
        warnings = (*drain.warnings, *warnings)
        return replace(drain.saved, path=path, seconds=seconds, kept=kept, warnings=warnings, tier="run")

    def _check_conflicts(self, drain: Drain) -> commit.Conflicts:
        """Return what the step replaces or moves aside; raise if it may not. Root only, under `commit_mutex`."""
        is_late = self._is_late(drain)
        return self._persistent.check_conflicts(drain.saved.step, overwrite=drain.overwrite, is_late=is_late)

    def _is_late(self, drain: Drain) -> bool:
        """Return True if a later save was drained while this one failed, or the run went back. Root only.

        Under `commit_mutex`.
        """
        if drain.is_left:
            return True
        drains = [*self._drains]  # the calling thread may forget the first ones meanwhile
        later = drains[drains.index(drain) + 1 :]
        return any(other.is_committed and other.saved.step > drain.saved.step for other in later)

    def _is_drained(self, drain: Drain) -> bool:
        """Return True if the run directory has the save, and will keep it. Root only, under `commit_mutex`."""
        self._persistent.workspace.restore_names()  # those of an attempt that failed
        found = discovery.inspect_step(self._persistent.path, drain.saved.step, files=self._files)
        return found.is_restorable and found.manifest is not None and found.manifest.save_id == drain.save_id

    def _apply_retention(self, drain: Drain, lock: RunLock) -> tuple[int, tuple[str, ...]]:
        """Unpin the step on scratch, and retire old ones of the run directory; a failure is a warning. Root only."""
        persistent, n_kept = self._persistent, 0
        try:
            self.unpin(drain)
            kept = persistent.workspace.retain(lock, persistent.options, persistent.steps)
            n_kept, problem = kept.n_steps, kept.problem
            self._scratch.journal.removed(kept.removed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the step is there
            problem = as_failure(error).text
        return n_kept, (f"retention after step {drain.saved.step} failed: {problem}",) if problem else ()

    def unpin(self, drain: Drain) -> None:
        """Let retention on scratch have a step that is drained. Root only, or the leader of each node."""
        self._scratch.steps.kept.discard(drain.saved.step)
        with contextlib.suppress(StorageError, NoSpaceError):
            pins.unpin(self._scratch.path, drain.saved.step, files=self._files)  # D5
