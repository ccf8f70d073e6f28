"""What the drivers of the backend ``hdf5`` have in common."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpcckpt import native
from hpcckpt._version import __version__
from hpcckpt.backends.base import Payload
from hpcckpt.backends.hdf5 import library
from hpcckpt.backends.hdf5.image import Complete
from hpcckpt.backends.hdf5.options import PAGE_BYTES, Hdf5Options
from hpcckpt.backends.hdf5.structure import Attributes
from hpcckpt.core.plan import FileRecord, FullPlan, SaveJob, WriteReport
from hpcckpt.errors import BackendError
from hpcckpt.format import layout

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator

MASTER = f"{layout.DATA}/checkpoint.h5"
_NO_JOB = SaveJob("0" * 32, 0, 0)
_log = logging.getLogger("hpcckpt")


class Driver(ABC):
    """One way to get the bytes of all ranks into HDF5 files; the methods are those of `Backend`.

    Parameters
    ----------
    options : Hdf5Options
        As the user gave them.
    threads, nice : int
        As for the backend.
    comm : Communicator, optional
        As for the backend.

    Attributes
    ----------
    is_recycling_forced : bool
        As for the backend.
    """

    name: ClassVar[str]
    is_recycling_forced = False

    def __init__(self, options: Hdf5Options, threads: int, nice: int, comm: Communicator | None) -> None:
        self.options = options
        self.threads = threads
        self.nice = nice
        self.comm = comm

    def check(self, comm: Communicator) -> None:  # noqa: ARG002 - for drivers that care who saves
        """Refuse where this driver cannot work. Independent.

        Raises
        ------
        BackendError
            If h5py is not installed, or lacks what the driver needs.
        """
        if not library.is_installed():
            raise BackendError(f"backend 'hdf5' needs h5py to write; {library.REMEDY}")

    @abstractmethod
    def file_layout(self, plan: FullPlan) -> Any:
        """Return what all ranks must know of the files. Root only."""

    def prepare(self, path: Path) -> None:
        """Make a new staging directory. Root only."""
        (path / layout.DATA).mkdir()

    @abstractmethod
    def reuse(self, path: Path, n_ranks: int) -> None:
        """Make a staging directory of one that was used before. Root only."""

    @abstractmethod
    def write(self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload]) -> WriteReport:
        """Write this rank's payloads."""

    @abstractmethod
    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
        """Complete the files. Root only."""

    def root_attributes(self, job: SaveJob = _NO_JOB) -> Attributes:
        """Return what a file says of itself; of the same length for every save."""
        return {
            "hpcckpt": __version__,
            "format": 1,
            "driver": self.name,
            "save_id": job.save_id,
            "step": job.step,
            "ranks": job.n_ranks,
            "block_bytes": job.block_bytes,
        }


# -- files -----------------------------------------------------------------------------------------


def create(where: str, options: Hdf5Options) -> None:
    """Create an empty file, spread over the targets of a Lustre file system as the options say. Independent."""
    flags = {"-c": options.stripe_count, "-S": options.stripe_size}
    asked = [text for flag, value in flags.items() if value is not None for text in (flag, str(value))]
    if asked and shutil.which("lfs"):
        done = subprocess.run(
            ["lfs", "setstripe", *asked, where], check=False, capture_output=True, text=True, errors="replace"
        )
        if done.returncode != 0:
            _log.warning("hpcckpt: lfs setstripe %s: %s", " ".join(asked), done.stderr.strip())
    os.close(os.open(where, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))


def write_around(fd: int, around: Complete, where: str, values: Iterable[tuple[bytes, int]] = ()) -> None:
    """Write all of a file but its data; the first page last, by which it becomes an HDF5 file. Independent."""
    native.write_blocks(fd, [*values, *around.others, (around.first[PAGE_BYTES:], PAGE_BYTES)], path=where)
    if os.fstat(fd).st_size > around.nbytes:
        os.ftruncate(fd, around.nbytes)
    native.write_blocks(fd, [(around.first[:PAGE_BYTES], 0)], path=where)
