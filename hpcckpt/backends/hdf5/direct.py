"""``direct``: one file, laid out in memory by root, written by all ranks past HDF5, straight from the tensors' memory.

    0  (root)  lay the file out: HDF5 says where each dataset's bytes have their place
    1  (root)  make an empty file; or invalidate that of a retired step by zeros over its first page, synced, before
               anything else in it is written over
    2  (each)  write the data to their places, computing checksums in the same pass, and release each tensor as soon
               as it is written; sync the file
    4  (root)  write what is around the data: small values that each rank has for itself, which came with its report,
               the table, and the structure, its first page last; sync the file

A rank's own value may have another size at each save, and no other rank knows.  A small one comes with the report; one
that is too large for that, and has no place in the layout, goes into a file of its rank, to which the name then leads.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt import native
from hpcckpt.backends.base import Payload
from hpcckpt.backends.data_files import make_room, write_payloads
from hpcckpt.backends.hdf5.arrangement import RESERVED, Alias, Linked, StoredDataset, arrange, first_element
from hpcckpt.backends.hdf5.driver import MASTER, Driver, create, write_around
from hpcckpt.backends.hdf5.image import Layout, extend, finish
from hpcckpt.backends.hdf5.rank_file import RankFile, rank_path
from hpcckpt.backends.hdf5.table import Table
from hpcckpt.backends.reusing import open_again
from hpcckpt.core import failpoints, files
from hpcckpt.core.plan import FileRecord, FullPlan, SaveJob, StoredEntry, WriteItem, WriteReport
from hpcckpt.core.tensors import Extent, itemsize
from hpcckpt.format import layout

SMALL_BYTES = 64 << 10
"""Values of at most this many bytes come with the report."""
MAX_REPORT_BYTES = 1 << 20
"""All of them together."""
_MAX_PLANS = 4


@dataclass(frozen=True, slots=True)
class DirectFileLayout:
    """Where everything goes.

    Attributes
    ----------
    key : str
        Of the layout that root keeps.
    nbytes : int
        Where the data end.
    places : dict of str to (int or dict of Extent to int)
        Where the bytes of each shared tensor begin, or those of each of its boxes.
    own : dict of (int, str) to (int, tuple of int)
        Where a rank's own value begins, by rank and name, if it has the shape that is given.
    """

    key: str
    nbytes: int
    places: Mapping[str, int | Mapping[Extent, int]]
    own: Mapping[tuple[int, str], tuple[int, tuple[int, ...]]]
    driver: str = "direct"

    def offset_of(self, item: WriteItem, rank: int) -> int | None:
        """Return where the bytes of an item go; ``None`` if it has no place."""
        if item.spec.kind == "per-rank":
            offset, shape = self.own.get((rank, item.spec.name), (0, None))
            return offset if shape == item.extent.shape else None
        place = self.places[item.spec.name]
        start = item.start
        if isinstance(place, int):
            start += first_element(item)
        else:
            place = place[item.extent]
        return place + start * itemsize(item.spec.dtype)


class Sent(NamedTuple):
    """A value that comes with the report."""

    item: WriteItem
    data: bytes
    crcs: tuple[int, ...]


class Detail(NamedTuple):
    """What root must know of what a rank wrote: what is where in the shared file, what it sends, its own file."""

    written: tuple[tuple[WriteItem, int, tuple[int, ...]], ...]
    sent: tuple[Sent, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class _Plan:
    """What root keeps of a file layout.

    Attributes
    ----------
    layout : Layout
        The file with all that is written to places.
    own : dict of (int, str) to str
        The paths of what each rank has for itself, by rank and name.
    slots : dict of str to str
        The datasets that have places for these, by path.
    last : tuple
        What the save before added to the layout, and what that gave.
    """

    layout: Layout
    own: Mapping[tuple[int, str], str]
    slots: Mapping[str, str]
    last: tuple[Any, Layout] | None = None

    def with_per_rank(self, stored: list[StoredDataset], linked: list[Linked], aliases: list[Alias]) -> Layout:
        """Return the file with the per-rank values too: the previous save's if these are identical."""
        added = stored, linked, aliases
        if self.last is None or self.last[0] != added:
            self.last = added, extend(self.layout, stored, linked=linked, aliases=aliases)
        return self.last[1]


class DirectDriver(Driver):
    """All ranks write into one file, by offsets."""

    name = "direct"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._plans: OrderedDict[str, _Plan] = OrderedDict()
        self._rank_file = RankFile(self)

    def file_layout(self, plan: FullPlan) -> DirectFileLayout:
        """Lay the file out. Root only."""
        arrangement = arrange(plan)
        slots = {
            each.path: replace(each, path=f"{RESERVED}/slots/{number}")
            for number, each in enumerate(arrangement.own)
            if each.nbytes > SMALL_BYTES
        }
        layout = extend(
            Layout(),
            [*arrangement.stored, *slots.values()],
            arrangement.virtual,
            root=self.root_attributes(),
            alignment=self.options.alignment_at(plan.directory),
        )
        at = layout.offsets
        places = {
            name: {box: at[path] for box, path in place.boxes.items()} if place.boxes is not None else at[place.path]
            for name, place in arrangement.places.items()
        }
        in_slots = {(s.rank or 0, s.spec.name): (at[s.path], s.shape) for s in slots.values()}
        own = {(each.rank or 0, each.spec.name): each.path for each in arrangement.own}
        key = hashlib.blake2b(repr((layout.parts, own)).encode(), digest_size=16).hexdigest()
        self._keep(key, _Plan(layout, own, {path: slot.path for path, slot in slots.items()}))
        return DirectFileLayout(key, layout.nbytes, places, in_slots)

    def _keep(self, key: str, found: _Plan) -> None:
        """Remember a plan; a save that is under way may still go by the one before."""
        self._plans[key] = found
        self._plans.move_to_end(key)
        while len(self._plans) > _MAX_PLANS:
            self._plans.popitem(last=False)

    def prepare(self, path: Path) -> None:
        """Make an empty file. Root only."""
        super().prepare(path)
        create(str(path / MASTER), self.options)
        native.fsync_dir(str(path / layout.DATA))

    def reuse(self, path: Path, n_ranks: int) -> None:  # noqa: ARG002 - all ranks write one file
        """Invalidate the shared file, and remove all others. Root only."""
        where = path / MASTER
        fd = open_again(str(where), is_forced=self.is_recycling_forced)
        keeps = fd is not None
        if fd is not None:
            os.close(fd)
        for entry in list(os.scandir(where.parent)):
            if not keeps or entry.name != where.name:
                files.unlink(entry.path)
        if not keeps:
            create(str(where), self.options)
        native.fsync_dir(str(where.parent))

    # -- 2: each rank ------------------------------------------------------------------------------

    def write(self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload]) -> WriteReport:
        """Write this rank's payloads to their places; durable on return. Independent."""
        items = [payload.item for payload in payloads]
        sorted_out = _sort_out(job.file_layout, rank, payloads)
        written = self._write_placed(job, path, rank, sorted_out.placed)
        sent = tuple(_send(payload, job.block_bytes) for payload in sorted_out.sent)
        files: tuple[FileRecord, ...] = ()
        elsewhere: tuple[tuple[str, str], ...] = ()
        if sorted_out.others:
            record, stored = self._rank_file.write(job, path, rank, sorted_out.others)
            files, elsewhere = (record,), tuple((each.spec.name, each.path) for each in stored)
        failpoints.reached("2-synced", rank)
        return WriteReport.of(files, items, detail=Detail(written, sent, elsewhere))

    def _write_placed(
        self, job: SaveJob, path: Path, rank: int, placed: Sequence[tuple[Payload, int]]
    ) -> tuple[tuple[WriteItem, int, tuple[int, ...]], ...]:
        where = str(path / MASTER)
        fd = os.open(where, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            make_room(fd, job.file_layout.nbytes, where)
            crcs = write_payloads(
                fd, placed, block_bytes=job.block_bytes, threads=self.threads, nice=self.nice, where=where
            )
            failpoints.reached("2-written", rank)
            native.fdatasync(fd, where)
        finally:
            os.close(fd)
        for (payload, _), blocks in zip(placed, crcs, strict=True):
            payload.written(blocks)
        return tuple((payload.item, at, tuple(blocks)) for (payload, at), blocks in zip(placed, crcs, strict=True))

    # -- 4: root -----------------------------------------------------------------------------------

    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
        """Write what is around the data; durable on return. Root only."""
        plan = self._plans[job.file_layout.key]
        details: list[Detail] = [report.detail for report in reports]
        layout = plan.with_per_rank(*_own(plan, details))
        table = Table(job, self.name, list(_entries(plan, details, layout.offsets)))
        around = finish(layout, self.root_attributes(job), table)
        values = [
            (sent.data, layout.offsets[plan.own[rank, sent.item.spec.name]])
            for rank, detail in enumerate(details)
            for sent in detail.sent
        ]
        where = str(path / MASTER)
        fd = os.open(where, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_around(fd, around, where, values)
            native.fsync(fd, where)
        finally:
            os.close(fd)
        files = [FileRecord(MASTER, around.nbytes, around.table_crc), *(f for report in reports for f in report.files)]
        return tuple(sorted(files, key=lambda record: record.path))


class _SortedOut(NamedTuple):
    """What goes to its place, with the report, or into a file of the rank."""

    placed: list[tuple[Payload, int]]
    sent: list[Payload]
    others: list[Payload]


def _sort_out(file_layout: DirectFileLayout, rank: int, payloads: Sequence[Payload]) -> _SortedOut:
    found = _SortedOut([], [], [])
    room = MAX_REPORT_BYTES
    for payload in payloads:
        at = file_layout.offset_of(payload.item, rank)
        if at is not None:
            found.placed.append((payload, at))
        elif payload.item.nbytes <= min(SMALL_BYTES, room):
            room -= payload.item.nbytes
            found.sent.append(payload)
        else:
            found.others.append(payload)
    return found


def _send(payload: Payload, block_bytes: int) -> Sent:
    data = payload.data.tobytes()
    crcs = tuple(native.crc32c_blocks(data, block_bytes))
    payload.written(crcs)
    return Sent(payload.item, data, crcs)


def _own(plan: _Plan, details: Sequence[Detail]) -> tuple[list[StoredDataset], list[Linked], list[Alias]]:
    """Return what is to be in the file for the values that ranks have for themselves."""
    stored, linked, aliases = [], [], []
    for rank, detail in enumerate(details):
        stored += [
            StoredDataset(plan.own[rank, s.item.spec.name], s.item.spec, s.item.extent, rank=rank) for s in detail.sent
        ]
        file = os.path.basename(rank_path(rank))
        linked += [Linked(plan.own[rank, name], file, target) for name, target in detail.elsewhere]
        in_slots = (plan.own[rank, item.spec.name] for item, _, _ in detail.written if item.spec.kind == "per-rank")
        aliases += [Alias(path, plan.slots[path]) for path in in_slots]
    return stored, linked, aliases


def _entries(plan: _Plan, details: Sequence[Detail], offsets: Mapping[str, int]) -> Iterator[StoredEntry]:
    for rank, detail in enumerate(details):
        for item, at, crcs in detail.written:
            yield StoredEntry(item, rank, MASTER, at, crcs)
        for item, _, crcs in detail.sent:
            yield StoredEntry(item, rank, MASTER, offsets[plan.own[rank, item.spec.name]], crcs)
