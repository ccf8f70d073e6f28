"""``mpio``: one file, written by all ranks together through HDF5 and MPI-IO, where h5py was built with MPI.

    1  (root)  make the directory
    2  (all)   a  create the file and its datasets, each rank the same ones in the same order
               b  (root) reserve the space for the data, so that a full disk shows before the first byte
               c  write the data (:mod:`hpcckpt.backends.hdf5.transfers`), and flush
               d  if anything failed anywhere, (root) give the space back: HDF5 must be able to close what it opened
               e  close the file, sync it; when all have synced it, read back what was written
    4  (root)  add the tensors that are put together of boxes, and the table; sync the file
               (:mod:`hpcckpt.backends.hdf5.sealing`)

HDF5 allocates and packs the chunks of tensors that are to have any, so where these are is known in the end only.
Between 2 and 4 the file is an HDF5 file without a table, which no reader takes for a checkpoint.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hpcckpt import native
from hpcckpt.backends.base import Payload
from hpcckpt.backends.hdf5 import library, sealing
from hpcckpt.backends.hdf5.arrangement import arrange
from hpcckpt.backends.hdf5.driver import MASTER, Driver
from hpcckpt.backends.hdf5.image import opened
from hpcckpt.backends.hdf5.structure import Structure
from hpcckpt.backends.hdf5.table import Table
from hpcckpt.backends.hdf5.transfers import MpioFileLayout, Writing, count_transfers, transfers_of
from hpcckpt.backends.hdf5.types import file_shape
from hpcckpt.collective.outcomes import capture
from hpcckpt.core import failpoints, files
from hpcckpt.core.plan import FileRecord, FullPlan, SaveJob, StoredEntry, WriteItem, WriteReport
from hpcckpt.core.tensors import TensorSpec, itemsize
from hpcckpt.errors import BackendError, MpiError
from hpcckpt.format import layout

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator
    from hpcckpt.collective.mpi import MpiCommunicator

MIN_CHUNKED_BYTES = 64 << 10
_STRUCTURE_BYTES = 2048
"""About what one dataset needs."""


class MpioDriver(Driver):
    """All ranks write into one file, through HDF5."""

    name = "mpio"

    def check(self, comm: Communicator) -> None:
        """Refuse where it cannot work. Independent.

        Raises
        ------
        MpiError
            If the ranks are not MPI processes, or h5py brings another MPI.
        BackendError
            If h5py was built without MPI.
        """
        super().check(comm)
        if not hasattr(comm, "mpi"):
            raise MpiError(
                "backend_options.driver: 'mpio' needs ranks that are MPI processes: start the job with mpirun or srun, "
                "pass comm=MPI.COMM_SELF for one rank, or take driver='direct', which needs no MPI"
            )
        if not library.has_mpi():
            raise BackendError(
                "backend_options.driver: 'mpio' needs an h5py that was built with MPI, and this one was not: build it "
                "(CC=mpicc HDF5_MPI=ON HDF5_DIR=... pip install --no-build-isolation --no-binary=h5py h5py), or take "
                "driver='direct', which needs none and is faster"
            )
        from hpcckpt.collective.mpi import check_one_library

        check_one_library(cast("MpiCommunicator", comm).mpi)

    # -- 0 and 1 -----------------------------------------------------------------------------------

    def file_layout(self, plan: FullPlan) -> MpioFileLayout:
        """Return the datasets. Root only."""
        arrangement = arrange(plan, self._is_chunked)
        chunk_bytes = self.options.chunk_bytes or 0
        chunks = {
            arrangement.places[spec.name].path: chunk_shape(spec, chunk_bytes)
            for spec in plan.tensors
            if self._is_chunked(spec)
        }
        own = {(each.rank or 0, each.spec.name): each.path for each in arrangement.own}
        stored = (*arrangement.stored, *arrangement.own)
        n_transfers = count_transfers(plan, arrangement.places, own)
        alignment = self.options.alignment_at(plan.directory)
        return MpioFileLayout(stored, arrangement.virtual, arrangement.places, own, chunks, n_transfers, alignment)

    def _is_chunked(self, spec: TensorSpec) -> bool:
        is_large = spec.kind != "per-rank" and spec.nbytes >= MIN_CHUNKED_BYTES
        is_plain = file_shape(spec.dtype, spec.shape) == spec.shape
        return self.options.chunk_bytes is not None and is_large and is_plain

    def reuse(self, path: Path, n_ranks: int) -> None:  # noqa: ARG002
        """Remove what is there. Root only."""
        for entry in list(os.scandir(path / layout.DATA)):
            files.unlink(entry.path)

    # -- 2 -----------------------------------------------------------------------------------------

    def write(self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload]) -> WriteReport:
        """Write with all ranks; durable on return. Collective."""
        where = str(path / MASTER)
        items = [payload.item for payload in payloads]
        summed = capture(lambda: [tuple(native.crc32c_blocks(p.data, job.block_bytes, self.threads)) for p in payloads])
        if not self._all_well(summed.error):  # ranks within HDF5 cannot be informed
            summed.get()
            return WriteReport.of((), items)
        crcs = summed.get()
        failure: Exception | None = None
        try:
            with self._created(where, job) as structure:
                failure = self._fill(structure, where, job, rank, payloads)
        except Exception as error:  # noqa: BLE001 - closing may fail on this rank alone; the others wait below
            failure = failure or error
        failpoints.reached("2-written", rank)
        failure = failure or _failure(lambda: _sync(where))  # step e
        if self._all_well(failure) and self.options.check:
            failure = _failure(lambda: self._check(job, path, rank, list(zip(items, crcs, strict=True))))
        if failure is not None:
            raise failure
        for payload, blocks in zip(payloads, crcs, strict=True):
            payload.written(blocks)
        failpoints.reached("2-synced", rank)
        return WriteReport.of((), items, detail=tuple(zip(items, crcs, strict=True)))

    def _fill(
        self, structure: Structure, where: str, job: SaveJob, rank: int, payloads: Sequence[Payload]
    ) -> Exception | None:
        """Create and write all datasets; return what failed on this rank. Collective."""
        writing = Writing(structure, job.file_layout, self.options)
        writing.create()  # step a
        failure = _failure(lambda: _reserve(where, writing.end())) if rank == 0 else None
        if self._all_well(failure):
            written = writing.write(transfers_of(job.file_layout, rank, payloads))  # step c
            flushed = _failure(structure.flush)
            failure = written or flushed
        if not self._all_well(failure) and rank == 0:
            failure = failure or _failure(lambda: os.truncate(where, 0))  # step d
        if self.comm is not None:
            self.comm.barrier()
        return failure

    def _all_well(self, failure: BaseException | None) -> bool:
        """Return True if no rank has failed. Collective."""
        return self.comm is None or self.comm.allreduce(failure is None, operator.and_)

    def _check(self, job: SaveJob, path: Path, rank: int, written: Sequence[tuple[WriteItem, tuple[int, ...]]]) -> None:
        found = sealing.look(str(path / MASTER), job.file_layout, self.options)
        entries = [
            StoredEntry(item, rank, MASTER, found.offset_of(job.file_layout, item, rank), crcs)
            for item, crcs in written
        ]
        sealing.check_written(path, entries, found, job, self.threads)

    @contextmanager
    def _created(self, where: str, job: SaveJob) -> Iterator[Structure]:
        comm = cast("MpiCommunicator", self.comm)
        hints = {"striping_factor": self.options.stripe_count, "striping_unit": self.options.stripe_size}
        given = {name: str(value) for name, value in hints.items() if value is not None}
        file_layout: MpioFileLayout = job.file_layout
        with opened(
            where,
            "w",
            driver="mpio",
            comm=comm.mpi,
            **({"info": comm.hints(given)} if given else {}),
            alignment_threshold=file_layout.alignment,
            alignment_interval=file_layout.alignment,
            meta_block_size=_STRUCTURE_BYTES * (2 + len(file_layout.stored) + len(file_layout.virtual)),
        ) as structure:
            structure.begin(self.root_attributes(job))
            yield structure

    # -- 4 -----------------------------------------------------------------------------------------

    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
        """Complete the file; durable on return. Root only."""
        file_layout: MpioFileLayout = job.file_layout
        where = str(path / MASTER)
        found = sealing.complete(where, file_layout, self.options)
        entries = [
            StoredEntry(item, rank, MASTER, found.offset_of(file_layout, item, rank), crcs)
            for rank, report in enumerate(reports)
            for item, crcs in report.detail
        ]
        nbytes, crc = sealing.add_table(where, Table(job, self.name, entries, tuple(found.chunked.values())), found)
        native.fsync_dir(str(path / layout.DATA))
        return (FileRecord(MASTER, nbytes, crc),)


def chunk_shape(spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    """Return the shape of chunks of about `nbytes` bytes: adjacent rows. Pure."""
    room = max(1, nbytes // itemsize(spec.dtype))
    shape: list[int] = []
    for length in reversed(spec.shape):
        shape.insert(0, max(1, min(length, room)))
        room = max(1, room // length)
    return tuple(shape)


def _failure(fn: Callable[[], object]) -> Exception | None:
    """Call a function; return what it raised. Independent."""
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - the others must not wait
        return error
    return None


def _reserve(where: str, nbytes: int) -> None:
    """Give a file the blocks for its first bytes. Root only."""
    fd = os.open(where, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        native.preallocate(fd, nbytes, where)
    finally:
        os.close(fd)


def _sync(where: str) -> None:
    """Sync what this process, and others of its node, have written to a file. Independent."""
    fd = os.open(where, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        native.fdatasync(fd, where)
    finally:
        os.close(fd)
