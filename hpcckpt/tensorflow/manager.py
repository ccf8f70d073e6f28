"""`CheckpointManager`: TensorFlow's, with atomic steps. Use it identically on every rank."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf

from hpcckpt.checkpointer import Checkpointer, PendingSave
from hpcckpt.core.options import Best, OnNewer, parse_best
from hpcckpt.core.results import Restored, SavedStep
from hpcckpt.errors import ClosedError, NoRestorableStepError, OptionError, StateError
from hpcckpt.format import layout
from hpcckpt.tensorflow import retention as clock
from hpcckpt.tensorflow.checkpoint import assign_comm, comm_of, enable_steps, is_step, restore_from
from hpcckpt.tensorflow.collect import is_checkpoint
from hpcckpt.tensorflow.retention import Keeping, SavedAt, look
from hpcckpt.tensorflow.state import be_lenient, last_status

_log = logging.getLogger("hpcckpt")
Number = int | Any  # an int, or an integer variable or tensor of TensorFlow's


class CheckpointManager:
    """Saves and restores what a ``tf.train.Checkpoint`` tracks, keeping some steps and deleting others. Collective.

    Like ``tf.train.CheckpointManager``, with these differences:

    * A checkpoint is a directory ``step-0000000001``, atomic and verified, and all ranks write it together.
    * `save` returns when the snapshot is taken; the rest runs in the background.
    * If a checkpoint is damaged, the previous one is restored.

    Parameters
    ----------
    checkpoint : tf.train.Checkpoint
        What is saved and restored; any other object that TensorFlow tracks is accepted too. Afterwards its ``restore``
        also reads hpcckpt's steps.
    directory : path_like
        The run directory.
    max_to_keep : int or None
        Number of newest checkpoints to keep; ``None`` keeps all.
    keep_checkpoint_every_n_hours : float, optional
        Of the checkpoints that would be deleted, keep one every N hours permanently, by a pin.
    checkpoint_name : str
        Accepted, without effect: directories are always called ``step-…``.
    step_counter : tf.Variable, optional
        Counts the steps of the training, for `checkpoint_interval`.
    checkpoint_interval : int, optional
        The minimum number of steps between two checkpoints.
    init_fn : callable, optional
        Called by `restore_or_initialize` if there is nothing to restore.
    last_checkpoint_step : int, optional
        The step of the last checkpoint, if another manager saved it.
    comm : mpi4py communicator, optional
        The ranks that train together; ``None`` means the ``comm`` of the checkpoint, if it has one, else MPI.COMM_WORLD
        when launched under MPI.
    backend : str
        Storage backend.
    backend_options : mapping, optional
        Options of the backend.
    async_save : bool
        Whether training continues while a checkpoint is written.
    scratch : path_like, optional
        A faster directory, such as the disk of the node: checkpoints are committed there, and drained to the run
        directory in the background. They are listed when they are in the run directory.
    scratch_bandwidth : float, optional
        Bytes per second that all ranks together may drain while the training continues.
    keep_best : Best or str, optional
        Also keep the best checkpoint by one of the `metrics` that are passed to `save`.
    on_newer : {"error", "aside"}
        What a save does if there are checkpoints newer than the restored one: fail, or move them aside.

    Raises
    ------
    OptionError
        If an option is invalid; it is also a `ValueError`.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
        *,
        comm: Any = None,
        backend: str = "rankfile",
        backend_options: Mapping[str, Any] | None = None,
        async_save: bool = True,
        keep_best: Best | str | None = None,
        on_newer: OnNewer = "error",
        scratch: str | os.PathLike[str] | None = None,
        scratch_bandwidth: float | None = None,
    ) -> None:
        if checkpoint_interval is not None and step_counter is None:
            raise OptionError("`step_counter` should be passed if `checkpoint_interval` is not None.")
        if max_to_keep is not None and max_to_keep <= 0:
            raise OptionError(f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep}.")
        self._checkpoint = checkpoint if is_checkpoint(checkpoint) else tf.train.Checkpoint(root=checkpoint)
        enable_steps(self._checkpoint)
        assign_comm(self._checkpoint, comm)
        self._checkpointer = Checkpointer(
            directory,
            comm_of(self._checkpoint) if comm is None else comm,
            backend,
            max_to_keep,
            keep_best,
            async_save=async_save,
            on_newer=on_newer,
            scratch=scratch,
            scratch_bandwidth=scratch_bandwidth,
            backend_options=backend_options,
        )
        self._name = checkpoint_name
        self._step_counter, self._interval, self._init_fn = step_counter, checkpoint_interval, init_fn
        self._last_step = last_checkpoint_step
        self._restored: Restored | None = None
        self._keeping = Keeping(max_to_keep, keep_checkpoint_every_n_hours, parse_best(keep_best))
        self._in_flight: dict[int, SavedAt] = {}
        self._look()
        self._checkpointer.on_drained(self._on_drained)
        be_lenient(self._checkpoint)

    # -- what TensorFlow's has -------------------------------------------------------------------

    @property
    def checkpoint(self) -> Any:
        """The ``tf.train.Checkpoint``."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The run directory."""
        return os.fspath(self._checkpointer.directory)

    @property
    def checkpoint_interval(self) -> int | None:
        """The minimum number of steps between two checkpoints."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint that this rank knows to be complete, or ``None``.

        `sync` waits for checkpoints that are being written.

        Raises
        ------
        NoRestorableStepError
            If the directory has checkpoints, but none of them can be restored: ``restore(None)`` would begin at 0.
        """
        checkpoints = self.checkpoints
        if not checkpoints and self._problem:
            raise NoRestorableStepError(self._problem)
        return checkpoints[-1] if checkpoints else None

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that the manager may delete, the oldest first.

        Those that it keeps permanently are not in the list.
        """
        with contextlib.suppress(ClosedError):  # what is known is known
            self._checkpointer.poll()
        return [self._path(step) for step in self._keeping.steps]

    def save(
        self,
        checkpoint_number: Number | None = None,
        check_interval: bool = True,
        options: Any = None,  # noqa: ARG002 - TensorFlow's, of no effect
        *,
        metrics: Mapping[str, float] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save a checkpoint if one is due. Collective.

        Parameters
        ----------
        checkpoint_number : int or tf.Variable, optional
            Its number; by default ``checkpoint.save_counter``, which every save increments.
        check_interval : bool
            Whether to save only if `checkpoint_interval` steps have passed; otherwise save if the step has changed.
        options : tf.train.CheckpointOptions, optional
            Accepted; without effect.
        metrics : mapping of str to float, optional
            Stored with the checkpoint.
        objects : mapping, optional
            JSON values stored with it, see `restored`.

        Returns
        -------
        str or None
            The path of the checkpoint, which is written in the background; ``None`` if none was due.

        Raises
        ------
        StateError
            Inside a ``tf.function``, because a graph has no values; or if `checkpoint_number` is not a whole number.
        CollectiveError
            As `Checkpointer.save` does, for this checkpoint or the one before.
        """
        if not tf.executing_eagerly():
            raise StateError("manager.save() inside of a tf.function: call it between two calls of the function")
        if not self._is_due(check_interval):
            return None
        given = None if checkpoint_number is None else layout.as_step(checkpoint_number)
        counter = self._checkpoint.save_counter
        counter.assign_add(1)
        number = int(counter) if given is None else given
        self._preserve(number, metrics or {})
        self._save(number, metrics, objects)
        return self._path(number)

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint; if there is none, call `init_fn`. Collective.

        Returns
        -------
        str or None
            The path of the restored checkpoint.

        Raises
        ------
        StateMismatchError
            If shapes or dtypes differ; nothing is changed then.
        NoRestorableStepError
            If there are checkpoints, and none of them can be restored.
        """
        if self._has_any():
            self.restore()
            return None if self._restored is None else self._path(self._restored.step)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def sync(self) -> None:
        """Wait until all checkpoints are written, and in the run directory. Collective.

        Raises
        ------
        CollectiveError
            If one could not be written.
        """
        self._checkpointer.wait(durable=True)

    # -- what ours has besides -------------------------------------------------------------------

    def restore(self, save_path: str | os.PathLike[str] | int | None = None) -> Any:
        """Restore a checkpoint. Collective.

        Variables that do not exist yet get their values when they are created.
        ``checkpoint.restore(manager.latest_checkpoint)`` does the same.

        Parameters
        ----------
        save_path : path_like or int, optional
            A checkpoint of this or another directory, or a number; TensorFlow's own checkpoints are read too. By
            default the newest intact checkpoint.

        Returns
        -------
        CheckpointLoadStatus
            TensorFlow's own: ``assert_consumed()``, ``assert_existing_objects_matched()``, ``expect_partial()``.

        Raises
        ------
        StepNotFoundError, CorruptError, StateMismatchError
            As `Checkpointer.restore` does.
        """
        if save_path is None and not self._has_any():
            return self._checkpoint.restore(None)
        if isinstance(save_path, str | os.PathLike) and not is_step(save_path):
            return self._checkpoint.restore(save_path)
        self._checkpoint.save_counter  # noqa: B018 - makes it, so that it is there to be restored
        self._restored = self._restore(save_path)
        if self._interval is not None:
            self._last_step = int(self._step_counter)
        return last_status(self._checkpoint)

    @property
    def restored(self) -> Restored | None:
        """What the last restore brought back: its step, metrics, objects, and warnings."""
        return self._restored

    def poll(self) -> None:
        """Make progress in the background; call it after every step. Independent.

        It never blocks.
        """
        self._checkpointer.poll()

    def close(self) -> None:
        """Wait for all checkpoints, and release the run directory. Collective.

        Raises
        ------
        CollectiveError
            If one could not be written.
        """
        self._checkpointer.close()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checkpointer.__exit__(kind, error, trace)

    # -- how it is done --------------------------------------------------------------------------

    def _path(self, step: int) -> str:
        return os.path.join(self.directory, layout.step_dirname(step))

    def _look(self) -> None:
        """Take up what an earlier manager has left. Collective."""
        comm, keeping = self._checkpointer.comm, self._keeping
        found = comm.on_root("manager: look", lambda: look(self._checkpointer.directory, clock.now()))
        keeping.steps, keeping.last_preserved, self._problem = dict(found.steps), found.last_preserved, found.problem
        if comm.rank == 0 and not found.steps and not found.problem:
            _warn_of_other_checkpoints(self.directory)

    def _has_any(self) -> bool:
        """Return True if there is any checkpoint, even damaged or on scratch only. Collective."""
        self._checkpointer.wait(durable=True)
        return self._checkpointer.has_steps()

    def _is_due(self, check_interval: bool) -> bool:
        if self._interval is None:
            return True
        now, last = int(self._step_counter), self._last_step
        if last is not None and (now == last or (check_interval and now < last + self._interval)):
            return False
        self._last_step = now
        return True

    def _preserve(self, number: int, metrics: Mapping[str, float]) -> None:
        """Pin those of the steps that are about to go that are to stay for good. Collective."""
        if self._keeping.every_n_hours is None:
            return
        self._checkpointer.wait(durable=True)
        comm, keeping = self._checkpointer.comm, self._keeping
        stay = comm.bcast(keeping.preserved(keeping.going(number, metrics)))
        keeping.last_preserved = comm.bcast(keeping.last_preserved)
        for step in stay:
            self._checkpointer.pin(step)

    def _save(self, number: int, metrics: Mapping[str, float] | None, objects: Mapping[str, Any] | None) -> PendingSave:
        now = clock.now()
        self._in_flight[number] = SavedAt(now, dict(metrics) if isinstance(metrics, Mapping) else {})
        values = {**(objects or {}), **self._keeping.note(number, now)}
        return self._checkpointer.save(number, self._checkpoint, metrics=metrics, objects=values, overwrite=True)

    def _on_drained(self, saved: SavedStep) -> None:
        self._keeping.took(saved.step, self._in_flight.pop(saved.step, SavedAt(clock.now(), {})))

    def _restore(self, save_path: str | os.PathLike[str] | int | None) -> Restored:
        if not isinstance(save_path, str | os.PathLike):
            return self._checkpointer.restore(self._checkpoint, save_path)
        path = Path(os.path.abspath(save_path))
        if path.parent.resolve() == self._checkpointer.directory:
            return self._checkpointer.restore(self._checkpoint, layout.parse_step(path.name))
        return restore_from(self._checkpoint, path, self._checkpointer.comm)


def _warn_of_other_checkpoints(directory: str) -> None:
    """Log how to resume from what ``tf.train.CheckpointManager`` left in a directory without steps. Root only."""
    if tf.train.latest_checkpoint(directory) is None:
        return
    _log.warning(
        "hpcckpt: %s has checkpoints that TensorFlow wrote; latest_checkpoint does not name them. "
        "To resume from them the first time: "
        "manager.restore(manager.latest_checkpoint or tf.train.latest_checkpoint(%r))",
        directory, directory,
    )  # fmt: skip
