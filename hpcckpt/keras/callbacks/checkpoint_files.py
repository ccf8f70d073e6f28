"""Where `ModelCheckpoint` writes files of Keras or TensorFlow: root writes each one, and all ranks wait for it."""

from __future__ import annotations

import glob
import os
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.connect import as_communicator
from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.errors import HpcckptError
from hpcckpt.format.note import Note
from hpcckpt.keras.callbacks.checkpoint_request import (
    BestCheckpoint,
    CheckpointRecord,
    CheckpointRequest,
    Finished,
    best_of,
)
from hpcckpt.keras.callbacks.weak_call import WeakCall
from hpcckpt.keras.files.tf_files import INDEX, latest
from hpcckpt.keras.files.write_file import read_note, refuse_directory, visible_file, write_file

T = TypeVar("T")


class CheckpointFiles:
    """Files, or SavedModels, named as Keras' callback names them.

    Parameters
    ----------
    filepath : str
        With or without placeholders.
    file_format : str
        One of `hpcckpt.keras.callbacks.file_formats.FORMATS`.
    is_weights_only : bool
        Whether only weights are written.
    options : tf.train.CheckpointOptions or tf.saved_model.SaveOptions, optional
        For Keras 2.15.
    comm : mpi4py communicator, optional
        The ranks that train together.
    finished : bound method
        Called when a file is saved; held weakly.
    """

    def __init__(
        self, filepath: str, file_format: str, comm: Any, finished: Finished, *, is_weights_only: bool, options: Any
    ) -> None:
        self._filepath, self._format = filepath, file_format
        self._is_weights_only, self._options, self._given_comm = is_weights_only, options, comm
        self._finished = WeakCall(finished)
        self._comm: Communicator | None = None
        self._model: Any = None

    # -- what ModelCheckpoint asks for -------------------------------------------------------------

    @property
    def comm(self) -> Communicator:
        """The ranks; made on first use, which is Collective."""
        if self._comm is None:
            self._comm = as_communicator(self._given_comm)
        return self._comm

    @property
    def is_root(self) -> bool:
        """Whether this rank writes."""
        return self.comm.is_root

    def begin(self, model: Any, *, is_loading: bool) -> None:
        """Check that no directory is where files go, and load the newest file if asked. Collective."""
        self._model = model
        newest = self._on_root("check where files are saved", self._checked_newest)
        if is_loading and newest is not None:
            self.comm.agree("load weights on restart", lambda: self._load(newest))

    def find_best(self, monitor: str, mode: str) -> BestCheckpoint | None:
        """Return the best value that a file records, where a mode is given. Collective."""
        if not mode:
            return None
        return self.comm.on_root("look for the best so far", lambda: best_of(self._stored(), monitor, mode))

    def save(self, request: CheckpointRequest) -> None:
        """Write a file, on root; all ranks return when it is durable. Collective."""
        objects = {"user": dict(request.objects)}
        note = Note(request.step, ranks=self.comm.size, metrics=request.metrics, objects=objects)
        path = Path(request.path)
        self._on_root(
            f"save {path}",
            lambda: write_file(
                path, self._format, self._model, note, is_weights_only=self._is_weights_only, options=self._options
            ),
        )
        self._finished(request.epoch, request.path)

    def poll(self) -> None:
        """Do nothing: nothing is in the background. Independent."""

    def close(self) -> None:
        """Give back the communicator. Collective."""
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.free()

    def print_line(self, line: str) -> None:
        """Write a line, once over all ranks. Independent."""
        if self.is_root:
            write_wrapped(line)

    # -- root --------------------------------------------------------------------------------------

    def _on_root(self, phase: str, act: Callable[[], T]) -> T:
        """Run something on root; root raises what Keras raises, the other ranks `CollectiveError`. Collective."""
        own: list[Exception] = []

        def attempt() -> T:
            try:
                return act()
            except Exception as error:
                own.append(error)
                raise

        try:
            return self.comm.on_root(phase, attempt)
        except HpcckptError as error:
            if own and not isinstance(own[0], HpcckptError):
                raise own[0] from error
            raise

    def _checked_newest(self) -> Path | None:
        found = self._found()
        for path in found:
            refuse_directory(path, self._format)
        newest = latest(Path(self._filepath).parent) if self._format == "tf" else None
        seen = [(visible_file(path, self._format), path) for path in found]
        times = [(file.stat().st_mtime_ns, path) for file, path in seen if file.exists()]
        return newest if newest in found else max(times, default=(0, None))[1]

    def _found(self) -> list[Path]:
        """Return the paths that the placeholders can give and that exist."""
        literals = (text for text, *_ in string.Formatter().parse(self._filepath))
        pattern = "*".join(glob.escape(text) for text in literals)
        pattern += "*" if self._filepath.endswith("}") else ""
        names = set(glob.glob(pattern))
        if self._format == "tf":
            names |= {name.removesuffix(INDEX) for name in glob.glob(pattern + glob.escape(INDEX))}
        return sorted(map(Path, names))

    def _stored(self) -> Iterator[CheckpointRecord]:
        for path in self._found():
            note = read_note(path, self._format) if visible_file(path, self._format).exists() else None
            if note is not None:
                yield CheckpointRecord(os.fspath(path), note.step, note.metrics, (note.objects or {}).get("user"))

    # -- all ranks ---------------------------------------------------------------------------------

    def _load(self, path: Path) -> None:
        try:
            self._model.load_weights(os.fspath(path))
        except (OSError, ValueError) as error:
            raise ValueError(f"Error loading file from {path}. Reason: {error}") from error
