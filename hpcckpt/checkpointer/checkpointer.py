"""`Checkpointer`: a run directory, a communicator and a backend, bound once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpcckpt.checkpointer.open import check_equal, open_session, patience_of
from hpcckpt.checkpointer.session import BlockEnd, Session
from hpcckpt.checkpointer.shutdown import (
    finish_abandoned,
    freed_if_refused,
    raising,
    release,
    release_when_forgotten,
    shortening,
)
from hpcckpt.collective import interrupts
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.connect import as_communicator, refuse_torchrun
from hpcckpt.core.options import Best, Level, OnNewer, Options, Recycle, parse_best
from hpcckpt.core.results import Restored, SavedStep
from hpcckpt.errors import ClosedError, HpcckptError, StateError
from hpcckpt.format import layout
from hpcckpt.restoring.restore import restore
from hpcckpt.rundir import discovery, pins
from hpcckpt.rundir.journal import Journal, exit_code_of
from hpcckpt.saving.pending import InFlightSave, Request
from hpcckpt.saving.save import failures_in_journal, save
from hpcckpt.tiers import ScratchTier

__all__ = ["Checkpointer", "PendingSave", "Restored", "SavedStep"]

T = TypeVar("T")


class PendingSave:
    """A save in flight.

    Parameters
    ----------
    session : Session
        The checkpointer's session.
    save : InFlightSave
        The save.
    """

    def __init__(self, session: Session, save: InFlightSave) -> None:
        self._session = session
        self._save = save

    def done(self) -> bool:
        """Return True if the outcome is known here; never blocks. Independent."""
        self._session.check_process()
        if not self._save.has_ended:
            with raising(self._session):
                self._session.queue.begin_newest()
                self._session.queue.background.poll()
        return self._save.has_ended

    def result(self) -> SavedStep:
        """Return the committed step, or raise what prevented the commit. Collective.

        Raises
        ------
        CollectiveError
            If the save failed: the same error on every rank, and also an instance of the failure's own class.
        """
        self._session.check_process()
        with raising(self._session):
            self._session.queue.wait(self._save)
        with shortening():
            return self._save.result()

    def durable(self) -> SavedStep:
        """Wait until the step is in the run directory, and return it. Collective.

        Without ``scratch`` this is the same as `result`.

        Raises
        ------
        CollectiveError
            If the save failed: the same error on every rank, and also an instance of the failure's own class.
        """
        saved = self.result()
        tiers = self._session.scratch_tier
        with raising(self._session):
            return saved if tiers is None else tiers.durable(self._save)


class Checkpointer:
    """Saves and restores the state of a job in a run directory. Collective.

    Parameters
    ----------
    directory : path_like
        The run directory; created at the first save.
    comm : mpi4py communicator, optional
        The ranks that save together; ``None`` means MPI.COMM_WORLD when launched under MPI, else one rank.
    backend : str
        Name of the storage backend, see ``hpcckpt backends``.
    max_to_keep : int or None
        Number of newest steps to keep; ``None`` keeps all.
    keep_best : Best or str, optional
        Also keep the best step by a metric: ``"val_loss"``, ``"max:reward"``, or a `Best`.
    keep_period : int, optional
        Also keep the steps that are divisible by this.
    async_save : bool
        Whether `save` returns after the snapshot. The rest is then done in the background, and progresses when `poll`
        or another method is called. Otherwise `save` returns when the step is committed.
    on_newer : {"error", "aside"}
        What a save does if the directory has steps that are newer than the one this run resumed from: raise
        `NewerStepError`, or move them aside (they are never deleted).
    check_replicas : int
        Compare replicated tensors between ranks at the first save, and then every time after this many saves; 0 for
        never.
    lock_expiry_s : float
        Seconds without a heartbeat after which a lock held on another host counts as left by a dead job.
    threads : int
        Native I/O threads per rank; 0 chooses from the cores that this rank may use.
    max_in_flight : int
        Number of saves that may be in the background; the next one waits for the oldest.
    max_bytes_in_flight : int, optional
        Bytes per rank that saves in the background may hold in memory. A save that would exceed this limit waits for
        the others; a save that is larger than the limit is written before `save` returns.
    recycle : bool or "always"
        Whether to overwrite the files of retired steps, which is several times faster than new files on most file
        systems. ``True`` overwrites only files that no program on this machine has open or mapped, and only where the
        kernel knows that (local file systems). ``"always"`` overwrites without this check, on parallel file systems
        too: a program that has a step open then reads the values of a later one.
    incremental : bool
        Link the files of tensors that did not change since the newest step, instead of writing them again. This works
        only for tensors that a snapshot holds without a copy: TensorFlow variables on CPU.
    nan_guard : bool
        Refuse a step with NaN or infinite values (`NonFiniteError`), so that it never displaces a good one. Python
        numbers may be infinite, because ``best=float("inf")`` may be a bound; for them only NaN is refused. Metrics
        and `objects` are not checked.
    peer_timeout_s : float
        Seconds that a rank waits for other ranks without progress. Then all ranks raise `PeerTimeoutError` if they are
        in the same call; otherwise the rank logs which ranks are missing, and ends the job.
    scratch : path_like, optional
        A faster directory, such as the disk of the node: steps are committed there, and drained to the run directory
        in the background. It may be another directory on each node, and the path may differ between ranks; see the
        page on tiers.
    scratch_bandwidth : float, optional
        Bytes per second that all ranks together may drain during the training.
    scratch_keep : int
        Number of newest steps that stay on scratch after they were drained, for a faster restore.
    backend_options : mapping, optional
        Options of the backend, see its documentation: ``{"driver": "mpio"}``.

    Raises
    ------
    OptionError
        Naming every option that is wrong.
    ForkedError
        From every method, in a forked child: the checkpointer belongs to the process that made it.
    MpiError
        If MPI cannot connect the ranks, or torchrun started this process.
    BackendNotFoundError, BackendConflictError, BackendError
        If the backend is unknown, ambiguous, differs between ranks, or cannot be loaded.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        comm: Any = None,
        backend: str = "rankfile",
        max_to_keep: int | None = 3,
        keep_best: Best | str | None = None,
        keep_period: int | None = None,
        async_save: bool = True,
        *,
        on_newer: OnNewer = "error",
        check_replicas: int = 100,
        lock_expiry_s: float = 600.0,
        threads: int = 0,
        max_in_flight: int = 1,
        max_bytes_in_flight: int | None = None,
        recycle: Recycle = True,
        incremental: bool = False,
        nan_guard: bool = False,
        peer_timeout_s: float = 1800.0,
        scratch: str | os.PathLike[str] | None = None,
        scratch_bandwidth: float | None = None,
        scratch_keep: int = 1,
        backend_options: Mapping[str, Any] | None = None,
    ) -> None:
        if comm is None:
            refuse_torchrun()
        group = as_communicator(comm, patience_of(peer_timeout_s))
        with shortening(), freed_if_refused(group), group.calls.call("Checkpointer(...)"):
            options = group.agree(
                "checkpointer: options",
                lambda: Options(
                    max_to_keep=max_to_keep,
                    keep_best=parse_best(keep_best),
                    keep_period=keep_period,
                    backend=backend,
                    on_newer=on_newer,
                    check_replicas=check_replicas,
                    lock_expiry_s=lock_expiry_s,
                    threads=threads,
                    async_save=async_save,
                    max_in_flight=max_in_flight,
                    max_bytes_in_flight=max_bytes_in_flight,
                    recycle=recycle,
                    incremental=incremental,
                    nan_guard=nan_guard,
                    peer_timeout_s=peer_timeout_s,
                    scratch=None if scratch is None else os.fspath(scratch),
                    scratch_bandwidth=scratch_bandwidth,
                    scratch_keep=scratch_keep,
                ).check(),
            )
            self._options = options
            check_equal(group, Path(os.path.abspath(directory)), options, backend_options or {})
            self._directory = Path(os.path.realpath(directory))  # the lock is that of this one, wherever a link leads
            finish_abandoned(self._directory)
            self._session = open_session(group, self._directory, options, backend_options or {})
        self._forget = release_when_forgotten(self, self._session)

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._directory

    @property
    def comm(self) -> Communicator:
        """The checkpointer's duplicate of the communicator."""
        return self._session.comm

    @property
    def options(self) -> Options:
        """The options, as checked."""
        return self._options

    @property
    def is_draining(self) -> bool:
        """Whether a drain to the run directory is running, as far as this rank knows."""
        return self._session.is_draining

    @property
    def last_step(self) -> int | None:
        """The step that was saved or restored last, as far as this rank knows.

        After `wait` it is the same on all ranks.
        """
        return self._session.rundir.lineage.step

    @property
    def is_saving(self) -> bool:
        """Whether a save is in flight whose outcome this rank does not know yet."""
        return self._session.is_saving

    @property
    def journal(self) -> Journal:
        """The run's journal, for the callbacks and programs that use this checkpointer."""
        return self._session.rundir.journal

    def on_saved(self, callback: Callable[[SavedStep], None]) -> Callable[[], None]:
        """Register a function to be called with each committed step. Independent.

        The thread that polls or waits calls it. It may not call the checkpointer (`CodeError`); what it raises is
        logged. The function that is returned here removes the registration. A function that refers to the checkpointer
        keeps it open until `close`, or the end of the program.
        """
        self._session.check_process()
        return self._session.queue.listeners.add(callback)

    def on_drained(self, callback: Callable[[SavedStep], None]) -> Callable[[], None]:
        """Register a function to be called with each drained step. Independent.

        With ``scratch``, `SavedStep.seconds` is the time from the call of `save` to the end of the drain. Without it
        this is the same as `on_saved`. The function that is returned here removes the registration.
        """
        self._session.check_process()
        tiers = self._session.scratch_tier
        if tiers is None:
            return self.on_saved(callback)
        return tiers.drains.listeners.add(callback)

    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, float] | None = None,
        objects: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        level: Level = "state",
    ) -> PendingSave:
        """Save a step. Collective.

        Parameters
        ----------
        step : int
            Number of the step in the training, 0 or more, which identifies the checkpoint. NumPy integers are accepted.
        state : mapping or object
            What to save; see the architecture page.
        metrics : mapping of str to float, optional
            Stored with the step. NaN is allowed, but is never the best value.
        objects : mapping, optional
            JSON values to store with the step; those of root are stored.
        overwrite : bool
            Replace an intact step that has this number, atomically.
        level : {"exact", "state", "weights"}
            What a resume from this step guarantees; stored with the step.

        Returns
        -------
        PendingSave
            Its ``result()`` returns the committed step.

        Raises
        ------
        CollectiveError
            If an earlier save failed in the background and its result was not requested; with ``async_save=False``,
            and at the first save, also if this save failed. The error is the same on every rank, and also an instance
            of the failure's own class (`StepExistsError`, `NoSpaceError`, `LockedError`, `TreeMismatchError`, …).
            The previous checkpoint is untouched and training may continue.
        """
        self._check_open()
        with contextlib.suppress(StateError):  # refused where all ranks learn of it, when the state is read
            step = layout.as_step(step)
        request = Request(step, metrics or {}, objects or {}, overwrite, level)
        with self._call(f"save({request.step})", f"save(overwrite={bool(overwrite)})"):
            if self._session.scratch_tier is not None:
                self._make_room(self._session.scratch_tier, request)
            return PendingSave(self._session, save(self._session.queue, state, request))

    def _make_room(self, tiers: ScratchTier, request: Request) -> None:
        """Wait for what a save must not overtake on its way to the run directory. Collective."""
        with failures_in_journal(self._session.queue, request.step, "open", opens=False):
            tiers.open()
        self._session.queue.make_room(0 if request.overwrite else self._session.rundir.options.max_in_flight - 1)
        tiers.drains.make_room(self._session.queue.n_saves, request.step if request.overwrite else None)

    def restore(self, state: Any, step: int | None = None, *, strict: bool = True) -> Restored:
        """Restore a step into `state`, in place. Collective.

        Parameters
        ----------
        state : mapping or object
            What was given to `save`, with the same names and global shapes; the extents of shards may differ.
        step : int, optional
            The step; by default the newest intact one. Damaged steps are skipped with a warning.
        strict : bool
            Whether to refuse if names, shapes or dtypes differ; otherwise restore what fits, and warn.

        Raises
        ------
        StepNotFoundError
            If there is nothing to restore.
        NoRestorableStepError
            If there are steps, and none of them can be restored; a `CorruptError`.
        CorruptError
            If the requested step is damaged; the state may then be partly overwritten.
        StateMismatchError
            If state and step differ; the state is unchanged.
        """
        self._check_open()
        shown = "" if step is None else f"step={step}"
        with self._call(f"restore({shown})", f"restore(step={step}, strict={bool(strict)})"):
            self._wait(durable=True, is_going_back=True)
            self._session.queue.block_records.forget()
            return restore(self._session.source, state, step, strict=strict)

    def poll(self) -> None:
        """Make progress in the background; never blocks. Call it after every batch. Independent."""
        self._check_open()
        with raising(self._session):
            self._session.comm.calls.check()
            self._session.queue.begin_newest()
            self._session.queue.background.poll()
            if self._session.scratch_tier is not None:
                self._session.scratch_tier.drains.background.poll()
            self._session.comm.calls.check()

    def wait(self, *, durable: bool = False) -> None:
        """Wait until all saves are committed; raise what prevented one. Collective.

        Parameters
        ----------
        durable : bool
            Wait until they are in the run directory, not only on scratch.

        Raises
        ------
        CollectiveError
            If a save failed and its failure was not raised yet, or, if `durable`, a step could not be drained again;
            the same error on every rank.
        """
        self._check_open()
        with raising(self._session):
            self._wait(durable=durable)

    def _wait(self, *, durable: bool, is_going_back: bool = False) -> None:
        """Wait for all saves, and for all drains. Collective."""
        self._session.queue.make_room(0)
        if durable and self._session.scratch_tier is not None:
            self._session.scratch_tier.drains.finish(is_going_back=is_going_back)

    def latest_step(self) -> int | None:
        """Return the newest restorable step, or ``None`` if the run has no steps. Collective.

        Raises
        ------
        NoRestorableStepError
            If the run has steps, but none of them can be restored: the run must not silently begin at step 0.
        """
        with self._call("latest_step()"):
            if self._session.scratch_tier is None:
                return self._on_root("latest step", lambda: discovery.latest_step(self._directory_to_list()))
            steps = self._all_steps()
            return steps[-1] if steps else None

    def has_steps(self) -> bool:
        """Return True if the run has any step, restorable or not. Collective."""
        with self._call("has_steps()"):
            if self._on_root("look for steps", lambda: bool(discovery.step_numbers(self._directory_to_list()))):
                return True
            tiers = self._session.scratch_tier
            self._look()
            return tiers is not None and self._on_root(
                "look for steps", lambda: bool(tiers.infos() or tiers.candidates())
            )

    def all_steps(self) -> list[int]:
        """Return all restorable steps in ascending order. Collective.

        Raises
        ------
        NoRestorableStepError
            If the run has steps, and none of them can be restored.
        """
        with self._call("all_steps()"):
            return self._all_steps()

    def _all_steps(self) -> list[int]:
        self._look()
        return self._on_root(
            "all steps",
            lambda: [info.step for info in self._required_infos() if info.is_restorable],
        )

    def best_step(self) -> int | None:
        """Return the best restorable step by `keep_best`, or ``None``. Collective.

        Raises
        ------
        NoRestorableStepError
            If the run has steps, and none of them can be restored.
        """
        self._check_open()
        best = self._options.keep_best
        if best is None:
            return None

        def find() -> int | None:
            found = discovery.best_of(self._required_infos(), best)
            return found[0] if found else None

        with self._call("best_step()"):
            self._look()
            return self._on_root("best step", find)

    def _directory_to_list(self) -> Path:
        """Return the run directory, without the step of a save that failed, if that can be. Root only."""
        self._session.rundir.workspace.try_restore_names()
        return self.directory

    def _look(self) -> None:
        """Find out what is on scratch. Collective."""
        if self._session.scratch_tier is not None:
            self._session.scratch_tier.steps.discover()

    def _infos(self) -> tuple[discovery.StepInfo, ...]:
        """Return all steps, those on scratch too. Root only."""
        self._session.rundir.workspace.try_restore_names()
        if self._session.scratch_tier is not None:
            return self._session.scratch_tier.infos()
        return self._session.rundir.steps.discover()

    def _required_infos(self) -> tuple[discovery.StepInfo, ...]:
        """Return all steps, of which one can be restored if there are any. Root only."""
        infos = self._infos()
        if not infos and self._session.scratch_tier is not None:  # it leaves out what cannot be restored
            there = self._session.scratch_tier.candidates()
            discovery.require_restorable(
                self.directory, [discovery.inspect_step(each.directory, each.step) for each in there]
            )
        discovery.require_restorable(self.directory, infos)
        return infos

    def pin(self, step: int) -> None:
        """Pin a step: keep it until `unpin`. Collective.

        Retention does not remove it, `overwrite` does not replace it, and it is not moved aside. The pin applies to the
        save that has this number now, not to a later save with the same number.
        """
        with self._call(f"pin({step})"):
            if self._session.scratch_tier is not None:
                self._wait(durable=True)
            self._on_root(f"pin step {step}", lambda: pins.pin_save(self.directory, step))

    def unpin(self, step: int) -> bool:
        """Remove a pin; return True if there was one. Collective."""
        with self._call(f"unpin({step})"):
            return self._on_root(f"unpin step {step}", lambda: pins.unpin(self.directory, step))

    def close(self) -> None:
        """Wait for all saves, then release the run's lock and the communicator. Collective.

        Raises
        ------
        CollectiveError
            If a save failed and its failure was not raised yet, or a step could not be drained again; lock and
            communicator are released nevertheless.
        """
        self._session.check_process()
        self._session.check_caller()
        if self._session.is_closed and self._session.comm.calls.failure is None:
            return
        with interrupts.deferred(self._session.comm.size):
            is_over = False
            try:
                with raising(self._session), self._session.comm.calls.call("close()"):
                    self._session.finish()
                    is_over = True
                    self._release_lock()
                    # The directory is free when any rank returns; and Horovod ends MPI for all with its first rank.
                    self._session.comm.barrier()
            except BaseException as error:
                if not self._may_be_closed_again(error, is_over=is_over):
                    self._give_back(type(error).__name__)
                raise
            self._give_back()

    def _may_be_closed_again(self, error: BaseException, *, is_over: bool) -> bool:
        """Return True if it is still open after what a signal's handler raised, here or on another rank.

        It is so on all ranks or on none. What is in flight then is finished when the program ends.
        """
        is_alone = self._session.comm.size == 1
        if not isinstance(error, Exception) or (is_alone and not isinstance(error, HpcckptError)):
            return is_alone or not is_over
        left = self._session.comm.calls.left
        return left is not None and left.is_interrupt and left.operation == 0  # before the barrier

    def _give_back(self, failure: str = "") -> None:
        """Release the run's lock and the communicator. Collective."""
        if self._session.is_closed:
            return  # nothing can be called any more, and all was released
        self._session.close()
        self._release_lock(failure)
        self._forget()
        self._session.comm.free()

    def _release_lock(self, failure: str = "") -> None:
        """Note the end of the run in its journal, and release its lock; may be repeated. Root only."""
        self._session.rundir.journal.end(failure)
        release(self._session)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None = None, *_: object) -> None:
        if self._session.is_forked:  # the block ends in a forked child: files, lock and messages are the parent's
            return
        if kind is None:
            self.close()
            return
        text = "" if isinstance(error, SystemExit) else str(error or "")
        end = BlockEnd(kind.__name__, exit_code_of(error), text)
        if self._session.is_closed:
            return
        self._session.note_end(end)  # first: what an interrupt leaves undone is finished when the program ends
        self._session.let_saves_end()
        self._session.comm.calls.end(str(end))
        if not (self._session.is_saving or self._session.scratch_tier):  # release what needs no peers, who may not come
            self._session.rundir.journal.end(*end)
            self._session.close()
            self._forget()
            if self._session.comm.size == 1:
                self._session.comm.free()

    def _on_root(self, phase: str, fn: Callable[[], T]) -> T:
        return self._session.comm.on_root(phase, fn)

    @contextlib.contextmanager
    def _call(self, text: str, key: str = "") -> Iterator[None]:
        """Be in a collective call, which has the same key on all ranks. Collective."""
        self._check_open()
        with raising(self._session), self._session.comm.calls.call(text, key):
            yield

    def _check_open(self) -> None:
        self._session.check_process()
        self._session.check_caller()
        if self._session.comm.calls.failure is not None:
            self._session.comm.calls.check()
        if self._session.is_closed or self._session.ended_by is not None:
            raise ClosedError(f"the checkpointer of {self._session.rundir.path} is closed; make a new one")
