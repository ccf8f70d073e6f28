"""Saves of a callback that go on in the background: one at a time, told of when they are committed."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from hpcckpt.checkpointer import Checkpointer, PendingSave
from hpcckpt.config import Level
from hpcckpt.errors import CollectiveError, OptionError
from hpcckpt.run import SavedStep
from hpcckpt.streams import write_wrapped

_writing: dict[str, Saves] = {}
"""Who writes where in this process, if it is for the default communicator."""


class Saves:
    """The run directory of a callback.

    Parameters
    ----------
    directory : path_like
        The run directory.
    comm : mpi4py communicator, optional
        The ranks.
    hear : bound method
        Told of each step that is committed; held weakly.
    is_heard_at_home : bool
        Told when it is in the run directory, not when it is on scratch.
    **options
        For `Checkpointer`; newer steps are moved aside.

    Attributes
    ----------
    is_root : bool
        Whether this rank speaks for all; known once the run directory is open, and still when it is given back.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        comm: Any,
        hear: Callable[[SavedStep], None],
        *,
        is_heard_at_home: bool = False,
        **options: Any,
    ) -> None:
        self.directory = os.fspath(directory)
        self._comm = comm
        self._options: dict[str, Any] = {"on_newer": "aside", **options}
        self._hear = weakref.WeakMethod(hear)
        self._is_heard_at_home = is_heard_at_home
        self._checkpointer: Checkpointer | None = None
        self._pending: PendingSave | None = None
        self._is_ousted = False
        self.is_root = False

    @property
    def checkpointer(self) -> Checkpointer:
        """The checkpointer; opened at first, which is Collective.

        Raises
        ------
        OptionError
            If another callback of this process has begun to save in the same directory.
        """
        if self._is_ousted:
            raise OptionError(f"{self.directory}: another callback saves there; every one needs a directory of its own")
        if self._checkpointer is None:
            self._oust_others()
            self._checkpointer = Checkpointer(self.directory, self._comm, **self._options)
            self.is_root = self._checkpointer.comm.is_root
            on_step = self._checkpointer.on_drained if self._is_heard_at_home else self._checkpointer.on_saved
            on_step(self._told)
        return self._checkpointer

    def begin(self) -> Checkpointer:
        """Open for a new ``fit``; what an earlier one left unfinished, in this directory, is finished. Collective."""
        self._is_ousted = False
        self.finish()
        return self.checkpointer

    def _oust_others(self) -> None:
        if self._comm is not None:  # several of them may be the ranks of one job
            return
        key = os.path.realpath(self.directory)
        earlier = _writing.get(key)
        _writing[key] = self
        if earlier is not None and earlier is not self:
            earlier._is_ousted = True
            with contextlib.suppress(CollectiveError):  # root has logged it
                earlier._close()

    def _told(self, saved: SavedStep) -> None:
        hear = self._hear()
        if hear is not None:
            hear(saved)

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
        """Carry on what goes on in the background; never blocks. Independent."""
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

    def say(self, *lines: str) -> None:
        """Write lines, once over all ranks. Independent."""
        if self.is_root:  # not asked of `checkpointer`, which would open it again while it closes
            for line in lines:
                write_wrapped(line)
