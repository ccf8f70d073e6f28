"""The scratch tier of a run: where saves commit steps, which are then drained to the run directory and restored."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.options import Options
from hpcckpt.core.plan import SaveJob
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import (
    CollectiveError,
    CorruptError,
    HpcckptError,
    LockedError,
    LockLostError,
    ManifestError,
    ReadOnlyError,
    RetiredError,
    StorageError,
    UnreadableError,
)
from hpcckpt.rundir import commit, pins
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.lock import longest_watch_s
from hpcckpt.rundir.run_directory import Candidate, Lineage, NodeMap, RunDirectory
from hpcckpt.saving.pending import InFlightSave
from hpcckpt.tiers.drain import Drain
from hpcckpt.tiers.drain_queue import DrainQueue
from hpcckpt.tiers.scratch_dir import make_scratch, owner_id_of, write_owner_id
from hpcckpt.tiers.scratch_steps import ScratchSteps, by_save_id, not_drained

_log = logging.getLogger("hpcckpt")
_OTHER_JOB_DRAINS = frozenset({LockedError.kind, LockLostError.kind, ReadOnlyError.kind})
_UNREADABLE = frozenset(
    {CorruptError.kind, ManifestError.kind, StorageError.kind, UnreadableError.kind, RetiredError.kind}
)


class ScratchTier:
    """The scratch tier of a run, and the run directory that its steps are drained to.

    Attributes
    ----------
    scratch, persistent : RunDirectory
        The directory on scratch that this rank sees, where saves commit steps; and the run directory.
    steps : ScratchSteps
        The steps on scratch.
    drains : DrainQueue
        The drains of these to the run directory.
    """

    def __init__(self, comm: Communicator, scratch: RunDirectory, directory: Path, options: Options) -> None:
        self.comm, self.scratch = comm, scratch
        self.persistent = RunDirectory(
            directory, comm.rank, NodeMap(comm.size), scratch.backend, replace(options, recycle=False), scratch.system
        )
        self.steps = ScratchSteps(comm, scratch, self.persistent)
        self.drains = DrainQueue(comm, scratch, self.persistent)
        scratch.is_scratch = True
        scratch.journal = self.persistent.journal
        self.persistent.journal = Journal(directory, is_writing=False, system=scratch.system)
        self._is_open = False
        self._files = scratch.system.files

    # -- open --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open both tiers for writing, and start to drain what an earlier job left on scratch. Collective.

        Raises
        ------
        CollectiveError
            If another job writes in one of them, or they cannot be written.
        """
        if self._is_open:
            return
        base = self.scratch.lineage.step
        for info in self._open(-1 if base is None else base):
            self.drains.start_left(info)
        self._is_open = True

    def _open(self, newest: float) -> list[StepInfo]:
        """Open both tiers, remove invalid steps from scratch, pin those to be drained; return these. Collective."""
        comm = self.comm
        with comm.allowing(2 * longest_watch_s()):  # for the locks of both
            if self.scratch.nodes.is_shared:
                return comm.on_root("open run directory and scratch", lambda: self._open_on_root(newest))
            owner_id = comm.on_root("open run directory", self._open_persistent)
            comm.agree("open scratch", self._open_scratch)
        self.steps.discover(is_strict=True)
        kept, wanted = comm.on_root("open scratch: choose", lambda: self._choose(newest))
        comm.agree("open scratch: tidy", lambda: self._tidy(owner_id, kept, wanted))
        return wanted

    def _open_on_root(self, newest: float) -> list[StepInfo]:
        """Do the same where root is the only leader. Root only."""
        owner_id = self._open_persistent()
        self._open_scratch()
        kept, wanted = self._choose(newest)
        self._tidy(owner_id, kept, wanted)
        return wanted

    def _open_persistent(self) -> str:
        """Open the run directory; return its owner id, a new one if it had none. Root only."""
        self.persistent.reacquire()
        self.persistent.open()
        return owner_id_of(self.persistent.path, self._files) or write_owner_id(self.persistent.path, files=self._files)

    def _open_scratch(self) -> None:
        """Make and lock scratch on this rank's node; leaders do it. Independent."""
        if self.scratch.is_leading:
            make_scratch(self.scratch.path, self._files)
            self.scratch.reacquire()
            self.scratch.open()

    def _choose(self, newest: float) -> tuple[set[str], list[StepInfo]]:
        """Return the `save_id` of what is kept on scratch, and what is to be drained, up to a step. Root only."""
        persistent, found = self._persistent_steps(), self.steps.found(is_strict=True)
        valid = self.steps.valid(persistent, found)
        kept = set(by_save_id(valid))
        for save_id, info in not_drained(found, persistent).items():
            if save_id not in kept:
                why = info.problem or "the run continued without it"
                _log.warning("hpcckpt: step %d is removed from scratch: %s", info.step, why)
        missing = not_drained(valid, persistent).values()
        return kept, [info for info in missing if info.is_restorable and info.step <= newest]

    def _tidy(self, owner_id: str, kept: Collection[str], wanted: Collection[StepInfo]) -> None:
        """Remove what is not kept from this rank's node, and pin what is to be drained; leaders do it. Independent."""
        scratch, steps = self.scratch, {info.step for info in wanted}
        if not scratch.is_leading:
            return
        is_ours = owner_id_of(scratch.path, self._files) == owner_id
        there = [scratch.steps.mark(info) for info in scratch.steps.discover()]
        if there and not is_ours and scratch.is_root:
            _log.warning("hpcckpt: steps of an earlier run are removed from %s", scratch.path)
        for info in there:
            pins.unpin(scratch.path, info.step, files=self._files)
            if not is_ours or (info.manifest is not None and info.manifest.save_id not in kept):
                scratch.workspace.retire(info.path.name)
            elif info.step in steps:
                self.committed(info.step)
        if not is_ours:  # last: a kill before it must not make steps of an earlier run valid
            write_owner_id(scratch.path, owner_id, self._files)

    # -- what can be restored ----------------------------------------------------------------------

    def _persistent_steps(self) -> Sequence[StepInfo]:
        """Return what the run directory holds. Root only."""
        self.persistent.workspace.try_restore_names()
        return self.persistent.steps.discover()

    def candidates(self) -> list[Candidate]:
        """Return the steps that may be restored, newest first, of each the copy on scratch first. Root only.

        Scratch is read where all ranks see it; else `drain_missing` has drained what was there alone.
        """
        persistent = self._persistent_steps()
        on_scratch = self.steps.valid(persistent) if self.scratch.nodes.is_shared else ()
        found = [Candidate(info.step, info.path.parent) for info in (*on_scratch, *persistent)]
        return sorted(found, key=lambda candidate: -candidate.step)  # of equal steps the first stays first

    def infos(self) -> tuple[StepInfo, ...]:
        """Return one restorable copy of each step, that on scratch first, in rising order. Root only."""
        persistent = self._persistent_steps()
        infos = (*persistent, *self.steps.valid(persistent))
        found = {info.step: info for info in infos if info.is_restorable}
        return tuple(found[step] for step in sorted(found))

    def drain_missing(self, step: int | None) -> tuple[str, ...]:
        """Drain what can be restored from the run directory only; return why steps are skipped. Collective.

        Raises
        ------
        CollectiveError
            If something on scratch is whole, and cannot be drained.
        """
        if self.scratch.nodes.is_shared:
            return ()
        self.steps.discover()
        missing, skipped = self.comm.on_root("list steps on scratch", self._missing_and_lacking)
        if not missing or step not in {None, *missing}:
            return skipped if step is None else ()
        try:
            wanted = self._open(float("inf") if step is None else step)
        except CollectiveError as error:
            if not set(error.kinds.values()) <= _OTHER_JOB_DRAINS:
                raise
            return (*skipped, f"step {missing[-1]} on scratch was skipped: {error}")
        self._is_open = True
        return (*skipped, *(text for info in wanted if (text := self._drain_now(info))))

    def _missing_and_lacking(self) -> tuple[list[int], tuple[str, ...]]:
        """Return the steps that are on scratch alone, and why those that lack parts are skipped. Root only."""
        persistent, found = self._persistent_steps(), self.steps.found()
        missing = not_drained(self.steps.valid(persistent, found), persistent).values()
        newest = max((info.step for info in (*persistent, *missing) if info.is_restorable), default=-1)
        lacking = [info.problem for info in found if info.problem and info.step > newest]
        return [info.step for info in missing], tuple(f"{problem}; skipped" for problem in lacking)

    def _drain_now(self, info: StepInfo) -> str:
        """Drain one step; return why it is skipped if it cannot be read. Collective."""
        drain = self.drains.start_left(info)
        try:
            self.drains.wait(drain)
        except CollectiveError as error:
            if not set(error.kinds.values()) <= _UNREADABLE:
                raise
            self.drains.drop(drain)
            self.scratch.steps.damaged[info.step] = drain.save_id
            return f"step {info.step} on scratch was skipped: {error}"
        return ""

    def resume_from(self, lineage: Lineage) -> None:
        """Note which step was restored: the run resumes from it in both tiers. Independent."""
        with self.persistent.workspace.commit_mutex:
            self.persistent.lineage = lineage
        assert lineage.step is not None
        self.drains.leave_behind(lineage.step)

    # -- a save ------------------------------------------------------------------------------------

    def check_conflicts(self, step: int, *, overwrite: bool) -> None:
        """Raise if a step could not be committed in the run directory. Root only."""
        self.persistent.reacquire()
        self.persistent.open()
        with self.persistent.workspace.commit_mutex:  # a drain may be committed just now: its step is then the lineage
            self.persistent.check_conflicts(step, overwrite=overwrite)

    def committed(self, step: int) -> None:
        """Keep a step on scratch until it is drained, also after a kill. Root only, or the leader of each node."""
        try:
            pins.pin(self.scratch.path, step, files=self._files)  # S1
        except HpcckptError as error:
            self.scratch.steps.kept.add(step)
            _log.warning("hpcckpt: step %d cannot be pinned on scratch, where this job keeps it: %s", step, error)

    @contextlib.contextmanager
    def newer_aside(self, step: int) -> Iterator[None]:
        """Move aside in the run directory what is newer, while the block commits a step on scratch. Root only.

        From the commit on a restart must find the step, and no newer one that the run went back from.  If the block
        fails, all is as it was. An abandoned run moves nothing (see `RunDirectory.check_current`).
        """
        persistent = self.persistent
        with contextlib.ExitStack() as held:
            held.enter_context(persistent.workspace.commit_mutex)
            persistent.check_current(step)
            is_moving = persistent.options.on_newer == "aside"
            newer = persistent.check_conflicts(step, overwrite=True).aside if is_moving else ()
            if newer:
                lock = persistent.open()  # checks it: if it was lost, newer steps may be another job's
                renames = held.enter_context(persistent.workspace.renaming(lock))
                held.enter_context(commit.moved_aside(renames, newer, step))
            else:
                held.close()  # a drain may be committed meanwhile
            yield

    def durable(self, save: InFlightSave) -> SavedStep:
        """Wait until a save that was committed is in the run directory. Collective."""
        assert isinstance(save.drain, Drain)
        return self.drains.wait(save.drain)

    def start_drain(self, number: int, saved: SavedStep, job: SaveJob, *, overwrite: bool) -> Drain:
        """Start to drain a step that was committed on scratch; return its drain. Independent."""
        return self.drains.start(number, saved, job.save_id, overwrite=overwrite)
