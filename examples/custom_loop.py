"""Run a custom training loop, with NumPy and MPI, that can stop and resume.

    mpirun -n 2 python examples/custom_loop.py --directory runs/loop --steps 2000

To stop it, send SIGTERM or SIGUSR1 to any rank, create a file HALT in the run directory, or let the walltime end
(``--walltime 5m``): all ranks save the same step and exit with code 75. The same command resumes from that step, on any
number of ranks. With ``examples/requeue.sh`` before the command, it is restarted automatically.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpi4py import MPI

import hpcckpt as hc

N_FEATURES, N_ROWS, RATE = 20, 64, 0.02


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Linear regression by stochastic gradient descent, on all ranks")
    parser.add_argument("--directory", required=True, help="run directory")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=0.005, metavar="SECONDS", help="what a step takes besides")
    parser.add_argument("--walltime", help="how long the job may take: 1:30:00, 90m; default: what the scheduler says")
    parser.add_argument("--reserve", help="how long before its end to stop; default: learned from the saves")
    parser.add_argument("--every-n-minutes", default="auto", help="how often to save besides, or 'auto'")
    return parser.parse_args()


def batch(step: int, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's rows of the batch, which depends only on the step."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(N_ROWS, N_FEATURES))
    y = x @ np.arange(N_FEATURES) + 0.1 * rng.normal(size=N_ROWS)
    return x[rank::size], y[rank::size]


def main() -> None:
    """Train, or resume training."""
    hc.preemption.catch_signals()  # from here on, a signal asks the loop to stop at the next step
    asked, comm = arguments(), MPI.COMM_WORLD
    every = asked.every_n_minutes
    state = {"weights": np.zeros(N_FEATURES), "momentum": np.zeros(N_FEATURES)}
    with hc.Checkpointer(asked.directory, comm=comm) as ckpt:
        # latest_step() returns None if there are no steps. If there are steps and none can be restored, it raises.
        done = 0 if ckpt.latest_step() is None else ckpt.restore(state).step
        if comm.rank == 0:
            print(f"loop: begins after step {done} on {comm.size} ranks", flush=True)
        guard = hc.preemption.watch(
            ckpt,
            walltime=asked.walltime,
            reserve=asked.reserve,
            every_n_minutes=every if every == "auto" else float(every),
        )
        for step in range(done + 1, asked.steps + 1):
            x, y = batch(step, comm.rank, comm.size)
            gradient = x.T @ (x @ state["weights"] - y) / N_ROWS
            comm.Allreduce(MPI.IN_PLACE, gradient)
            state["momentum"][:] = 0.9 * state["momentum"] + gradient
            state["weights"] -= RATE * state["momentum"]
            time.sleep(asked.pause)
            advice = guard.check(step)
            if advice.stop:
                guard.save_and_exit(state)
            if advice.save:
                ckpt.save(step, state)
        guard.close()
        if ckpt.last_step != asked.steps:
            ckpt.save(asked.steps, state)
    if comm.rank == 0:
        error = np.abs(state["weights"] - np.arange(N_FEATURES)).max()
        print(f"loop: done step={asked.steps} largest_error={error:.3g}", flush=True)


if __name__ == "__main__":
    main()
