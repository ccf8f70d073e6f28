"""What the jobs of these tests run on each rank: a loop that saves at every step, stops in time, and goes on.

loop.py RUN N_STEPS SECONDS_PER_STEP MEBIBYTES

As long as there is a file RUN.held it does not end, but does more steps: a test takes the file away when it has done
what it is about, however slow the machine is.  A number in the file holds jobs that were begun again less often.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

import hpcckpt as hc

State = dict[str, np.ndarray[Any, Any]]


def main(run: str, n_steps: int, pause_s: float, mebibytes: float) -> None:
    """Go on from the newest step to the last one. Collective."""
    hc.preemption.catch_signals()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    state = begin(mebibytes)
    with hc.Checkpointer(run, comm=comm) as ckpt:
        done = 0 if ckpt.latest_step() is None else ckpt.restore(state).step
        n_nodes = comm.allreduce(comm.Split_type(MPI.COMM_TYPE_SHARED).rank == 0)
        if comm.rank == 0:
            print(f"loop: begins after step {done} on {comm.size} ranks of {n_nodes} nodes", flush=True)
        guard = hc.preemption.watch(ckpt, halt_every_s=1.0)
        while done < n_steps or is_held(run, comm):
            done += 1
            advance(state, comm.allreduce(draw(done, comm.rank)))
            time.sleep(pause_s)
            if guard.check(done).stop:
                guard.save_and_exit(state)
            ckpt.save(done, state)
        guard.close()
    if comm.rank == 0:
        print(f"loop: done step={done}", flush=True)


def begin(mebibytes: float) -> State:
    """Return the state before the first step."""
    return {"weights": np.zeros(int(mebibytes * (1 << 20)) // 8), "sums": np.zeros(4)}


def draw(step: int, rank: int) -> Any:
    """Return what a rank adds to a step."""
    return np.random.default_rng([step, rank]).normal(size=4)


def advance(state: State, drawn: Any) -> None:
    """Do a step."""
    state["sums"] = 0.9 * state["sums"] + drawn
    state["weights"] = state["weights"] + state["sums"][0]


def left_alone(n_steps: int, mebibytes: float) -> State:
    """Return the state after a step of two undisturbed ranks."""
    state = begin(mebibytes)
    for step in range(1, n_steps + 1):
        advance(state, draw(step, 0) + draw(step, 1))
    return state


def is_held(run: str, comm: Any) -> bool:
    """Return True if there is a file RUN.held. Collective."""
    return bool(comm.bcast(_is_held(f"{run}.held") if comm.rank == 0 else None))


def _is_held(file: str) -> bool:
    try:
        with open(file, encoding="ascii") as held:
            limit = held.read()
    except FileNotFoundError:
        return False
    return not limit or int(os.environ["HPCCKPT_RESTART_COUNT"]) < int(limit)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
