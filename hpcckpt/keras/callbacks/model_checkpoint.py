"""Keras' `ModelCheckpoint`: when to save, and what is best. Every rank calls it, because it is collective.

`CheckpointSteps` (hpcckpt's own checkpoints) and `CheckpointFiles` (Keras' files) know what is saved, and where.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from keras.callbacks import Callback

from hpcckpt.core.options import Best
from hpcckpt.keras.callbacks.backup_and_restore import plain_metrics
from hpcckpt.keras.callbacks.checkpoint_files import CheckpointFiles
from hpcckpt.keras.callbacks.checkpoint_options import (
    check_frequency,
    check_options,
    checked_mode,
    complain,
    warn_of_old,
)
from hpcckpt.keras.callbacks.checkpoint_request import CHECKPOINT, CheckpointRequest
from hpcckpt.keras.callbacks.checkpoint_steps import CheckpointSteps
from hpcckpt.keras.callbacks.file_formats import (
    choose_format,
    choose_weights_only,
    refuse_as_keras,
    refuse_storage_options,
)
from hpcckpt.keras.callbacks.fit_hooks import running_callbacks
from hpcckpt.keras.callbacks.monitor import averaged, direction, first_best, has_direction, is_better
from hpcckpt.keras.data.skip_progress import mark_bar
from hpcckpt.keras.versions import IS_KERAS_3
from hpcckpt.preemption import Guard

__all__ = ["ModelCheckpoint"]

_WITHOUT = "" if IS_KERAS_3 else ", skipping"
"""Where the metric that decides is missing, Keras 2.15 saves nothing, and Keras 3 saves."""


class ModelCheckpoint(Callback):  # type: ignore[misc]  # Keras has no types
    """Save the model or its weights at some frequency, as ``keras.callbacks.ModelCheckpoint`` does. Collective.

    It has all options of Keras 2.15 and of Keras 3, with the same meaning and the same messages; only root writes the
    messages.

    The path decides what is saved. If it ends in ``.keras``, ``.weights.h5`` or ``.h5``, or if `format` is given, Keras
    writes its own files: root writes each file completely or not at all, and all ranks wait. Otherwise all ranks write
    checkpoints of hpcckpt. If the path has placeholders, such as ``training/cp-{epoch:04d}.ckpt``, each checkpoint is a
    step of the run directory ``training``, and a link with this name leads to it. Without placeholders the path is the
    run directory, and its newest step is the checkpoint.

    The monitored metric is averaged over the ranks before it is compared. With ``save_best_only`` a new run compares
    with the best value that an earlier run has saved under this path, and logs that value.

    Parameters
    ----------
    filepath : path_like
        Where to save, with placeholders for ``epoch``, ``batch`` and any value in the logs.
    monitor : str
        Name of a metric.
    verbose : int
        0 is silent; 1 writes Keras' messages; 2 also a line for each step that is committed.
    save_best_only : bool
        Save only if the metric is better than ever before.
    save_weights_only : bool
        Leave out the description from which `hpcckpt.keras.load_model` builds the model. (The optimizer is always
        saved, as by Keras.)
    mode : {"auto", "min", "max"}
        Which values of the metric are better.
    save_freq : {"epoch"} or int
        After each epoch, or after N batches.
    options : tf.train.CheckpointOptions or tf.saved_model.SaveOptions, optional
        Accepted as in Keras 2.15; without effect.
    initial_value_threshold : float, optional
        The first save must be better than this value, instead of the best value of an earlier run in this directory.
        ``float("inf")`` (``-inf`` if larger is better) ignores earlier runs, as Keras does.
    format : {"keras", "weights.h5", "h5", "tf", "savedmodel"}, optional
        The format of the files: those of Keras, TensorFlow checkpoints (``tf``: weights, as ``model.save_weights`` of
        Keras 2.15 writes them) or SavedModels. By default the end of the path decides.
    max_to_keep : int, optional
        Number of newest checkpoints to keep; by default all with placeholders, one without. This option and
        those below, up to `async_save`, are for checkpoints of hpcckpt.
    keep_best : Best or str, optional
        Also keep the best checkpoint by a metric.
    every_n_minutes : float or "auto", optional
        Also save after this time; ``"auto"`` computes it from the cost of saves and the frequency of failures.
    backend : str
        Storage backend.
    backend_options : mapping, optional
        Options of the backend.
    scratch : path_like, optional
        A faster directory, such as the disk of the node: checkpoints are committed there, and get
        their names when they have been drained to the run directory in the background.
    scratch_bandwidth : float, optional
        Bytes per second that all ranks together may drain while the training continues.
    comm : mpi4py communicator, optional
        The ranks that train together; ``None`` means MPI.COMM_WORLD when launched under MPI.
    async_save : bool
        Whether training continues while a checkpoint is written.
    period : int
        Keras' old option to save every N epochs.
    load_weights_on_restart : bool
        Keras' old option to begin with the weights that were saved last.

    Attributes
    ----------
    best : float or None
        The best value so far.

    Raises
    ------
    ValueError
        If `save_freq` is neither "epoch" nor a number, or Keras refuses the path.
    OptionError
        If `format` and path contradict each other, or an option does not apply to Keras' own files.
    TypeError
        If `options` is not what Keras takes, or an option does not exist.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Literal["epoch"] | int = "epoch",
        options: Any = None,
        initial_value_threshold: float | None = None,
        *,
        format: str | None = None,  # noqa: A002 - as Keras calls it
        max_to_keep: int | None = None,
        keep_best: Best | str | None = None,
        every_n_minutes: float | Literal["auto"] | None = None,
        backend: str = "rankfile",
        backend_options: Mapping[str, Any] | None = None,
        scratch: str | os.PathLike[str] | None = None,
        scratch_bandwidth: float | None = None,
        comm: Any = None,
        async_save: bool = True,
        period: int | None = None,
        load_weights_on_restart: bool | None = None,
    ) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        if IS_KERAS_3 and isinstance(options, int | float):  # there the threshold is the eighth
            options, initial_value_threshold = None, float(options)
        self.filepath = os.fspath(filepath)
        self.file_format = choose_format(self.filepath, format)
        self.save_weights_only = choose_weights_only(format, is_weights_only=save_weights_only)
        if self.file_format is not None:
            refuse_as_keras(self.filepath, self.file_format, options, is_weights_only=self.save_weights_only)
        check_options(options, is_weights_only=self.save_weights_only)
        check_frequency(save_freq)
        warn_of_old(period, is_loading=load_weights_on_restart)
        self.monitor = monitor
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.mode = checked_mode(mode)
        self.save_freq = save_freq
        self.period = 1 if period is None else period
        self.load_weights_on_restart = bool(load_weights_on_restart)
        self._has_threshold = initial_value_threshold is not None
        self.best = initial_value_threshold
        if self.best is None and not IS_KERAS_3:
            self.best = first_best(direction(monitor, self.mode, None))
        self.epochs_since_last_save = 0
        self._batches_seen_since_last_saving = 0
        self._last_batch_seen = -1
        self._every_n_minutes = every_n_minutes
        self._target: CheckpointSteps | CheckpointFiles
        storage: dict[str, Any] = {"keep_best": keep_best, "backend": backend, "backend_options": backend_options}
        storage |= {"scratch": scratch, "scratch_bandwidth": scratch_bandwidth}
        if self.file_format is None:
            self._target = CheckpointSteps(
                self.filepath,
                comm,
                self._finished,
                is_weights_only=self.save_weights_only,
                is_logging=verbose > 1,
                max_to_keep=max_to_keep,
                async_save=async_save,
                **storage,
            )
        else:
            refused = {"max_to_keep": max_to_keep, "every_n_minutes": every_n_minutes, **storage}
            refuse_storage_options(self.filepath, {**refused, "backend": None if backend == "rankfile" else backend})
            self._target = CheckpointFiles(
                self.filepath,
                self.file_format,
                comm,
                self._finished,
                is_weights_only=self.save_weights_only,
                options=options,
            )
        self._guard: Guard | None = None
        self._fit_callbacks: list[Any] | None = None
        self._current_epoch = 0
        self._is_new = self._is_restored = False
        self._is_going_on: bool | None = None
        self._n_steps = 0

    @property
    def monitor_op(self) -> Any:
        """NumPy's function that compares a value with the best.

        With Keras 3 it is None until Keras knows whether larger values are better.
        """
        model = getattr(self, "model", None)
        if not has_direction(self.monitor, self.mode, model):
            return None
        return np.greater if direction(self.monitor, self.mode, model) == "max" else np.less

    @monitor_op.setter
    def monitor_op(self, function: Any) -> None:
        """Set `mode` by a comparison function, as subclasses in Keras do."""
        self.mode = "max" if function in (np.greater, np.greater_equal) else "min"

    # -- what Keras calls ------------------------------------------------------------------------

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Check the path, and load what was saved last if requested. Collective."""
        del logs
        self._stop_watching()
        self._is_new, self._is_going_on, self._is_restored = True, None, False
        self._fit_callbacks = running_callbacks()
        self._target.begin(self.model, is_loading=self.load_weights_on_restart)
        if self._every_n_minutes is not None and isinstance(self._target, CheckpointSteps):
            self._guard = self._target.watch(self._every_n_minutes)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the epoch. Collective in the first epoch of a ``fit``.

        In the first epoch it also finds the best value so far.
        """
        del logs
        mark_bar(None)
        self._current_epoch = epoch
        if self._is_new and self._is_going_on is None:
            self._is_going_on = epoch > 0 or self._iterations() > 0
            if has_direction(self.monitor, self.mode, self.model):
                self._take_over_best()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        mark_bar(self._fit_callbacks)
        self._target.poll()
        self._n_steps += 1
        is_due = self._is_due_on_batch(batch)
        if self._guard is not None:
            is_due = self._guard.check(self._n_steps).save or is_due
        if is_due:
            self._save_model(self._current_epoch, batch, logs or {})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        mark_bar(self._fit_callbacks)
        self.epochs_since_last_save += 1
        if self.save_freq == "epoch" and self.epochs_since_last_save >= self.period:
            self._save_model(epoch, None, logs or {})

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finish saves in flight. Collective."""
        del logs
        mark_bar(None)
        self._fit_callbacks = None
        self.close()

    def close(self) -> None:
        """Release the run directory. Collective.

        This is needed only if a ``fit`` that failed is not repeated.
        """
        self._stop_watching()
        self._target.close()

    # -- its own state, for callbacks that back a training up --------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that changes during training. Independent."""
        return {
            "best": self.best,
            "epochs_since_last_save": self.epochs_since_last_save,
            "batches_seen": self._batches_seen_since_last_saving,
            "last_batch": self._last_batch_seen,
            "n_steps": self._n_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the state that `state_dict` returned. Independent."""
        self.best = state["best"]
        self.epochs_since_last_save = state["epochs_since_last_save"]
        self._batches_seen_since_last_saving = state["batches_seen"]
        self._last_batch_seen = state["last_batch"]
        self._n_steps = state.get("n_steps", self._n_steps)  # backups of before do not have it
        self._is_restored = True

    # -- when ------------------------------------------------------------------------------------

    def _is_due_on_batch(self, batch: int) -> bool:
        """Count batches as Keras does: several at once if it is compiled with ``steps_per_execution``."""
        if self.save_freq == "epoch":
            return False
        is_new_epoch = batch <= self._last_batch_seen
        self._batches_seen_since_last_saving += batch + 1 if is_new_epoch else batch - self._last_batch_seen
        self._last_batch_seen = batch
        if self._batches_seen_since_last_saving < self.save_freq:
            return False
        self._batches_seen_since_last_saving = 0
        return True

    def _is_wanted(self, epoch: int, logs: Mapping[str, Any], path: str) -> bool:
        """Return True if the value reached is to be saved, and log it. Independent."""
        if not self.save_best_only:
            self._print_line(f"\nEpoch {epoch + 1}: saving model to {path}")
            return True
        current = logs.get(self.monitor)
        if current is None:
            self._complain(f"Can save best model only with {self.monitor} available{_WITHOUT}.")
            return IS_KERAS_3
        if np.ndim(current):
            self._complain(
                f"Can save best model only when `monitor` is a scalar value. Received: {current}. "
                "Falling back to `save_best_only=False`."
            )
            return True
        before = "None" if self.best is None else f"{self.best:.5f}"
        if not is_better(current, self.best, direction(self.monitor, self.mode, self.model)):
            self._print_line(f"\nEpoch {epoch + 1}: {self.monitor} did not improve from {before}")
            return False
        self._print_line(
            f"\nEpoch {epoch + 1}: {self.monitor} improved from {before} to {current:.5f}, saving model to {path}"
        )
        self.best = current
        return True

    # -- saving ----------------------------------------------------------------------------------

    def _save_model(self, epoch: int, batch: int | None, own_logs: Mapping[str, Any]) -> None:
        """Save, if it is good enough. Collective."""
        if self._is_new:  # Keras 3 knows the direction of some metrics after the first batch only
            self._take_over_best()
        logs = averaged(own_logs, self._target.comm)
        self.epochs_since_last_save = 0
        path = self._path(epoch, batch, logs)
        if not self._is_wanted(epoch, logs, path):
            return
        step = self._iterations() or self._n_steps
        best = self.best if self.best is not None and math.isfinite(self.best) else None
        about = {"monitor": self.monitor, "best": best, "weights_only": self.save_weights_only}
        done = {"epoch": epoch + 1 if batch is None else epoch, "batch": 0 if batch is None else batch + 1}
        objects = {**done, "step": step, CHECKPOINT: about}
        self._target.save(CheckpointRequest(step, epoch, path, plain_metrics(logs), objects))

    def _path(self, epoch: int, batch: int | None, logs: Mapping[str, Any]) -> str:
        values = dict(logs) if batch is None or "batch" in logs else {"batch": batch + 1, **logs}
        try:
            return self.filepath.format(epoch=epoch + 1, **values)
        except KeyError as error:
            raise KeyError(f'Failed to format this callback filepath: "{self.filepath}". Reason: {error}') from error

    def _iterations(self) -> int:
        found = getattr(getattr(self.model, "optimizer", None), "iterations", None)
        return 0 if found is None else int(found.numpy())  # NumPy cannot read variables of tf.distribute itself

    def _finished(self, epoch: int, path: str) -> None:
        """Write Keras 3's message about a save that is finished. Independent."""
        if IS_KERAS_3:
            self._print_line(f"\nEpoch {epoch + 1}: finished saving model to {path}")

    def _take_over_best(self) -> None:
        """Compare with what is best under this path, unless the program sets a threshold. Collective."""
        self._is_new = False
        mode = direction(self.monitor, self.mode, self.model) if self.save_best_only else ""
        found = self._target.find_best(self.monitor, mode)
        if found is None or self._is_restored:
            return
        best, step, place = found
        if not self._is_going_on and self._has_threshold:
            text = f"hpcckpt: best {self.monitor} in {place} is {best:.5f} (step {step}); this run is compared with "
            self._target.print_line(f"{text}initial_value_threshold={self.best:.5f} instead")
        elif self.best is None or is_better(best, self.best, mode):
            self.best = best
            if self.verbose or not self._is_going_on:
                worst = "-inf" if mode == "max" else "inf"
                self._target.print_line(
                    f"hpcckpt: best {self.monitor} so far {best:.5f} (step {step} in {place}): only better models are "
                    f"saved; to ignore it pass initial_value_threshold=float('{worst}')"
                )

    # -- small things ----------------------------------------------------------------------------

    def _stop_watching(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    def _print_line(self, message: str) -> None:
        """Print a line as Keras does, once over all ranks. Independent."""
        if self.verbose > 0 and self._target.is_root:
            from keras.src.utils import io_utils

            io_utils.print_msg(message)

    def _complain(self, text: str) -> None:
        """Warn of what Keras warns of, once over all ranks. Independent."""
        if self._target.is_root:
            complain(text)
