"""The run directory behind a run on scratch: what is drained to it, and what is restored from where."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hpcckpt import copying, discovery, layout, phases, publishing
from hpcckpt.collective import commit
from hpcckpt.collective.planner import SavePlan
from hpcckpt.config import Options
from hpcckpt.copying import Pace, Piece, Rules
from hpcckpt.discovery import StepInfo
from hpcckpt.draining import DRAIN_NICE, Draining, Outcome, Task
from hpcckpt.errors import CollectiveError, Failure, HpcckptError, LockLostError, StorageError, as_failure
from hpcckpt.holding import ArenaPool
from hpcckpt.journal import Journal
from hpcckpt.lock import RunLock
from hpcckpt.manifest import Manifest
from hpcckpt.plan import FileRecord, SaveJob, StoredEntry
from hpcckpt.run import Candidate, Lineage, Run, SavedStep
from hpcckpt.tiers.counting import counting, is_same
from hpcckpt.tiers.drain import Answer, Drain, answer_of, error_of, failures_of, left_by_earlier_job, manifest_of
from hpcckpt.tiers.place import make_scratch, mark_of, mark_on_scratch, put_mark, translated

_log = logging.getLogger("hpcckpt")
T = TypeVar("T", Piece, StoredEntry)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """How a run has two tiers: the options of the run directory, bytes per second, steps to keep on scratch."""

    home: Options
    bandwidth: float | None = None
    keep: int = 1

    @property
    def near(self) -> Options:
        """The options of the run on scratch."""
        return replace(self.home, max_to_keep=self.keep, keep_best=None, keep_period=None)


class Tiers:
    """The run directory behind a run on scratch.

    Parameters
    ----------
    near : Run
        The run on scratch, which saves go to.
    directory : pathlib.Path
        The run directory.
    options : TierOptions
        How steps get there, and which of them stay.
    """

    def __init__(self, near: Run, directory: Path, options: TierOptions) -> None:
        comm = near.comm
        self.near = near
        self.draining = Draining(comm, "drains")
        own = replace(options.home, recycle=False)
        self.home = Run(directory, comm, near.backend, own, self.draining, ArenaPool(1))
        near.journal, self.home.journal = self.home.journal, Journal(directory, is_writing=False)
        near.tier = self
        self._drains: list[Drain] = []
        self._lag = options.home.max_in_flight - 1 + options.keep
        rate = None if options.bandwidth is None else options.bandwidth / comm.size
        self._rules = Rules(1, Pace(rate), nice=DRAIN_NICE)
        self._n_begun = 0
        self._is_open = False

    # -- before the first save ---------------------------------------------------------------------

    def open(self) -> None:
        """Open both directories for writing, and drain what an earlier job left on scratch. Collective.

        Raises
        ------
        CollectiveError
            If another job writes in one of them, or they cannot be written.
        """
        if self._is_open:
            return
        for info in self.near.comm.on_root("open run directory and scratch", self._open):
            self._begin(left_by_earlier_job(info))
        self._is_open = True

    def _open(self) -> list[StepInfo]:
        """Take both locks, take away what scratch has of another history; return what is to be drained. Root only."""
        self._open_home()
        make_scratch(self.near.directory)
        publishing.regain(self.near)
        publishing.open_for_writing(self.near)
        with translated("open scratch"):
            is_ours = self._is_ours()
            mark = mark_of(self.home.directory) or put_mark(self.home.directory)
            far = self._far()
            counting = self._counting(far) if is_ours else []
            for info in discovery.scan(self.near.directory):
                discovery.unpin(self.near.directory, info.step)
                if info.step not in {each.step for each in counting}:
                    _log.warning("hpcckpt: %s: the run went on without it; removed from scratch", info.path)
                    self.near.workspace.retire(info.path.name)
            put_mark(self.near.directory, mark)  # last: what is not ours must not be taken for ours after a kill here
        base = self.near.lineage.step
        wanted = [i for i in counting if i.is_restorable and base is not None and i.step <= base]
        wanted = [i for i in wanted if not is_same(i, far.get(i.step))]
        for info in wanted:
            self.committed(info.step)
        return wanted

    def _open_home(self) -> None:
        publishing.regain(self.home)
        publishing.open_for_writing(self.home)

    # -- what counts -------------------------------------------------------------------------------

    def _far(self) -> dict[int, StepInfo]:
        """Return what the run directory holds. Root only."""
        return {info.step: info for info in discovery.scan(self.home.directory, self.home.manifests)}

    def _is_ours(self) -> bool:
        """Say whether what is on scratch is of this run directory, not of one that was here before. Root only.

        Raises
        ------
        HpcckptError
            If that cannot be found out.
        """
        mark = mark_of(self.home.directory)
        return bool(mark) and mark == mark_on_scratch(self.near.directory)

    def _is_ours_to_read(self) -> bool:
        """Say the same; from scratch that cannot be read nothing is restored. Root only, or each leader."""
        mark = mark_of(self.home.directory)
        try:
            return bool(mark) and mark == mark_on_scratch(self.near.directory)
        except HpcckptError as error:
            _log.warning("hpcckpt: [rank %d] scratch is passed over: %s", self.near.comm.rank, error)
            return False

    def _counting(self, far: Mapping[int, StepInfo]) -> list[StepInfo]:
        """Return the steps on scratch that the run directory has too, or has not gone on without. Root only."""
        near = discovery.scan(self.near.directory, self.near.manifests)
        return counting(near, tuple(far.values()))

    def look(self) -> None:
        """Find out what is on scratch, if that takes all ranks. Collective."""

    def bring_home(self, step: int | None) -> tuple[str, ...]:  # noqa: ARG002 - root reads all of scratch
        """Drain what can be restored from the run directory only; say what cannot be drained. Collective."""
        return ()

    def candidates(self) -> list[Candidate]:
        """Return the steps that may be restored, newest first, of each the copy on scratch first. Root only."""
        far = self._far()
        near = {info.step: info for info in self._counting(far)} if self._is_ours_to_read() else {}
        found = []
        for step in sorted({*far, *near}, reverse=True):
            found += [Candidate(step, self.near.directory)] if step in near else []
            found += [Candidate(step, self.home.directory)] if step in far else []
        return found

    def infos(self) -> tuple[StepInfo, ...]:
        """Return one restorable copy of each step, the nearest, in rising order. Root only."""
        found: dict[int, StepInfo] = {}
        for candidate in self.candidates():
            run = self.home if candidate.directory == self.home.directory else self.near
            info = discovery.inspect_step(candidate.directory, candidate.step, run.manifests)
            if info.is_restorable:
                found.setdefault(info.step, info)
        return tuple(found[step] for step in sorted(found))

    def look_ahead(self, step: int, *, overwrite: bool) -> None:
        """Refuse what could not be published in the run directory. Root only."""
        self._open_home()
        with self.home.workspace.changing:  # a drain may be published just now: its step is then the lineage
            publishing.look_ahead(self.home, step, overwrite=overwrite)

    def stands_on(self, lineage: Lineage) -> None:
        """Take in which step was restored: the run resumes from it in both directories. Independent."""
        with self.home.workspace.changing:
            self.home.lineage = lineage

    # -- a drain -----------------------------------------------------------------------------------

    def committed(self, step: int) -> None:
        """Pin a step on scratch until it is drained; a failure costs no more than that. Root only, or each leader."""
        try:
            discovery.pin(self.near.directory, step)  # S1
        except HpcckptError as error:
            _log.warning("hpcckpt: step %d cannot be pinned on scratch: %s", step, error)
        if self.near.comm.is_root and self.home.options.on_newer == "aside":
            self._move_newer_aside(step)

    def _move_newer_aside(self, step: int) -> None:
        """Move aside at home what a run that went back goes on without: a restart must not find it newest. Root only.

        If that fails, or a kill comes first, it is done when the step is drained, or by the job that goes on.
        """
        home = self.home
        try:
            with home.workspace.changing, translated("move newer steps aside"):
                commit.move_aside(home.directory, publishing.look_ahead(home, step, overwrite=True).aside, step)
        except HpcckptError as error:
            _log.warning("hpcckpt: steps beyond step %d cannot be moved aside yet: %s", step, error)

    def begin(self, number: int, saved: SavedStep, job: SaveJob, *, overwrite: bool) -> None:
        """Begin to drain a step that was committed on scratch; once, if it is repeated. Independent."""
        drain = next((drain for drain in self._drains if drain.number == number), None)
        if drain is None:
            drain = Drain(number, saved, job.save_id, overwrite, time.monotonic() - saved.seconds)
        if drain.matter is None and not drain.is_over:
            self._begin(drain)  # S2

    def _begin(self, drain: Drain) -> None:
        number = self._n_begun
        before = next((d.matter.part for d in reversed(self._drains) if d.matter is not None), None)
        if drain not in self._drains:
            self._drains.append(drain)
        matter = self.draining.start(
            2 * number,
            f"drain step {drain.saved.step}",
            lambda: self._copy(drain, before),
            lambda outcomes: self._look_at_copy(drain, outcomes),
            lambda outcome: self._go_on(drain, number, outcome),
        )
        drain.matter, self._n_begun = matter, number + 1  # in one line: an interrupt before it repeats all of this

    def _source(self, drain: Drain) -> Path:
        """Return where a step stands on scratch. Pure."""
        return drain.saved.path

    def _mine(self, drain: Drain, items: Sequence[T], file_of: Callable[[T], str]) -> list[T]:  # noqa: ARG002
        """Return this rank's share of the pieces or entries of a step. Independent."""
        comm = self.near.comm
        return copying.share(items, comm.rank, comm.size, lambda item: item.nbytes)

    def _headers(self, drain: Drain, manifest: Manifest) -> Sequence[FileRecord]:  # noqa: ARG002
        """Return the files whose headers this rank reads back: one look at them is enough. Independent."""
        return manifest.files if self.near.comm.is_root else ()

    def _copy(self, drain: Drain, before: Task | None) -> Any:
        """Copy this rank's share of the pieces, and make it durable. Independent."""
        if before is not None:
            before.join(f"step {drain.saved.step} waits for the drain before it")
        comm = self.near.comm
        phases.reached("drain-begun", comm.rank)
        with translated(f"drain step {drain.saved.step}"):
            manifest = manifest_of(drain, self._source(drain))
            staged = copying.staging_of(self.home.directory, manifest)
            if comm.is_root:
                self._get_ready(drain, manifest, staged)
            for directory in (staged.path, staged.path / layout.DATA):
                directory.mkdir(exist_ok=True)
            pieces = self._mine(drain, copying.pieces_of(manifest.files), lambda piece: piece.path)
            copying.copy_pieces(self._source(drain), staged.path, pieces, self._rules, is_resumed=False)  # D1
            copying.sync_files(staged.path, {piece.path for piece in pieces})  # D2
            return self._brought(drain, manifest, pieces)

    def _brought(self, drain: Drain, manifest: Manifest, pieces: Sequence[Piece]) -> Any:  # noqa: ARG002
        """Return what root has to know of what this rank copied. Independent."""
        return None

    def _entries(self, drain: Drain, manifest: Manifest, outcomes: Sequence[Outcome]) -> tuple[StoredEntry, ...]:  # noqa: ARG002
        """Return all entries of a step that all ranks copied. Root only."""
        return tuple(copying.entries_of(drain.saved.path, manifest, manifest.files))

    def _look_at_copy(self, drain: Drain, outcomes: Sequence[Outcome]) -> Answer:
        """Find what is to be read back, if all ranks copied their shares. Root only."""
        failures = failures_of(outcomes)
        if not failures:
            try:
                return Answer(entries=self._entries(drain, manifest_of(drain, self._source(drain)), outcomes))
            except Exception as error:  # noqa: BLE001 - every rank will hear of it
                failures = {0: as_failure(error)}
        return self._give_up(drain, failures)

    def _go_on(self, drain: Drain, number: int, outcome: Outcome) -> None:
        """Begin to read the copy back, unless it failed. Independent."""
        answer = answer_of(outcome)
        if answer.failures:
            self._settle(drain, outcome)
            return
        drain.matter = self.draining.start(
            2 * number + 1,
            f"drain step {drain.saved.step}",
            lambda: self._verify(drain, answer.entries),
            lambda outcomes: self._conclude(drain, outcomes),
            lambda outcome: self._settle(drain, outcome),
        )

    def _verify(self, drain: Drain, entries: Sequence[StoredEntry]) -> None:
        """Compare this rank's share of the copy with the checksums of the save. Independent."""
        source = self._source(drain)
        with translated(f"drain step {drain.saved.step}"):
            manifest = manifest_of(drain, source)
            staged = copying.staging_of(self.home.directory, manifest)
            mine = self._mine(drain, entries, lambda entry: entry.file)
            copying.verify_files(source, staged.path, manifest, self._headers(drain, manifest), mine, self._rules)  # D3

    def _get_ready(self, drain: Drain, manifest: Manifest, staged: commit.Staged) -> None:
        """Do what may fail before the first byte. Root only."""
        workspace = self.home.workspace
        workspace.reserve(staged.name, self.home)  # before a lock that was released is taken again, which sweeps
        self._open_home()
        workspace.reserve(staged.name, self.home)  # after one that was lost; if it is lost again, step D4 notices
        with workspace.changing:  # the drain before may be published just now: its step is then our lineage
            if not self._is_home(drain):
                self._look_ahead(drain, manifest)
        need = SavePlan((), manifest.tensors, manifest.nbytes, ())
        workspace.check_space(need, self.near.comm.size)

    def _look_ahead(self, drain: Drain, manifest: Manifest) -> commit.Way:
        """Find what stands where a step will go, and refuse what may not be moved. Root only."""
        is_late = self._is_late(drain)
        return publishing.look_ahead(self.home, manifest.step, overwrite=drain.overwrite, is_late=is_late)

    def _is_late(self, drain: Drain) -> bool:
        """Return whether a later save of this run was drained while this one failed. Root only, with `changing`."""
        later = self._drains[self._drains.index(drain) + 1 :]
        return any(other.is_published and other.saved.step > drain.saved.step for other in later)

    def _is_home(self, drain: Drain) -> bool:
        found = discovery.inspect_step(self.home.directory, drain.saved.step)
        return found.is_restorable and found.manifest is not None and found.manifest.save_id == drain.save_id

    def _conclude(self, drain: Drain, outcomes: Sequence[Outcome]) -> Answer:
        """Publish what all ranks copied, or say what failed. Root only."""
        failures = failures_of(outcomes)
        if not failures:
            try:
                return Answer(self._publish(drain))
            except Exception as error:  # noqa: BLE001 - every rank will hear of it
                failures = {0: as_failure(error)}
        return self._give_up(drain, failures)

    def _give_up(self, drain: Drain, failures: Mapping[int, Failure]) -> Answer:
        """Remove what was copied; the step stays on scratch. Root only."""
        self._abandon(copying.staged_as(self.home.directory, drain.saved.step, drain.save_id))
        _log.error("hpcckpt: %s", error_of(drain, failures))
        return Answer(failures=failures)

    def _abandon(self, staged: commit.Staged) -> None:
        """Remove a copy, unless another job may be making it now: it has the same name there. Root only."""
        home = self.home
        with home.workspace.changing, contextlib.suppress(StorageError):
            if home.workspace.is_reserved(staged.name) and home.lock is not None and home.lock.is_mine():
                home.workspace.abandon(staged)

    def _publish(self, drain: Drain) -> SavedStep:
        """Give the step its name in the run directory, and retire old ones there. Root only."""
        home, manifest = self.home, manifest_of(drain, self._source(drain))
        staged = copying.staging_of(home.directory, manifest)
        lock = publishing.open_for_writing(home)  # it may have been lost
        path = home.directory / layout.step_dirname(manifest.step)
        with home.workspace.changing:
            if self._is_home(drain):
                self._abandon(staged)
            elif not home.workspace.is_reserved(staged.name):
                raise LockLostError(f"another job held {home.directory}; the step stays on scratch, try again")
            else:
                way = self._look_ahead(drain, manifest)
                copying.publish(staged, manifest, lock, way)  # D4
                if not self._is_late(drain):
                    home.lineage = Lineage(manifest.run_id, manifest.save_id, manifest.step)
            drain.is_published = True
        home.workspace.release(staged.name)
        phases.reached("drain-published", 0)
        kept, warnings = self._retain(drain, lock)
        seconds = time.monotonic() - drain.began
        self.near.journal.drained(manifest.step, seconds, self.near.directory)
        _log.info("hpcckpt: drained step=%d to=%s durable=%.3fs", manifest.step, path, seconds)
        told = (*drain.warnings, *warnings)
        return replace(drain.saved, path=path, seconds=seconds, kept=kept, warnings=told, tier="run")

    def _retain(self, drain: Drain, lock: RunLock) -> tuple[int, tuple[str, ...]]:
        """Retire old steps of the run directory, and give up the one on scratch; a failure is a warning. Root only."""
        home, n_kept = self.home, 0
        try:
            with contextlib.suppress(StorageError):
                discovery.unpin(self.near.directory, drain.saved.step)  # D5
            kept = home.workspace.retain(lock, home.options, home.marked, home.manifests)
            n_kept, problem = kept.n_steps, kept.problem
            self.near.journal.removed(kept.removed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the step is there
            problem = as_failure(error).text
        return n_kept, (f"retention after step {drain.saved.step} failed: {problem}",) if problem else ()

    def _settle(self, drain: Drain, outcome: Outcome) -> None:
        """Take in how a drain ended. Independent."""
        answer = answer_of(outcome)
        if answer.home is not None and not self.near.comm.is_root:
            self.home.lineage = Lineage(self.near.lineage.run_id, drain.save_id, drain.saved.step)
        if not drain.is_over:
            drain.unheard = [] if answer.home is None else list(reversed(self.home.listeners))
            drain.is_told = False
            drain.home, drain.failures = answer.home, answer.failures or None  # D6
        drain.matter = None
        while answer.home is not None and drain.unheard:
            drain.unheard.pop()(answer.home)

    # -- waiting -----------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Whether a step is on its way, as far as known here."""
        return any(not drain.is_over for drain in self._drains)

    @property
    def is_drained(self) -> bool:
        """Whether all steps have come to the run directory, as far as known here."""
        return all(drain.home is not None for drain in self._drains)

    def durable(self, number: int) -> SavedStep:
        """Wait until a save that was committed is in the run directory. Collective."""
        return self.wait(next(drain for drain in self._drains if drain.number == number))

    def wait(self, drain: Drain) -> SavedStep:
        """Wait until a step is in the run directory, as fast as it goes; raise what kept it from that. Collective."""
        self._rules.pace.lift()
        try:
            while drain.matter is not None and not drain.is_over:
                self.draining.wait(drain.matter)
        finally:
            self._rules.pace.limit()
        drain.is_told = True
        if drain.home is None:
            raise error_of(drain, drain.failures or {})
        return drain.home

    def make_room(self, n_saves: int) -> None:
        """Wait for the drains that a save of this number must not overtake; raise once what one failed of. Collective.

        Which are waited for depends on nothing but the number, so all ranks raise the same.
        """
        for drain in [d for d in self._drains if d.number < n_saves - self._lag and not d.is_told]:
            self.wait(drain)

    def make_way(self, step: int) -> None:
        """Wait until a step that will be replaced is not being drained. Collective, when no save is under way."""
        for drain in [d for d in self._drains if d.saved.step == step and not d.is_told]:
            self.wait(drain)

    def finish(self) -> None:
        """Wait for all drains, and try those again that failed; raise, once, what the first failed of. Collective.

        Call it when no save is under way.
        """
        failure: CollectiveError | None = None
        for drain in list(self._drains):
            is_told = drain.is_told
            try:
                self._finish(drain)
            except CollectiveError as error:
                failure = failure or (None if is_told else error)
        if failure is not None:
            raise failure

    def _finish(self, drain: Drain) -> None:
        try:
            self.wait(drain)
            return
        except CollectiveError:
            if self.near.comm.calls.is_broken_off:
                raise
        drain.failures, drain.began = None, time.monotonic()  # how long it lay there says nothing of the next one
        self._begin(drain)  # never the only copy on scratch, if that can be helped
        self.wait(drain)
