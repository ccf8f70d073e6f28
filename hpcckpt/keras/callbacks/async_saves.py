"""A callback's asynchronous saves: one at a time, reported when they are committed."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

from hpcckpt.checkpointer import Checkpointer, PendingSave
from hpcckpt.core.options import Level
from hpcckpt.core.results import SavedStep
from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.errors import CollectiveError, OptionError
from hpcckpt.keras.callbacks.weak_call import WeakCall

_writing: dict[str, Saves] = {}
"""Directory -> its writer in this process, for the default communicator."""


class Saves:
    """The run directory of a callback.

    Parameters
    ----------
    directory : path_like
        The run directory.
    comm : mpi4py communicator, optional
        The ranks.
    on_commit : bound method
        Called with each committed step; held by a weak reference.
    reports_when_durable : bool
        Called when the step is in the run directory, not when it is on scratch.
    **options
        For `Checkpointer`; newer steps are moved aside.

    Attributes
    ----------
    is_root : bool
        Whether this rank logs for all; known once the run directory is open, and still after it is released.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        comm: Any,
        on_commit: Callable[[SavedStep], None],
        *,
        reports_when_durable: bool = False,
        **options: Any,
    ) -> None:
        self.directory = os.fspath(directory)
        self._comm = comm
        self._options: dict[str, Any] = {"on_newer": "aside", **options}
        self._on_commit = WeakCall(on_commit)
        self._reports_when_durable = reports_when_durable
        self._checkpointer: Checkpointer | None = None
        self._pending: PendingSave | None = None
        self._is_ousted = False
        self.is_root = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Saves:
        """Return saves in the same directory that have not begun. Independent."""
        copied = memo[id(self)] = copy.copy(self)
        copied._on_commit = copy.deepcopy(self._on_commit, memo)
        copied._checkpointer = copied._pending = None
        return copied

    @property
    def checkpointer(self) -> Checkpointer:
        """The checkpointer; opened at first, which is Collective.

        Raises
        ------
        OptionError
            If another callback of this process has begun to save in the same directory.
        """
        if self._is_ousted:
            raise OptionError(f"{self.directory}: another callback saves there; give each callback its own directory")
        if self._checkpointer is None:
            self._oust_others()
            self._checkpointer = Checkpointer(self.directory, self._comm, **self._options)
            self.is_root = self._checkpointer.comm.is_root
            on_step = self._checkpointer.on_drained if self._reports_when_durable else self._checkpointer.on_saved
            on_step(self._on_commit)
        return self._checkpointer

    def begin(self) -> Checkpointer:
        """Open for a new ``fit``; what an earlier one left unfinished, in this directory, is finished. Collective."""
        self._is_ousted = False
        self.finish()
        return self.checkpointer

    def _oust_others(self) -> None:
        if self._comm is not None and self._comm.size > 1:  # several of them may be the ranks of one job
            return
        key = os.path.realpath(self.directory)
        earlier = _writing.get(key)
        _writing[key] = self
        if earlier is not None and earlier is not self:
            earlier._is_ousted = True
            with contextlib.suppress(CollectiveError):  # root has logged it
                earlier._close()

    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, float],
        objects: Mapping[str, Any],
        level: Level,
        overwrite: bool,
    ) -> None:
        """Begin to save, when the save before is committed; raise what kept that one from it. Collective."""
        self.finish()
        self._pending = self.checkpointer.save(
            step, state, metrics=metrics, objects=objects, level=level, overwrite=overwrite
        )

    def poll(self) -> None:
        """Advance background work; never blocks. Independent."""
        if self._pending is not None and self._checkpointer is not None:
            self._checkpointer.poll()

    def finish(self) -> None:
        """Wait until what was saved is committed; raise what kept it from it. Collective."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish, and give back the run directory. Collective."""
        if _writing.get(os.path.realpath(self.directory)) is self:
            del _writing[os.path.realpath(self.directory)]
        self._close()

    def _close(self) -> None:
        checkpointer, self._checkpointer, self._pending = self._checkpointer, None, None
        if checkpointer is not None:
            checkpointer.close()

    def print_lines(self, *lines: str) -> None:
        """Write lines, once over all ranks. Independent."""
        if self.is_root:  # not asked of `checkpointer`, which would open it again while it closes
            for line in lines:
                write_wrapped(line)
