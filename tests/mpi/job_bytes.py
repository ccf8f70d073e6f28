"""Save a replicated state and count what each rank writes: ``job_bytes.py DIRECTORY NBYTES``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpcckpt as hc


def written() -> int:
    """Return how many bytes this process has handed to write calls so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(fields["wchar"])


def uneven_state(nbytes: int) -> dict[str, np.ndarray]:
    """Return tensors of very different sizes, one of them more than half of the whole."""
    n_elements, state = nbytes // 4, {}
    for number in range(12):
        count = n_elements * 4 // 7 if number < 11 else n_elements
        state[f"t{number:02d}"] = np.arange(count, dtype=np.float32)
        n_elements -= count
    return state


def main() -> None:
    """Run."""
    world = MPI.COMM_WORLD
    state = uneven_state(int(sys.argv[2]))
    with hc.Checkpointer(sys.argv[1]) as ckpt:
        before = written()
        ckpt.save(1, state).result()
        counts = world.gather(written() - before)
    if world.rank == 0:
        print("bytes", json.dumps({"unique": sum(a.nbytes for a in state.values()), "ranks": counts}), flush=True)


main()
