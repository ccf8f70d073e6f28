"""Runs the cases of a campaign in workers, and notices those that hang or die."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.campaign._common import HERE, Campaign, Outcome

Report = Callable[[int, Outcome], None]
PREPARATION_FACTOR = 10
_LOG_TAIL = 6000
_DUMP_S = 10.0
_MEMORY = Path("/dev/shm")


class BrokenCampaignError(Exception):
    """The campaign could not even be prepared."""


class _Worker:
    """A worker process, which is preparing (``number`` is None), or runs the case `number`, until `deadline`."""

    def __init__(self, campaign: Campaign, seed: int, place: Path, timeout_s: float) -> None:
        self.place = place
        self.log = place.with_suffix(".log")
        self.timeout_s = timeout_s
        self.grace_s = 2.0  # for one that is ending, or has nothing more to do, to end by itself
        self.number: int | None = None
        self.is_ready = False
        self.deadline = time.monotonic() + PREPARATION_FACTOR * timeout_s
        self._rest = b""
        module = sys.modules[campaign.run.__module__].__file__
        command = [sys.executable, str(HERE / "_worker.py"), str(module), str(seed), str(place)]
        pipe = subprocess.PIPE
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True)

    def give(self, number: int) -> None:
        self.number, self.deadline = number, time.monotonic() + self.timeout_s
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead: its end of the other pipe tells
            self.process.stdin.write(b"%d\n" % number)
            self.process.stdin.flush()

    def answers(self) -> Iterator[dict[str, Any]] | None:
        """Return the answers that have come, or ``None`` at the end of the worker."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return map(json.loads, lines)

    def end(self) -> str:
        """End it with all it started; return the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            with contextlib.suppress(OSError):
                self.process.stdin.close()  # type: ignore[union-attr]
            self.process.wait(timeout=self.grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]
        shutil.rmtree(self.place, ignore_errors=True)
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL))
            return log.read().decode(errors="replace")

    def end_hung(self) -> str:
        """End it too, after it wrote where it hangs."""
        before, deadline = self.log.stat().st_size, time.monotonic() + _DUMP_S
        self.process.send_signal(signal.SIGUSR1)
        while self.log.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)  # for the rest of it
        self.grace_s = 0.0
        return self.end()


class _Crew:
    """All workers of a run, and the numbers that are still to be given out."""

    def __init__(self, campaign: Campaign, seed: int, numbers: Iterable[int], place: Path, timeout_s: float) -> None:
        self.campaign, self.seed, self.place, self.timeout_s = campaign, seed, place, timeout_s
        self.numbers = iter(numbers)
        self.selector = selectors.DefaultSelector()
        self._count = itertools.count()

    @property
    def workers(self) -> list[_Worker]:
        return [key.data for key in self.selector.get_map().values()]

    def hire(self) -> None:
        place = self.place / f"worker-{next(self._count)}"
        worker = _Worker(self.campaign, self.seed, place, self.timeout_s)
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def dismiss(self, worker: _Worker, *, is_hung: bool = False) -> str:
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        return worker.end_hung() if is_hung else worker.end()

    def give_next(self, worker: _Worker) -> None:
        """Give the worker its next case, or let it go if there is none."""
        number = next(self.numbers, None)
        if number is None:
            self.dismiss(worker)
        else:
            worker.give(number)


def run_cases(
    campaign: Campaign,
    seed: int,
    numbers: Iterable[int],
    report: Report,
    *,
    jobs: int | None = None,
    timeout_s: float | None = None,
    scratch: Path | None = None,
) -> None:
    """Run the cases with these numbers, and report each as it ends.

    Parameters
    ----------
    jobs, timeout_s : optional
        By default what the campaign says.
    scratch : Path, optional
        Where the cases work; by default where temporary files go, or memory.

    Raises
    ------
    BrokenCampaignError
        If a worker cannot be prepared.
    """
    if scratch is None and campaign.in_memory and _MEMORY.is_dir():
        scratch = _MEMORY
    place = Path(tempfile.mkdtemp(prefix=f"campaign-{campaign.name}-", dir=scratch))
    crew = _Crew(campaign, seed, numbers, place, timeout_s or campaign.timeout_s)
    try:
        for _ in range(jobs or campaign.jobs):
            crew.hire()
        while crew.workers:
            for key, _ in crew.selector.select(timeout=0.2):
                _hear(crew, key.data, report)
            for worker in crew.workers:
                if time.monotonic() > worker.deadline:
                    _replace(crew, worker, report, is_hung=True)
    finally:
        for worker in crew.workers:
            worker.grace_s = 0.0
            crew.dismiss(worker)
        crew.selector.close()
        shutil.rmtree(place, ignore_errors=True)


def _hear(crew: _Crew, worker: _Worker, report: Report) -> None:
    answers = worker.answers()
    if answers is None:
        _replace(crew, worker, report, is_hung=False)
        return
    for answer in answers:
        if answer.pop("is_ready", False):
            worker.is_ready = True
        else:
            report(answer.pop("number"), Outcome(**answer))
        crew.give_next(worker)


def _replace(crew: _Crew, worker: _Worker, report: Report, *, is_hung: bool) -> None:
    """Report the case that a worker hung or died at, and let another one go on."""
    log = crew.dismiss(worker, is_hung=is_hung)
    how = f"no end after {worker.timeout_s:g} s" if is_hung else f"the worker ended with {worker.process.returncode}"
    if not worker.is_ready or worker.number is None:
        raise BrokenCampaignError(f"campaign {crew.campaign.name}: {how} while it prepared\n{log}")
    report(worker.number, Outcome("hung" if is_hung else "wrong", "", f"{how}\n{log}"))
    crew.hire()
