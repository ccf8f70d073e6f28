"""One rank of three calls something else, or ends, or stops: a random sequence of calls, by a thread or a process."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt import errors

N_RANKS = 3
KINDS = ("call", "argument", "option", "exit", "exception", "stop")
STOP_S = 5.0
"""How long a rank is stopped or busy elsewhere: the kind of difference itself, not a wait for something."""
CALLS = ("save", "latest_step", "all_steps", "has_steps", "restore")
OPTIONS: dict[str, Any] = {
    "max_in_flight": 2,
    "max_to_keep": 7,
    "async_save": False,
    "recycle": False,
    "scratch_keep": 2,
}


def _call(ckpt: Any, name: str, number: int, **arguments: Any) -> None:
    state = {"w": np.full(100, float(number))}
    if name == "save":
        ckpt.save(number, state, **arguments)
    elif name == "restore":
        ckpt.restore(state, **arguments)
    else:
        getattr(ckpt, name)()


def _differ(ckpt: Any, rng: random.Random, kind: str, name: str, step: int, *, is_process: bool) -> None:
    """Do what only the odd rank does."""
    if kind == "call":
        _call(ckpt, rng.choice([other for other in CALLS if other != name]), step)
    elif kind == "argument":
        wrong: dict[str, Any] = rng.choice([{"step": 1}, {"strict": False}])
        _call(ckpt, "restore", step, **wrong)
    elif kind == "stop":
        if is_process:
            if os.fork() == 0:
                time.sleep(STOP_S)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(STOP_S)
        _call(ckpt, name, step)
    elif is_process:
        if kind == "exit":
            sys.exit(0)
        raise ValueError("own mistake")
    else:  # what the end of a process does; a thread has no such end
        ckpt.comm.calls.end("ended its program" if kind == "exit" else "ended with ValueError: own mistake")
        raise SystemExit(0)


def play(comm: Any, directory: Path, seed: str, kind: str, *, is_process: bool) -> tuple[str, str, float]:
    """Make the calls; return the class and text of the error of this rank, and the seconds from the difference on."""
    rng = random.Random(seed)  # the same on all ranks
    odd, n_before, n_after = rng.randrange(N_RANKS), rng.randrange(4), rng.randrange(1, 4)
    is_odd = comm.rank == odd
    option = rng.choice(sorted(OPTIONS))
    options = {option: OPTIONS[option]} if kind == "option" and is_odd else {}
    began = time.monotonic()
    try:
        ckpt = hc.Checkpointer(directory, comm=comm, peer_timeout_s=8.0, **options)
        ckpt.save(1, {"w": np.ones(100)}).result()
        names = [rng.choice(CALLS) for _ in range(n_before + 1 + n_after)]
        if kind == "argument":
            names[n_before] = "restore"
        for number, name in enumerate(names):
            if number == n_before:
                began = time.monotonic()
                if is_odd:
                    _differ(ckpt, rng, kind, name, number + 2, is_process=is_process)
                    continue
            _call(ckpt, name, number + 2)
        ckpt.close()
    except errors.HpcckptError as error:
        return type(error).__name__, str(error), time.monotonic() - began
    except SystemExit:
        if is_process:
            raise
        return "ended", "", 0.0
    return "none", "", time.monotonic() - began


def main() -> None:
    """Be one process of a case."""
    from mpi4py import MPI

    directory, seed, kind = sys.argv[1:]
    found = play(MPI.COMM_WORLD, Path(directory) / "run", seed, kind, is_process=True)
    (Path(directory) / f"rank-{MPI.COMM_WORLD.Get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    n_expected = N_RANKS - 1 if kind in {"exit", "exception"} else N_RANKS
    end = time.monotonic() + 30.0
    # the first rank that ends may end the job, so each waits until all have reported
    while len(list(Path(directory).glob("rank-*.json"))) < n_expected and time.monotonic() < end:
        time.sleep(0.05)
    sys.stdout.flush()
    if found[0] != "none":
        os._exit(0)


if __name__ == "__main__":
    main()
