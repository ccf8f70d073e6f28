"""One commit among those that `commits.py` compares: ranks that wait for the name of a measurement and take it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _common import WORLD, make_state, meet, scratch, settle, timed, warm_memory

import hpcckpt as hc

N_SMALL, SMALL_NBYTES, N_TIMES = 1000, 4096, 5
"""Tensors of the small state, the bytes of each, and how often it is saved or restored in one measurement."""
IDLE_S = 0.01


class Child:
    """Two states, large and small, each with its run directory."""

    def __init__(self, directory: Path, mib: int) -> None:
        self.step = 0
        self.large = make_state(200, mib << 20)
        self.small = {f"layer{n:04d}/bias": np.full(SMALL_NBYTES // 4, n, np.float32) for n in range(N_SMALL)}
        self.directory = directory
        options = {"comm": WORLD, "max_to_keep": 1, "check_replicas": 0}
        self.sync = {
            name: hc.Checkpointer(directory / name, async_save=False, **options) for name in ("large", "small")
        }
        self.background = hc.Checkpointer(directory / "background", **options)

    def measurements(self) -> dict[str, Callable[[], float]]:
        """Return the seconds that each takes, by name. Collective."""
        return {
            "save, large": lambda: timed(lambda: self._save("large", self.large)),
            "restore, large": lambda: timed(lambda: self.sync["large"].restore(self.large)),
            "save, small": lambda: self._often(lambda: self._save("small", self.small)),
            "restore, small": lambda: self._often(lambda: self.sync["small"].restore(self.small)),
            "background save blocks": self._blocked,
            "open and close": lambda: self._often(self._open),
        }

    def _often(self, fn: Callable[[], object]) -> float:
        return timed(lambda: [fn() for _ in range(N_TIMES)]) / N_TIMES

    def _save(self, name: str, state: dict[str, np.ndarray]) -> None:
        self.step += 1
        self.sync[name].save(self.step, state).result()

    def _blocked(self) -> float:
        self.step += 1
        meet()
        began = time.perf_counter()
        pending = self.background.save(self.step, self.large)
        seconds = time.perf_counter() - began
        pending.result()
        return max(WORLD.allgather(seconds))

    def _open(self) -> None:
        hc.Checkpointer(self.directory / "opened", comm=WORLD).close()

    def close(self) -> None:
        """End. Collective."""
        for each in (*self.sync.values(), self.background):
            each.close()


def next_name() -> str:
    """Return the name that root reads next; the other ranks sleep until there is one. Collective."""
    name = sys.stdin.readline().strip() if WORLD.rank == 0 else ""
    request = WORLD.Ibarrier()
    while not request.Test():
        time.sleep(IDLE_S)
    return WORLD.bcast(name)


def main() -> None:
    """Serve until the name is empty."""
    with scratch(sys.argv[1]) as directory:
        child = Child(directory, int(sys.argv[2]))
        measurements = child.measurements()
        nbytes = sum(array.nbytes for array in child.large.values())
        if WORLD.rank == 0:
            print(json.dumps(list(measurements)), flush=True)
        while name := next_name():
            settle(lambda: None)
            warm_memory(nbytes)
            seconds = measurements[name]()
            if WORLD.rank == 0:
                print(json.dumps(seconds), flush=True)
        child.close()


main()
