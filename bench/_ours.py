"""hpcckpt as a peer among peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from _peers import Wait
from mpi4py import MPI

import hpcckpt as hc
from hpcckpt import native

DURABLE = "files, directories, commit"


class Ours:
    """One checkpointer, which stays open between the measurements and keeps one step, as a job's does."""

    def __init__(self, place: Path, state: Mapping[str, Any], comm: MPI.Comm, **options: Any) -> None:
        self.state, self.step = state, 0
        self.ckpt = hc.Checkpointer(place, comm=comm, max_to_keep=1, check_replicas=0, **options)

    def begin(self) -> Wait:
        """Begin to save a step; return what waits until it is committed. Collective."""
        self.step += 1
        return self.ckpt.save(self.step, self.state).result

    def save(self) -> None:
        """Save a step, and wait until it is committed. Collective."""
        self.saved = self.begin()()

    def finish_removal(self) -> None:
        """Wait until the step that the last save retired is removed."""
        self.ckpt._session.rundir.workspace.finish_removal()

    def restore(self) -> None:
        """Restore the newest step, verified. Collective."""
        self.ckpt.restore(self.state)

    def restore_unverified(self) -> None:
        """Restore, the checksums left out of what the native part is asked to do. Collective."""
        read = native.read_blocks

        def unverified(fd: int, pieces: Iterable[Any], **options: Any) -> Any:
            return read(fd, [(data, offset, None) for data, offset, _ in pieces], **options)

        with mock.patch.object(native, "read_blocks", unverified):
            self.restore()

    def close(self) -> None:
        """End. Collective."""
        self.ckpt.close()
