"""The cases in which `hdf5` is tried on real ranks, and what each of them saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import hpcckpt as hc
from tests.support.mpi.states import extent, state_of, values

SAVED_ON = 3
NARROW = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
LARGE = {"large/rows": ((2111, 23), 0), "large/columns": ((53, 1301), 1)}
"""Sharded tensors that have chunks where there are any."""


@dataclass(frozen=True)
class Case:
    """One way to save.

    Parameters
    ----------
    name : str
        What it is called, and its directory.
    options : mapping
        ``backend_options``.
    is_split : bool
        Whether transfers are split into tiny ones.
    is_bare : bool
        Whether the state is one short tensor, of which one rank alone has to write something.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_split: bool = False
    is_bare: bool = False

    @property
    def driver(self) -> str:
        """The driver that writes."""
        asked = self.options.get("driver", "direct")
        return "direct" if asked == "auto" else asked

    def state(self, comm: Any, seed: int, turn: int = 0) -> dict[str, Any]:
        """Return what a rank saves at a step; `turn` cuts along another axis."""
        if self.is_bare:
            return {"w": values("w", (3,), seed), "none": np.empty((0, 2))}
        own = extent((SAVED_ON, 4), 0, comm.rank, comm.size)
        return {
            **state_of(comm, seed, turn),
            **replicated(seed),
            **{name: _part(name, seed, comm, turn) for name in LARGE},
            "own": hc.Sharded(values("own", (SAVED_ON, 4), seed, "int8")[own].copy(), (SAVED_ON, 4), (own[0].start, 0)),
        }


def replicated(seed: int) -> dict[str, Any]:
    """Return tensors that are the same on all ranks: one with many bytes, and narrow floats of any bits."""
    found = {"large/whole": values("large/whole", (301, 257), seed)}
    for name, dtype in NARROW.items():
        found[f"narrow/{name}"] = values(name, (31, 5), seed, f"uint{8 * dtype.itemsize}").view(dtype)
    return found


def whole(name: str, seed: int) -> np.ndarray[Any, Any]:
    """Return a sharded tensor of `LARGE`."""
    return values(name, LARGE[name][0], seed, "int16")


def _part(name: str, seed: int, comm: Any, turn: int) -> hc.Sharded:
    shape, axis = LARGE[name]
    box = extent(shape, (axis + turn) % len(shape), comm.rank, comm.size)
    return hc.Sharded(whole(name, seed)[box].copy(), shape, tuple(part.start for part in box))


CASES = (
    Case("direct"),
    Case("auto", {"driver": "auto"}),
    Case("per-rank", {"driver": "per-rank"}),
    Case("mpio", {"driver": "mpio"}),
    Case("mpio-independent", {"driver": "mpio", "collective": False}),
    Case("mpio-chunks", {"driver": "mpio", "chunks": 20_000}),
    Case("mpio-gzip", {"driver": "mpio", "compression": "gzip", "chunks": 30_000, "compression_level": 1}),
    Case("mpio-split", {"driver": "mpio"}, is_split=True),
    Case("mpio-split-independent", {"driver": "mpio", "collective": False}, is_split=True),
    Case("mpio-one-writes", {"driver": "mpio"}, is_bare=True),
    Case("mpio-hints", {"driver": "mpio", "alignment": 1 << 16, "stripe_count": 2, "stripe_size": 1 << 20}),
)
