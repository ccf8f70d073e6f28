"""A rank's file written from parts that come one after the other, so that its tensors need not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hpcckpt import native
from hpcckpt.backends.base import Bytes
from hpcckpt.backends.rankfile import format as codec
from hpcckpt.backends.rankfile.backend import file_path
from hpcckpt.core.mounts import admits_writers
from hpcckpt.core.plan import FileRecord, SaveJob, WriteItem, WriteReport

Parts = Callable[[WriteItem], Iterable[Bytes]]
"""Gives the bytes of an item in order, in parts of whole blocks; only the last one may be shorter."""


def write_streamed(
    job: SaveJob, path: Path, rank: int, items: Sequence[WriteItem], parts: Parts, threads: int = 1
) -> WriteReport:
    """Write the file of one rank, durable on return but for its directory's entry. Independent.

    Parameters
    ----------
    job : SaveJob
        Identity of the save.
    path : path
        The staging directory.
    rank : int
        Whose file it is.
    items : sequence of WriteItem
        The entries, in the order of their data.
    parts : callable
        Gives the bytes of each.
    threads : int
        Native threads that write.
    """
    where = path / file_path(rank)
    fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        header = codec.encode_header(job, rank, items)
        end = len(header) + sum(item.nbytes for item in items)
        native.preallocate(fd, end, where)
        crcs, position = [], len(header)
        for item in items:
            crcs.append(_write_item(fd, job, item, parts, position, threads, where))
            position += item.nbytes
        sealed = codec.fill_in(header, crcs, native.crc32c)
        native.write_blocks(fd, [(sealed, 0)], path=where)
        native.fsync(fd, where)
    finally:
        os.close(fd)
    record = FileRecord(file_path(rank), end, codec.sealed_crc(sealed))
    return WriteReport((record,), end - len(header), len(items))


def _write_item(
    fd: int, job: SaveJob, item: WriteItem, parts: Parts, position: int, threads: int, where: Path
) -> list[int]:
    crcs: list[int] = []
    done = 0
    for part in parts(item):
        if done % job.block_bytes:
            raise AssertionError(f"{item.spec.name!r}: a part that is not the last one must be of whole blocks")
        pieces = [(part, position + done)]
        crcs += native.write_blocks(
            fd,
            pieces,
            block_bytes=job.block_bytes,
            threads=threads,
            path=where,
            is_one_writer=not admits_writers(where.parent),
        )[0]
        done += part.nbytes
    if done != item.nbytes:
        raise AssertionError(f"{item.spec.name!r}: {done} of {item.nbytes} bytes were passed")
    return crcs
