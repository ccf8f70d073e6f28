"""What the jobs of these tests run on each rank: a loop that saves at every step, stops in time, and goes on.

slurmloop.py RUN N_STEPS SECONDS_PER_STEP MEBIBYTES
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

import hpcckpt as hc


def main(run: str, n_steps: int, pause_s: float, mebibytes: float) -> None:
    """Go on from the newest step to the last one."""
    hc.preemption.catch_signals()
    comm = MPI.COMM_WORLD
    state = {"weights": np.zeros(int(mebibytes * (1 << 20)) // 8), "sums": np.zeros(4)}
    with hc.Checkpointer(run, comm=comm) as ckpt:
        done = 0 if ckpt.latest_step() is None else ckpt.restore(state).step
        if comm.rank == 0:
            print(f"loop: begins behind step {done} on {comm.size} ranks", flush=True)
        guard = hc.preemption.watch(ckpt)
        for step in range(done + 1, n_steps + 1):
            drawn = np.random.default_rng([step, comm.rank]).normal(size=4)
            state["sums"] = 0.9 * state["sums"] + comm.allreduce(drawn)
            state["weights"] = state["weights"] + state["sums"][0]
            time.sleep(pause_s)
            if guard.check(step).stop:
                guard.save_and_exit(state)
            ckpt.save(step, state)
        guard.close()
    if comm.rank == 0:
        print(f"loop: done step={n_steps}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
