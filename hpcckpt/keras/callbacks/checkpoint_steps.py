"""`ModelCheckpoint` in hpcckpt's format: steps of a run directory, with the user's names as links."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal, TypeGuard

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.results import SavedStep
from hpcckpt.core.tensors import name_problem
from hpcckpt.keras.callbacks.async_saves import Saves
from hpcckpt.keras.callbacks.checkpoint_request import (
    CHECKPOINT,
    BestCheckpoint,
    CheckpointRecord,
    CheckpointRequest,
    Finished,
    about,
    best_of,
)
from hpcckpt.keras.callbacks.step_links import link, run_directory, sweep
from hpcckpt.keras.callbacks.weak_call import WeakCall
from hpcckpt.keras.files.describe import describe
from hpcckpt.keras.log_lines import saved_line
from hpcckpt.keras.model.batch_norm import average, forget_means
from hpcckpt.preemption import Guard, watch
from hpcckpt.rundir.discovery import StepInfo, inspect_step, scan

_log = logging.getLogger("hpcckpt")


class CheckpointSteps:
    """Steps of a run directory, written by all ranks in the background.

    Parameters
    ----------
    filepath : str
        With placeholders: the names of steps; without: the run directory.
    comm : mpi4py communicator, optional
        The ranks that train together.
    finished : bound method
        Called when a step has its name; held weakly.
    is_weights_only : bool
        Whether what the model is built from is left out.
    is_logging : bool
        Whether a line is written for each step that is committed.
    max_to_keep : int, optional
        How many of the newest are kept; by default all with placeholders, one without.
    **options
        For `Checkpointer`.
    """

    def __init__(
        self,
        filepath: str,
        comm: Any,
        finished: Finished,
        *,
        is_weights_only: bool,
        is_logging: bool,
        max_to_keep: int | None,
        **options: Any,
    ) -> None:
        self._has_names = "{" in filepath
        self._finished = WeakCall(finished)
        self._is_weights_only, self._is_logging = is_weights_only, is_logging
        self._names: dict[int, tuple[int, str]] = {}
        self._newest = -1
        self._model: Any = None
        self._saves = Saves(
            run_directory(filepath),
            comm,
            self._committed,
            reports_when_durable=True,
            max_to_keep=max_to_keep if max_to_keep is not None or self._has_names else 1,
            **options,
        )

    @property
    def comm(self) -> Communicator:
        """The ranks; the run directory is opened on first use, which is Collective."""
        return self._saves.checkpointer.comm

    @property
    def is_root(self) -> bool:
        """Whether this rank writes messages."""
        return self._saves.is_root

    def begin(self, model: Any, *, is_loading: bool) -> None:
        """Open the run directory, and restore its newest step if asked. Collective."""
        self._model = model
        checkpointer = self._saves.begin()
        checkpointer.wait(durable=True)  # what a fit that failed has left gets its own names
        if is_loading and checkpointer.latest_step() is not None:
            checkpointer.restore({"model": model}, strict=False)

    def watch(self, every_n_minutes: float | Literal["auto"]) -> Guard:
        """Return what advises a save every N minutes. Collective."""
        options: dict[str, Any] = {"signals": (), "walltime": False, "halt_every_s": 0.0, "verbose": 0}
        return watch(self._saves.checkpointer, every_n_minutes=every_n_minutes, **options)

    def find_best(self, monitor: str, mode: str) -> BestCheckpoint | None:
        """Return the best value that a step records, where a mode is given. Collective.

        Steps that a killed job could not name get their names too.
        """
        directory = self._saves.checkpointer.directory

        def find() -> BestCheckpoint | None:
            steps = scan(directory) if directory.is_dir() else ()
            for info in steps if self._has_names else ():
                _name_again(info)
            return best_of(map(_stored, filter(_is_restorable, steps)), monitor, mode) if mode else None

        return self.comm.on_root("look for the best so far", find)

    def save(self, request: CheckpointRequest) -> None:
        """Begin to save a step. Collective."""
        self._saves.finish()  # it may be of the same step, and has to get its own name
        if request.step == self._newest:
            self._saves.checkpointer.wait(durable=True)
        self._newest = request.step
        name = os.path.relpath(request.path, self._saves.directory)
        self._names[request.step] = request.epoch, name
        found = describe(self._model)
        described = {"model": found["model"]} if self._is_weights_only else found
        average(self._model, self.comm)
        self._saves.save(
            request.step,
            {"model": self._model},
            metrics=request.metrics,
            objects={**request.objects, CHECKPOINT: {**about(request.objects), "name": name}, **described},
            level="weights",
            overwrite=True,
        )
        forget_means(self._model)

    def poll(self) -> None:
        """Continue what is done in the background; never blocks. Independent."""
        self._saves.poll()

    def close(self) -> None:
        """Finish what is in the background, and give back the run directory. Collective."""
        self._saves.close()

    def print_line(self, line: str) -> None:
        """Write a line, once over all ranks. Independent."""
        self._saves.print_lines(line)

    def _committed(self, saved: SavedStep) -> None:
        """Give a step that is in the run directory its name, and report it. Independent."""
        if saved.step not in self._names:  # an earlier job has left it on scratch
            if self._has_names and self.is_root:
                _name_again(inspect_step(saved.path.parent, saved.step))
            return
        epoch, name = self._names.pop(saved.step)
        warnings = list(saved.warnings)
        if self._has_names and self.is_root:
            warnings += filter(None, [link(saved.path.parent, name, saved.step)])
            sweep(saved.path.parent, name)
        if self._is_logging:
            self._saves.print_lines(saved_line(saved, epoch))
        self._finished(epoch, os.path.join(self._saves.directory, name))
        for text in warnings if self.is_root else ():
            _log.warning("%s", text)


def _is_restorable(info: StepInfo) -> bool:
    return info.manifest is not None and info.is_restorable


def _stored(info: StepInfo) -> CheckpointRecord:
    assert info.manifest is not None
    return CheckpointRecord(
        os.fspath(info.path.parent), info.step, info.manifest.metrics, info.manifest.objects.get("user")
    )


def _name_again(info: StepInfo | None) -> None:
    """Give a step its name, if the job was killed before. Root only."""
    if info is None or info.manifest is None:
        return
    directory, name = info.path.parent, about(info.manifest.objects.get("user")).get("name")
    if _is_name(name) and not os.path.lexists(directory / name):
        link(directory, name, info.step)


def _is_name(name: object) -> TypeGuard[str]:
    """Return True if a name that a manifest gives stays within the run directory. Pure."""
    return isinstance(name, str) and name_problem(name) is None
