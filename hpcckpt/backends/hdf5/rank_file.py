"""A file of one rank: a standard HDF5 file of what that rank writes, with a table in it.

    a  lay the file out in memory
    b  open ``data/rank-NNNNN.h5``: that of a retired step, if one is there that has no other name and that no other
       program has open, invalidated and synced before anything else in it is written over; else a new file
    c  write the data to their places, then the table and the structure, the first page last
    d  sync the file, and the directory if the file was created in it

Values that the rank has for itself, and that have another size than at the save before, are laid out after the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcckpt import native
from hpcckpt.backends.base import Payload
from hpcckpt.backends.data_files import make_room, write_payloads
from hpcckpt.backends.hdf5.arrangement import StoredDataset, arrange_rank
from hpcckpt.backends.hdf5.driver import Driver, write_around
from hpcckpt.backends.hdf5.image import Layout, extend, finish
from hpcckpt.backends.hdf5.table import Table
from hpcckpt.backends.reusing import open_to_write
from hpcckpt.core import failpoints
from hpcckpt.core.plan import FileRecord, SaveJob, StoredEntry, WriteItem
from hpcckpt.format import layout


def rank_path(rank: int) -> str:
    """Return the path of a rank's file in its step directory."""
    return f"{layout.DATA}/rank-{rank:05d}.h5"


@dataclass(frozen=True, slots=True, eq=False)
class _FileLayout:
    """How a file was laid out: its items and their datasets; `base` has those that other ranks share."""

    items: tuple[WriteItem, ...]
    stored: tuple[StoredDataset, ...]
    base: Layout
    layout: Layout


class RankFile:
    """The files of one rank, with the same layout at each save.

    Parameters
    ----------
    driver : Driver
        On whose behalf they are written.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._last: _FileLayout | None = None

    def write(
        self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload]
    ) -> tuple[FileRecord, tuple[StoredDataset, ...]]:
        """Write a file, durable on return; return its record, and the datasets of the payloads. Independent."""
        laid_out = self._last = self._lay_out(path, rank, tuple(payload.item for payload in payloads))  # step a
        layout = laid_out.layout
        where = str(path / rank_path(rank))
        fd, is_new = open_to_write(where, is_forced=self._driver.is_recycling_forced)  # step b
        try:
            make_room(fd, layout.nbytes, where)
            placed = [(p, layout.offsets[each.path]) for p, each in zip(payloads, laid_out.stored, strict=True)]
            driver = self._driver
            crcs = write_payloads(  # step c
                fd, placed, block_bytes=job.block_bytes, threads=driver.threads, nice=driver.nice, where=where
            )
            for payload, blocks in zip(payloads, crcs, strict=True):
                payload.written(blocks)
            entries = [
                StoredEntry(payload.item, rank, rank_path(rank), at, tuple(blocks))
                for (payload, at), blocks in zip(placed, crcs, strict=True)
            ]
            around = finish(layout, driver.root_attributes(job), Table(job, driver.name, entries))
            write_around(fd, around, where)
            failpoints.reached("2-written", rank)
            native.fdatasync(fd, where)  # step d
        finally:
            os.close(fd)
        if is_new:
            native.fsync_dir(os.path.dirname(where))
        return FileRecord(rank_path(rank), around.nbytes, around.table_crc), laid_out.stored

    def _lay_out(self, path: Path, rank: int, items: tuple[WriteItem, ...]) -> _FileLayout:
        """Return how to write the items: as at the previous save, as far as they are the same."""
        last = self._last
        if last is not None and last.items == items:
            return last
        stored = arrange_rank(items, rank)
        if last is not None and _differ_in_sizes_only(last.items, items):
            base = last.base
        else:
            shared = [each for each in stored if each.rank is None]
            alignment = self._driver.options.alignment_at(path)
            base = extend(Layout(), shared, root=self._driver.root_attributes(), alignment=alignment)
        return _FileLayout(items, stored, base, extend(base, [each for each in stored if each.rank is not None]))


def _differ_in_sizes_only(old: Sequence[WriteItem], new: Sequence[WriteItem]) -> bool:
    """Return True if items differ in nothing but the sizes of per-rank values. Pure."""
    return len(old) == len(new) and all(
        a == b or (a.spec.kind == b.spec.kind == "per-rank" and a.spec.name == b.spec.name)
        for a, b in zip(old, new, strict=True)
    )
