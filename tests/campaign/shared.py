"""Three checkpointers of one process on one directory, each with its own step numbers: no committed step is damaged.

One case is some seconds (``HPCCKPT_SHARED_SECONDS``) of saving by three threads, each with ``on_newer="aside"``, so
that they move each other's steps aside, retire them and sweep.  Now and then all stop, and every step that is visible
or was moved aside is read, and must hold what was saved as that number.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.restoring.reader import open_step
from tests.campaign._common import Campaign, Case, Outcome

N_CHECKPOINTERS = 3
SECONDS = float(os.environ.get("HPCCKPT_SHARED_SECONDS", "10"))
ROUND_S = 2.0
FIRST_STEP = 1_000_000
DOCUMENTED = (errors.StepExistsError, errors.NewerStepError)
NBYTES = (512, 1 << 16, 1 << 20)
BACKENDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"recycle": False},
    {"incremental": True},
    {"backend": "hdf5"},
    {"backend": "hdf5", "backend_options": {"driver": "per-rank"}},
)


def state_of(step: int, nbytes: int) -> dict[str, np.ndarray]:
    """Return what is saved as a step: every value says which."""
    return {"w": np.full(nbytes // 8, float(step)), "b": np.full(3, float(step))}


class Saver:
    """One checkpointer and its thread."""

    def __init__(self, directory: Path, number: int, rng: random.Random) -> None:
        self.rng = rng
        self.step = FIRST_STEP * number
        self.nbytes = rng.choice(NBYTES)
        options = {"max_to_keep": rng.choice([1, 2, 3, None]), "async_save": rng.random() < 0.7}
        options |= rng.choice(BACKENDS)
        self.text = f"{options}, {self.nbytes} bytes"
        self.ckpt = hc.Checkpointer(directory, on_newer="aside", check_replicas=0, **options)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def save_until(self, end: float) -> None:
        """Save as fast as it goes; sometimes do without the checkpointer's second half, as a program that ends does."""
        while time.monotonic() < end:
            self.step += 1
            try:
                saved = self.ckpt.save(self.step, state_of(self.step, self.nbytes)).result()
            except DOCUMENTED as error:
                self.counts[type(error).__name__] += 1
            except errors.HpcckptError as error:
                self.problems.append(f"save {self.step} with {self.text}: {type(error).__name__}: {error}")
            else:
                self.counts["saved"] += 1
                self.problems += [f"save {self.step}: {text}" for text in saved.warnings]


def _check(directory: Path) -> tuple[int, list[str]]:
    """Read all steps, those moved aside too, and remove the latter; return how many, and what is wrong."""
    problems, paths = [], [p for p in directory.iterdir() if p.name.startswith(("step-", ".aside-step-", ".bad-"))]
    for path in paths:
        step = int(path.name.removeprefix(".aside-").split("-")[1]) if ".bad-" not in path.name else -1
        try:
            reader = open_step(path)
            if any(set(reader.load(name).tolist()) != {float(step)} for name in reader.specs):
                problems.append(f"{path.name} holds other values")
        except errors.HpcckptError as error:
            problems.append(f"{path.name}: {type(error).__name__}: {error}")
        if path.name.startswith("."):
            shutil.rmtree(path)
    return len(paths), problems


def run(case: Case) -> Outcome:
    """Save by three threads, and look at what there is."""
    directory = case.scratch / "run"
    savers = [Saver(directory, number, random.Random(case.rng.random())) for number in range(1, N_CHECKPOINTERS + 1)]
    problems: list[str] = []
    n_read = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        threads = [
            threading.Thread(target=saver.save_until, args=(min(end, time.monotonic() + ROUND_S),)) for saver in savers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        more, found = _check(directory)
        n_read, problems = n_read + more, problems + found
    for saver in savers:
        saver.ckpt.close()
        problems += saver.problems
    more, found = _check(directory)
    left = [name for name in os.listdir(directory) if name.startswith((".next-", ".retired-", ".lock"))]
    problems += found + [f"{name} is left" for name in left]
    counts = sum((saver.counts for saver in savers), Counter[str]())
    figures = {"saves": float(counts["saved"]), "steps read": float(n_read + more)}
    figures |= {f"saves refused by {name}": float(counts[name]) for name in counts if name != "saved"}
    if problems:
        is_lost = any("step-" in text.split(":")[0] for text in problems)
        return Outcome("lost" if is_lost else "wrong", "three checkpointers", "\n".join(problems[:20]), figures)
    return Outcome("good", "three checkpointers", figures=figures)


CAMPAIGN = Campaign(
    "shared",
    "Three checkpointers of a process on one directory damage no step of each other, and no save fails but for "
    "documented conflicts",
    full=60,
    run=run,
    timeout_s=120.0 + 2 * SECONDS,
    in_memory=True,
)
