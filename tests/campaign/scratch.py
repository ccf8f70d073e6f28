"""Saves of small states with ``scratch=``, as fast as they go: no save fails, and no step is damaged.

One case is 250 saves by one rank, or by two as threads, with random options.  Storage is slower than the saves in most
cases: a drain is held up at random where storage would hold it up, in the syncs around its rename.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tiers import copy
from hpcckpt.tools.inspect import check_step
from tests.campaign._common import Campaign, Case, Outcome

SAVES = 250
_commit = copy.commit_staged


def _slow_down(rng: random.Random) -> None:
    """Delay the commit of a drain at random, when its step has its name already."""
    pause_s = rng.choice([0.0, 0.002, 0.01])

    def commit_staged(*args: Any) -> Path:
        path = _commit(*args)
        time.sleep(rng.random() * pause_s)  # only makes it likelier that drains overlap
        return path

    copy.commit_staged = commit_staged


def _state(rank: int, step: int, length: int) -> dict[str, Any]:
    return {"w": np.full(length, float(step)), "n": hc.PerRank(np.full(3, step + rank, float)), "step": step}


def _train(case: Case, options: dict[str, Any], length: int, comm: Any) -> None:
    with hc.Checkpointer(case.scratch / "run", comm=comm, scratch=case.scratch / "disk", **options) as ckpt:
        for step in range(1, SAVES + 1):
            ckpt.save(step, _state(comm.rank, step, length))
            ckpt.poll()


def _restore(case: Case, length: int, comm: Any) -> list[str]:
    held = _state(comm.rank, 0, length)
    with hc.Checkpointer(case.scratch / "run", comm=comm) as ckpt:
        found = ckpt.restore(held)
    is_same = held["step"] == SAVES and bool((held["w"] == SAVES).all()) and found.step == SAVES
    return [] if is_same and not found.warnings else [f"rank {comm.rank}: step {found.step}, {found.warnings}"]


def _problems(run: Path, options: dict[str, Any]) -> list[str]:
    """Return what is wrong with the steps in the run directory."""
    there = discovery.step_numbers(run)
    kept = options["max_to_keep"]
    wanted = list(range(1 if kept is None else SAVES + 1 - kept, SAVES + 1))
    damaged = [step for step in there if not check_step(run / layout.step_dirname(step)).is_whole]
    odd = sorted(path.name for path in run.iterdir() if path.name.startswith((".aside-", ".bad-", ".step-", ".next-")))
    found = [f"steps {there[:5]} … {there[-5:]} instead of {wanted[0]} to {wanted[-1]}"] if there != wanted else []
    found += [f"damaged: {damaged}"] if damaged else []
    return found + ([f"left: {odd}"] if odd else [])


def run(case: Case) -> Outcome:
    """Save 250 steps as fast as they go, and look at all that is kept."""
    rng = case.rng
    n_ranks = rng.choice([1, 1, 1, 2])
    length = rng.choice([1, 512, 2048, 16384])
    options = {
        "max_in_flight": rng.choice([1, 1, 2, 3]),
        "max_to_keep": rng.choice([3, 3, None]),
        "scratch_keep": rng.choice([1, 1, 2, 4]),
        "on_newer": rng.choice(["error", "aside"]),
    }
    _slow_down(rng)
    began = time.monotonic()
    run_ranks(n_ranks, lambda comm: _train(case, options, length, comm), 600.0)
    seconds = time.monotonic() - began
    problems = _problems(case.scratch / "run", options)
    problems += [
        text for texts in run_ranks(n_ranks, lambda comm: _restore(case, length, comm), 60.0) for text in texts
    ]
    text = "\n".join([f"{n_ranks} ranks, {8 * length} bytes, {options}", *problems])
    figures = {"saves": float(SAVES), "saves a second": SAVES / seconds}
    return Outcome("lost" if problems else "good", f"{n_ranks} ranks", text if problems else "", figures)


CAMPAIGN = Campaign(
    "scratch",
    f"10,000 saves of small states with scratch=, {SAVES} in each case, as fast as they go: no save fails, and the run "
    "directory has all of them, whole.",
    full=40,
    run=run,
    timeout_s=900.0,
    jobs=1,
)
