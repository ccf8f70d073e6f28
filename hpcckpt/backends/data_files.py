"""Writing the data of payloads into a file, as all backends do that write their files themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcckpt import native
from hpcckpt.backends.base import Bytes, Payload
from hpcckpt.core.mounts import admits_writers


def make_room(fd: int, nbytes: int, where: str) -> None:
    """Allocate the blocks of a file if it lacks some: to ask for those that it has costs time too. Independent."""
    found = os.fstat(fd)
    if found.st_size < nbytes or found.st_blocks * 512 < nbytes:
        native.preallocate(fd, nbytes, where)


def write_payloads(
    fd: int, placed: Sequence[tuple[Payload, int]], *, block_bytes: int, threads: int, nice: int, where: str
) -> list[list[int]]:
    """Write payloads at their offsets, and release each as soon as it is written. Independent.

    Parameters
    ----------
    fd : int
        File, open for writing.
    placed : sequence of (Payload, int)
        Payloads with their file offsets.
    block_bytes : int
        Bytes for each checksum.
    threads, nice : int
        As for `native.write_blocks`.
    where : str
        Path of the file.

    Returns
    -------
    list of list of int
        For each payload, the CRC32C of its blocks.
    """

    def lay_out() -> Iterator[tuple[Bytes, int]]:  # not a list: it would keep the bytes in memory
        for payload, at in placed:
            yield payload.data, at

    is_held = any(payload.is_held for payload, _ in placed)  # else an early release gains nothing
    return native.write_blocks(
        fd,
        lay_out(),
        block_bytes=block_bytes,
        threads=threads,
        path=where,
        on_piece=(lambda number: placed[number][0].release()) if is_held else None,
        nice=nice,
        is_one_writer=not admits_writers(Path(where).parent),
    )
