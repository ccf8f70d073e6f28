"""``hdf5``: one standard HDF5 file per checkpoint, written in one of three ways. See FORMAT.md.

Reading is the same for all of them, and needs neither MPI nor h5py (:mod:`hpcckpt.backends.hdf5.reading`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcckpt.backends.base import Backend, Payload, ReadRequest
from hpcckpt.backends.hdf5 import options, reading
from hpcckpt.backends.hdf5.direct import DirectDriver
from hpcckpt.backends.hdf5.driver import Driver
from hpcckpt.backends.hdf5.mpio import MpioDriver
from hpcckpt.backends.hdf5.per_rank import PerRankDriver
from hpcckpt.core.plan import DamagedBlock, FileRecord, FullPlan, Index, SaveJob, WriteReport
from hpcckpt.format.manifest import Manifest

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator

_EVERY = frozenset({"partial-read", "designs"})
_FEATURES = {
    "direct": _EVERY | {"zero-copy", "shared-file", "recycles"},
    "per-rank": _EVERY | {"zero-copy", "recycles", "own-files"},
    "mpio": _EVERY | {"shared-file", "collective"},
    "auto": _EVERY | {"zero-copy", "recycles"},
}
_DRIVERS: Mapping[str, type[Driver]] = {cls.name: cls for cls in (DirectDriver, PerRankDriver, MpioDriver)}
_log = logging.getLogger("hpcckpt")


class Hdf5Backend(Backend):
    """One HDF5 file per checkpoint."""

    name = "hdf5"
    features = _FEATURES["direct"]

    def __init__(self, threads: int = 1, nice: int = 0, comm: Communicator | None = None, **given: Any) -> None:
        super().__init__(threads, nice, comm)
        self._options = options.parse(given)
        self.features = _FEATURES[self._options.driver]
        self._drivers: dict[str, Driver] = {}
        self._choice: options.Choice | None = None
        self._tables = reading.Tables()
        if comm is not None:
            self._driver("direct" if self._options.driver == "auto" else self._options.driver).check(comm)

    def _driver(self, name: str) -> Driver:
        if name not in self._drivers:
            self._drivers[name] = _DRIVERS[name](self._options, self.threads, self.nice, self.comm)
        self._drivers[name].is_recycling_forced = self.is_recycling_forced
        return self._drivers[name]

    def options_for_reading(self) -> dict[str, Any]:
        """Return how files are written; for people, as readers need not know."""
        if self._options.driver != "auto":
            return {"driver": self._options.driver}
        return {"driver": self._choice.driver, "chosen": self._choice.reason} if self._choice else {"driver": "auto"}

    # -- saving ------------------------------------------------------------------------------------

    def file_layout(self, plan: FullPlan) -> Any:
        """Choose the driver, and return its file layout. Root only."""
        name = self._options.driver
        if name == "auto":
            name = self._chosen(plan)
        return self._driver(name).file_layout(plan)

    def _chosen(self, plan: FullPlan) -> str:
        if self._choice is None:
            self._choice = options.choose(plan.directory, len(plan.items))
            _log.info("hpcckpt: hdf5 driver=%s: %s", *self._choice)
        return self._choice.driver

    def prepare(self, path: Path, file_layout: Any = None) -> None:
        """Create what must exist before ranks write. Root only."""
        self._driver(file_layout.driver).prepare(path)

    def reuse(self, path: Path, n_ranks: int, file_layout: Any = None) -> None:
        """Make a staging directory of one that was used before. Root only."""
        self._driver(file_layout.driver).reuse(path, n_ranks)

    def write(
        self,
        job: SaveJob,
        path: Path,
        rank: int,
        payloads: Sequence[Payload],
        base: Path | None = None,  # noqa: ARG002 - nothing is linked
    ) -> WriteReport:
        """Write this rank's payloads; durable on return. Independent, or Collective with driver mpio."""
        return self._driver(job.file_layout.driver).write(job, path, rank, payloads)

    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
        """Complete the files. Root only."""
        return self._driver(job.file_layout.driver).seal(job, path, reports)

    # -- reading -----------------------------------------------------------------------------------

    def index(self, path: Path, manifest: Manifest) -> Index:
        """Read the tables of all files. Independent."""
        return reading.read_index(path, manifest, self._tables)

    def read(self, path: Path, manifest: Manifest, requests: Sequence[ReadRequest]) -> list[DamagedBlock]:
        """Read block by block. Independent."""
        return reading.read(path, manifest, requests, self.threads, self._tables)
