"""``per-rank``: each rank writes its own file, and root one that puts them together.

1  (root)  keep the ranks' files of a retired step
2  (each)  write ``data/rank-NNNNN.h5`` (:mod:`hpcckpt.backends.hdf5.rank_file`)
4  (root)  write ``data/checkpoint.h5``: virtual datasets over the ranks' files, and links to values that each rank
           has for itself; it holds no data, and is needed by other programs only
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt import native
from hpcckpt.backends.base import Payload
from hpcckpt.backends.hdf5.arrangement import StoredDataset, arrange_master, check_names
from hpcckpt.backends.hdf5.driver import MASTER, Driver, write_around
from hpcckpt.backends.hdf5.image import Layout, extend, finish
from hpcckpt.backends.hdf5.rank_file import RankFile, rank_path
from hpcckpt.backends.hdf5.table import Table
from hpcckpt.backends.reusing import keep_own_files
from hpcckpt.core import failpoints
from hpcckpt.core.plan import FileRecord, FullPlan, SaveJob, WriteReport
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.format import layout


@dataclass(frozen=True, slots=True)
class PerRankFileLayout:
    """What all ranks must know of a plan: the tensors that no rank writes, because they are empty."""

    empty: tuple[TensorSpec, ...]
    driver: str = "per-rank"


Files = Mapping[str, tuple[StoredDataset, ...]]
"""The datasets of each rank's file, by its name."""


class PerRankDriver(Driver):
    """Each rank writes its own file."""

    name = "per-rank"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._file = RankFile(self)
        self._master: tuple[Any, Layout] | None = None

    def file_layout(self, plan: FullPlan) -> PerRankFileLayout:
        """Return what is empty. Root only."""
        check_names(plan.tensors)
        return PerRankFileLayout(tuple(spec for spec in plan.tensors if spec.kind != "per-rank" and spec.nbytes == 0))

    def reuse(self, path: Path, n_ranks: int) -> None:
        """Keep the ranks' own files, if they have no other name. Root only."""
        keep_own_files(path, map(rank_path, range(n_ranks)))

    def write(self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload]) -> WriteReport:
        """Write this rank's file; durable on return. Independent."""
        items = [payload.item for payload in payloads]
        record, stored = self._file.write(job, path, rank, payloads)
        failpoints.reached("2-synced", rank)
        return WriteReport.of((record,), items, detail=stored)

    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
        """Write the file that puts the ranks' files together; durable on return. Root only."""
        files = {os.path.basename(rank_path(rank)): report.detail for rank, report in enumerate(reports)}
        around = finish(self._master_layout(job.file_layout, files), self.root_attributes(job), Table(job, self.name))
        where = str(path / MASTER)
        fd = os.open(where, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            write_around(fd, around, where)
            native.fsync(fd, where)
        finally:
            os.close(fd)
        native.fsync_dir(str(path / layout.DATA))
        master = FileRecord(MASTER, around.nbytes, around.table_crc)
        return (master, *(record for report in reports for record in report.files))

    def _master_layout(self, file_layout: PerRankFileLayout, files: Files) -> Layout:
        """Lay the file out, if that of the save before does not do."""
        key = file_layout, [(file, _signature(each)) for file, every in files.items() for each in every]
        if self._master is None or self._master[0] != key:
            found = {each.spec.name: each.spec for every in files.values() for each in every}
            found |= {spec.name: spec for spec in file_layout.empty}
            tensors = [found[name] for name in sorted(found)]
            empty, virtual, linked = arrange_master(tensors, files)
            self._master = key, extend(Layout(), empty, virtual, linked, root=self.root_attributes())
        return self._master[1]


def _signature(stored: StoredDataset) -> tuple[Any, ...]:
    """Return what of a dataset the master file depends on: not on the size of what a rank has for itself."""
    is_own = stored.rank is not None
    return stored.path, stored.spec.name, stored.rank, *(() if is_own else (stored.spec, stored.extent, stored.span))
