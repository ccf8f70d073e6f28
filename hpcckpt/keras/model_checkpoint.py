"""Keras' `ModelCheckpoint`, over steps that are whole or absent. Every rank uses it alike, for it is collective."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard

import numpy as np
from keras.callbacks import Callback

from hpcckpt.config import Best
from hpcckpt.discovery import StepInfo, inspect_step, scan
from hpcckpt.keras.callbacks import plain_metrics
from hpcckpt.keras.checkpoint_options import check_frequency, check_options, checked_mode, complain, warn_of_old
from hpcckpt.keras.describing import describe
from hpcckpt.keras.lines import saved_line
from hpcckpt.keras.links import is_file_name, link, run_directory, sweep
from hpcckpt.keras.monitoring import IS_KERAS_3, averaged, direction, first_best, is_better
from hpcckpt.keras.saves import Saves
from hpcckpt.keras.statistics import average, forget_means
from hpcckpt.preemption import Guard, watch
from hpcckpt.run import SavedStep
from hpcckpt.tensors import name_problem

__all__ = ["ModelCheckpoint"]

_log = logging.getLogger("hpcckpt")
_CHECKPOINT = "checkpoint"
_WITHOUT = "" if IS_KERAS_3 else ", skipping"
"""Where the metric that decides is missing, Keras 2.15 saves nothing, and Keras 3 saves."""


class ModelCheckpoint(Callback):  # type: ignore[misc]  # Keras has no types
    """Save the model or its weights at some frequency, as ``keras.callbacks.ModelCheckpoint`` does. Collective.

    All options of Keras 2.15 and of Keras 3 are here, with their meaning and their messages, which are written once
    over all ranks. A path stands for a directory: with placeholders, ``training/cp-{epoch:04d}.ckpt``, all checkpoints
    are steps of the run directory ``training`` and have this name as a link; without, the path is the run directory,
    and its newest step is the checkpoint. What its name ends in does not matter.

    The metric that is monitored is averaged over the ranks before it is compared. With ``save_best_only`` a new run in
    the directory of an earlier one compares with the best that is stored there, and a line says so.

    Parameters
    ----------
    filepath : path_like
        Where to, with placeholders for ``epoch``, ``batch`` and whatever is in the logs.
    monitor : str
        Name of a metric.
    verbose : int
        0 is silent; 1 writes Keras' messages; 2 also a line for each step that is committed.
    save_best_only : bool
        Save only what is better than all before.
    save_weights_only : bool
        Leave out what `hpcckpt.keras.load_model` builds the model from. (The optimizer is saved in any case, as Keras
        does.)
    mode : {"auto", "min", "max"}
        Which values of the metric are better.
    save_freq : {"epoch"} or int
        After each epoch, or after so many batches.
    options : tf.train.CheckpointOptions or tf.saved_model.SaveOptions, optional
        As Keras 2.15 takes them; they have no effect.
    initial_value_threshold : float, optional
        The value to be better than at first, instead of the best of an earlier run in this directory;
        ``float("inf")`` (``-inf`` where larger is better) ignores that as Keras does.
    max_to_keep : int, optional
        How many of the newest are kept; all with placeholders, one without.
    keep_best : Best or str, optional
        Keep the best by a metric besides.
    every_n_minutes : float or "auto", optional
        Save so often too.
    backend : str
        Storage backend.
    backend_options : mapping, optional
        Options of the backend.
    scratch : path_like, optional
        A faster directory, such as the disk of the node: checkpoints are committed there, and get
        their names when they have been drained to the run directory in the background.
    scratch_bandwidth : float, optional
        Bytes per second that all ranks together may drain while the training goes on.
    comm : mpi4py communicator, optional
        The ranks that train together; ``None`` means MPI.COMM_WORLD when launched under MPI.
    async_save : bool
        Whether training goes on while a checkpoint is written.
    period : int
        Keras' old name for every so many epochs.
    load_weights_on_restart : bool
        Keras' old way to begin with what was saved last.

    Attributes
    ----------
    best : float or None
        The best value so far.

    Raises
    ------
    ValueError
        If `save_freq` is neither "epoch" nor a number.
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
        check_options(options, is_weights_only=save_weights_only)
        check_frequency(save_freq)
        warn_of_old(period, is_loading=load_weights_on_restart)
        self.filepath = os.fspath(filepath)
        self.monitor = monitor
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
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
        self._has_names = "{" in self.filepath
        self._saves = Saves(
            run_directory(self.filepath),
            comm,
            self._committed,
            is_heard_at_home=True,
            max_to_keep=max_to_keep if max_to_keep is not None or self._has_names else 1,
            keep_best=keep_best,
            backend=backend,
            backend_options=backend_options,
            scratch=scratch,
            scratch_bandwidth=scratch_bandwidth,
            async_save=async_save,
        )
        self._guard: Guard | None = None
        self._current_epoch = 0
        self._names: dict[int, tuple[int, str]] = {}
        self._is_new = self._is_restored = False
        self._n_steps = 0
        self._saved_step = -1

    # -- what Keras calls ------------------------------------------------------------------------

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Open the run directory. Collective."""
        del logs
        self._stop_watching()
        checkpointer = self._saves.begin()
        checkpointer.wait(durable=True)  # what a fit that failed has left gets its own names
        self._is_new, self._is_restored = True, False
        if self.load_weights_on_restart and checkpointer.latest_step() is not None:
            checkpointer.restore({"model": self.model}, strict=False)
        if self._every_n_minutes is not None:
            options: dict[str, Any] = {"signals": (), "walltime": False, "halt_every_s": 0.0, "verbose": 0}
            self._guard = watch(checkpointer, every_n_minutes=self._every_n_minutes, **options)
        if self.verbose and is_file_name(self.filepath):
            self._saves.say(f"hpcckpt: note: {self.filepath} is a directory of checkpoints, not a file of Keras'")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Remember the epoch; before the first one, what was best so far. Collective at first."""
        del logs
        self._current_epoch = epoch
        if self._is_new:
            self._is_new = False
            self._take_over_best(is_going_on=epoch > 0 or self._iterations() > 0)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        self._saves.poll()
        self._n_steps += 1
        is_due = self._is_due_on_batch(batch)
        if self._guard is not None:
            is_due = self._guard.check(self._n_steps).save or is_due
        if is_due:
            self._save_model(self._current_epoch, batch, logs or {})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time. Collective."""
        self.epochs_since_last_save += 1
        if self.save_freq == "epoch" and self.epochs_since_last_save >= self.period:
            self._save_model(epoch, None, logs or {})

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finish what is under way. Collective."""
        del logs
        self.close()

    def close(self) -> None:
        """Give back the run directory; needed only if a ``fit`` that failed is not tried again. Collective."""
        self._stop_watching()
        self._saves.close()

    # -- its own state, for callbacks that back a training up --------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what has changed while training. Independent."""
        return {
            "best": self.best,
            "epochs_since_last_save": self.epochs_since_last_save,
            "batches_seen": self._batches_seen_since_last_saving,
            "last_batch": self._last_batch_seen,
            "n_steps": self._n_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned. Independent."""
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
        """Say whether what was reached is to be saved, and tell of it. Independent."""
        if not self.save_best_only:
            self._say(f"\nEpoch {epoch + 1}: saving model to {path}")
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
            self._say(f"\nEpoch {epoch + 1}: {self.monitor} did not improve from {before}")
            return False
        self._say(
            f"\nEpoch {epoch + 1}: {self.monitor} improved from {before} to {current:.5f}, saving model to {path}"
        )
        self.best = current
        return True

    # -- saving ----------------------------------------------------------------------------------

    def _save_model(self, epoch: int, batch: int | None, own_logs: Mapping[str, Any]) -> None:
        """Save, if it is good enough. Collective."""
        checkpointer = self._saves.checkpointer
        logs = averaged(own_logs, checkpointer.comm)
        self.epochs_since_last_save = 0
        path = self._path(epoch, batch, logs)
        if not self._is_wanted(epoch, logs, path):
            return
        step = self._iterations() or self._n_steps
        name = os.path.relpath(path, self._saves.directory)
        self._saves.finish()  # it may be of the same step, and has to get its own name
        if step == self._saved_step:
            checkpointer.wait(durable=True)
        self._saved_step = step
        self._names[step] = (epoch, name)
        best = self.best if self.best is not None and math.isfinite(self.best) else None
        about = {"name": name, "monitor": self.monitor, "best": best, "weights_only": self.save_weights_only}
        done = {"epoch": epoch + 1 if batch is None else epoch, "batch": 0 if batch is None else batch + 1}
        average(self.model, checkpointer.comm)
        self._saves.save(
            step,
            {"model": self.model},
            metrics=plain_metrics(logs),
            objects={**done, "step": step, _CHECKPOINT: about, **self._description()},
            level="weights",
            overwrite=True,
        )
        forget_means(self.model)

    def _path(self, epoch: int, batch: int | None, logs: Mapping[str, Any]) -> str:
        values = dict(logs) if batch is None or "batch" in logs else {"batch": batch + 1, **logs}
        try:
            return self.filepath.format(epoch=epoch + 1, **values)
        except KeyError as error:
            raise KeyError(f'Failed to format this callback filepath: "{self.filepath}". Reason: {error}') from error

    def _description(self) -> dict[str, Any]:
        found = describe(self.model)
        return {"model": found["model"]} if self.save_weights_only else found

    def _iterations(self) -> int:
        found = getattr(getattr(self.model, "optimizer", None), "iterations", None)
        return 0 if found is None else int(np.asarray(found))

    def _committed(self, saved: SavedStep) -> None:
        """Give a step that is in the run directory its name, and tell of it. Independent."""
        if saved.step not in self._names:  # an earlier job has left it on scratch
            if self._has_names and self._saves.is_root:
                _name_again(inspect_step(saved.path.parent, saved.step))
            return
        epoch, name = self._names.pop(saved.step)
        warnings = list(saved.warnings)
        if self._has_names and self._saves.is_root:
            warnings += filter(None, [link(saved.path.parent, name, saved.step)])
            sweep(saved.path.parent, name)
        if self.verbose > 1:
            self._saves.say(saved_line(saved, epoch))
        if IS_KERAS_3:
            self._say(f"\nEpoch {epoch + 1}: finished saving model to {os.path.join(self._saves.directory, name)}")
        for text in warnings:
            self._warn(text)

    def _take_over_best(self, *, is_going_on: bool) -> None:
        """Compare with what is best in the run directory, unless the program sets a threshold. Collective.

        Steps that a killed job could not name get their names too.
        """
        directory, comm = self._saves.checkpointer.directory, self._saves.checkpointer.comm
        mode = direction(self.monitor, self.mode, self.model) if self.save_best_only else ""

        def find() -> tuple[float, int] | None:
            steps = scan(directory) if directory.is_dir() else ()
            for info in steps if self._has_names else ():
                _name_again(info)
            return _best_in(steps, self.monitor, mode) if mode else None

        found = comm.on_root("look for the best so far", find)
        if found is None or self._is_restored:
            return
        best, step = found
        if not is_going_on and self._has_threshold:
            text = (
                f"hpcckpt: best {self.monitor} in {directory} is {best:.5f} (step {step}); this run is compared with "
            )
            self._saves.say(f"{text}initial_value_threshold={self.best:.5f} instead")
        elif self.best is None or is_better(best, self.best, mode):
            self.best = best
            if self.verbose or not is_going_on:
                text = (
                    f"hpcckpt: best {self.monitor} so far {best:.5f} (step {step} in {directory}): only better models"
                )
                worst = "-inf" if mode == "max" else "inf"
                self._saves.say(f"{text} are saved; to ignore it pass initial_value_threshold=float('{worst}')")

    # -- small things ----------------------------------------------------------------------------

    def _stop_watching(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    def _say(self, message: str) -> None:
        """Say what Keras says, where Keras would, once over all ranks. Independent."""
        if self.verbose > 0 and self._saves.is_root:
            from keras.src.utils import io_utils

            io_utils.print_msg(message)

    def _complain(self, text: str) -> None:
        """Warn of what Keras warns of, once over all ranks. Independent."""
        if self._saves.is_root:
            complain(text)

    def _warn(self, text: str) -> None:
        if self._saves.is_root:
            _log.warning("%s", text)


def _best_in(steps: Sequence[StepInfo], monitor: str, mode: str) -> tuple[float, int] | None:
    """Return the best value of a metric that a step says of itself or of those before it, and the step. Pure."""
    found: tuple[float, int] | None = None
    for info in steps:
        if info.manifest is None or not info.is_restorable:
            continue
        about = _about(info)
        values = [info.manifest.metrics.get(monitor), about.get("best") if about.get("monitor") == monitor else None]
        for value in values:
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            if found is None or is_better(value, found[0], mode):
                found = value, info.step
    return found


def _about(info: StepInfo | None) -> Mapping[str, Any]:
    """Return what a step says about itself; empty if it is not one of ours. Independent."""
    user = info.manifest.objects.get("user") if info is not None and info.manifest is not None else None
    about = user.get(_CHECKPOINT) if isinstance(user, Mapping) else None
    return about if isinstance(about, Mapping) else {}


def _name_again(info: StepInfo) -> None:
    """Give a step its name, of which the job was killed before it had it. Root only."""
    directory, name = info.path.parent, _about(info).get("name")
    if _is_name(name) and not os.path.lexists(directory / name):
        link(directory, name, info.step)


def _is_name(name: object) -> TypeGuard[str]:
    """Say whether a name that a manifest gives stays within the run directory. Pure."""
    return isinstance(name, str) and name_problem(name) is None
