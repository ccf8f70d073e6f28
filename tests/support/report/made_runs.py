"""Runs that were never trained: journals of any length, with steps, jobs, failures and metrics of one's choice."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcckpt.rundir import journal

BEGAN = 1_795_200_000.0


class MadeRun:
    """Writes a journal entry by entry, at its own clock.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory; made.
    seed : int
        Of what varies.
    """

    def __init__(self, directory: Path, seed: int = 1) -> None:
        self.directory = directory
        self.now = BEGAN
        self.step = 0
        self._random = random.Random(seed)
        self._jobs = 0
        self._lines: list[str] = []

    def note(self, event: str, **facts: Any) -> None:
        self._lines.append(json.dumps({"time": round(self.now, 3), "event": event, **facts}))

    def start(self, *, n_ranks: int = 8, after_s: float = 1800.0, restored: int | None = None) -> None:
        self.now += after_s
        self._jobs += 1
        number = self._jobs
        place = {"host": f"node{number:02}", "pid": 100 + number, "born": str(number)}
        job = {"job": str(4710 + number), "scheduler": "slurm", "restart": number - 1}
        self.note("start", **job, **place, version="0.1.0", n_ranks=n_ranks, backend="rankfile")
        if restored is not None:
            self.now += 12.0
            ranks = {"ranks_before": 8, "n_ranks": n_ranks}
            self.note("restored", step=restored, **ranks, level="exact", seconds=11.0, skipped=0, **{"from": "there"})
            self.step = restored

    def train(
        self,
        n_saves: int,
        *,
        interval_s: float = 300.0,
        cost_s: float = 0.6,
        fails: Iterable[int] = (),
        kept: int = 3,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        for number in range(n_saves):
            self.now += interval_s
            self.step += 500
            if number in fails:
                text = "no room: 3.2 GiB are needed; free space or quota"
                self.note("failed", step=self.step, phase="write", kind="no-space", message=text, ranks=[0, 3])
                continue
            self._saved(cost_s + (2.0 if number == 0 else 0.0), kept, metrics)

    def _saved(self, cost_s: float, kept: int, metrics: Mapping[str, Any] | None) -> None:
        step = self.step
        loss = 2 * math.exp(-step / 20_000) + 0.05 * self._random.random()
        told = {"loss": loss, "accuracy": 1 - math.exp(-step / 15_000)} if metrics is None else metrics
        seconds = 5 + 2 * self._random.random()
        size = {"bytes": 3 << 30, "linked_bytes": 0, "files": 8, "kept": kept, "n_ranks": 8}
        times = {"stall_seconds": cost_s * 0.6, "seconds": seconds, "bytes_per_second": (3 << 30) / seconds}
        save_id = f"{self._random.getrandbits(128):032x}"
        epoch = step // 5000
        self.note("saved", step=step, epoch=epoch, **size, **times, level="exact", save_id=save_id, metrics=told)
        self.note("cost", step=step, seconds=cost_s)
        if step > 500 * kept:
            self.note("removed", steps=[step - 500 * kept], n_steps=1)

    def stop(self, reason: str = "", error: str = "") -> None:
        if reason:
            self.note("preempted", step=self.step, reason=reason)
        self.note("end", **({"error": error} if error else {}))

    def write(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / journal.NAME).write_text("".join(f"{line}\n" for line in self._lines), encoding="utf-8")
        return self.directory


def long_run(directory: Path, n_saves: int = 300) -> Path:
    """Make a run of four jobs: one that dies, one preempted, one broken off by an error, one that ends."""
    run = MadeRun(directory)
    each = n_saves // 4
    run.start()
    run.train(each, fails=(each // 2,))
    run.start(restored=run.step)
    run.train(each, cost_s=0.7, fails=(3, 4, each // 3))
    run.stop("the job ends in 0:04:12")
    run.start(n_ranks=4, restored=run.step)
    run.train(each)
    run.stop(error="RuntimeError")
    run.start(n_ranks=4, restored=run.step)
    run.train(n_saves - 3 * each)
    run.stop()
    return run.write()


def short_run(directory: Path, metrics: Mapping[str, Any] | None = None) -> Path:
    """Make a run of one job that saves three steps."""
    run = MadeRun(directory)
    run.start()
    run.train(3, metrics=metrics)
    run.stop()
    return run.write()
