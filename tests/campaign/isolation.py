"""Saves in the background while the program goes on changing what is saved: each step holds its own values.

One case is five asynchronous saves of something that trains (:mod:`_isolation_subjects`), by one rank or by several
as threads.  Right after each save() the training goes on, while the writing is held up at random; what is committed
must be, bit by bit, the copies that were taken before save() was called.
"""

from __future__ import annotations

import importlib.util
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.core import failpoints
from hpcckpt.testing.ranks import run_ranks
from tests.campaign import _mutants
from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign._isolation_subjects import KINDS, NUMPY, TF, TORCH, Subject, subject

SAVES = 5
Copies = list[dict[str, Any]]


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def prepare(scratch: Path) -> None:
    """Take the engine that is asked for."""
    _mutants.apply_from_environment()


def _slow_down(rng: random.Random) -> None:
    """Hold the writing up at random."""
    pause_s = rng.choice([0.0, 0.01, 0.05, 0.05])

    def hook(phase: str, rank: int) -> None:
        if phase in {"2-write", "2-written", "4-check"}:
            time.sleep(rng.random() * pause_s)

    failpoints.install_hook(hook)


class _Rank:
    """One rank of a case."""

    def __init__(self, case: Case, kind: str, options: dict[str, Any], comm: Any) -> None:
        self.rng = random.Random(f"{case.seed}/{case.number}")  # the same on all ranks
        self.subject: Subject = subject(kind, comm.rank)
        self.subject.reset(self.rng.randrange(1 << 30))
        self.comm, self.options, self.directory = comm, options, case.scratch / "run"
        self.pending: list[tuple[hc.PendingSave, Copies]] = []
        self.problems: list[str] = []
        self.n_updates = self.n_during = self.n_linked = 0

    def run(self) -> dict[str, Any]:
        """Save and train; return what was seen."""
        try:
            with hc.Checkpointer(self.directory, comm=self.comm, **self.options) as ckpt:
                for step in range(1, SAVES + 1):
                    self._save(ckpt, step)
                    self._train(ckpt)
                    while len(self.pending) >= self.options["max_in_flight"]:
                        self._check()
                while self.pending:
                    self._check()
        finally:
            self.subject.end()
        return {"problems": self.problems, "during": self.n_during, "linked": self.n_linked, "updates": self.n_updates}

    def _save(self, ckpt: hc.Checkpointer, step: int) -> None:
        with self.subject.still():
            copies = self.subject.copies()
            pending = ckpt.save(step, self.subject.tree)
        self.pending.append((pending, [copies]))

    def _train(self, ckpt: hc.Checkpointer) -> None:
        """Go on at once, or now and then when what was held has been released, and is changed in place."""
        if self.options["incremental"] and self.rng.random() < 0.5:
            self.pending[-1][0].result()
        for _ in range(self.rng.choice([0, 2, 5, 12])):
            self.n_updates += 1
            self.subject.update(self.n_updates)
            self.n_during += not self.pending[-1][0].done()
            if self.rng.random() < 0.3:
                ckpt.poll()

    def _check(self) -> None:
        """Wait for the oldest save, and compare its step with the copies; rank 0 does for all."""
        pending, (own,) = self.pending.pop(0)
        saved = pending.result()
        self.n_linked += saved.linked_nbytes > 0
        expected = {name: copy for copies in self.comm.allgather(own)[::-1] for name, copy in copies.items()}
        if self.comm.rank == 0:
            self.problems += _differences(saved.path, expected)
        self.comm.barrier()


def _differences(path: Path, expected: dict[str, Any]) -> list[str]:
    loaded = hc.load(path)
    wrong = [name for name in expected if name not in loaded or not _same(loaded[name], expected[name])]
    more = sorted(loaded.keys() - expected.keys())
    return [f"{path.name} holds other values of {wrong} than were saved, and {more} besides"] if wrong or more else []


def _same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == b.tobytes()


def run(case: Case) -> Outcome:
    """Save something five times while it changes."""
    kind = list(KINDS)[case.number % len(KINDS)]
    needed = {"tensorflow"} if kind in TF else {"torch"} if kind in TORCH else set()
    if not all(map(_is_there, needed)):
        return Outcome("skipped", kind)
    n_ranks = case.rng.choice([1, 1, 2, 3] if kind in NUMPY else [1, 1, 2])
    is_linked = KINDS[kind].incremental
    options = {
        "max_in_flight": 1 if is_linked else case.rng.choice([1, 2, 2]),
        "max_to_keep": 3,
        "incremental": is_linked,
        "recycle": case.rng.random() < 0.8,
        "threads": case.rng.choice([1, 2]),
    }
    _slow_down(case.rng)
    results = run_ranks(n_ranks, lambda comm: _Rank(case, kind, options, comm).run(), 120.0)
    figures = {"saves": float(SAVES), "updates while a save was under way": float(results[0]["during"])}
    figures["updates"] = float(results[0]["updates"])
    if is_linked:
        figures["saves with linked files"] = float(results[0]["linked"])
    problems = results[0]["problems"]
    text = "\n".join([f"{n_ranks} ranks, {options}", *problems])
    return Outcome("wrong" if problems else "good", kind, text if problems else "", figures)


CAMPAIGN = Campaign(
    "isolation",
    f"1,000 saves in the background, {SAVES} in each case, of what goes on changing: each step holds, bit by bit, what "
    "was there when save() was called.",
    full=200,
    run=run,
    prepare=prepare,
    timeout_s=600.0,
    jobs=1,
    in_memory=True,
)
