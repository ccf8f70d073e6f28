"""Kills a program while it saves, starts another one, and says what that found."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
ANSWER_S = 120.0
PAST_THE_END = 1.1
"""Kills fall between a save's begin and a little after its usual end."""


@dataclass(frozen=True)
class Subject:
    """A library and a way to use it.

    Attributes
    ----------
    title : str
        What the table calls it.
    library : str
        Module ``library_NAME``, with ``:VARIANT``.
    environment : str
        The folder of the environment that has it.
    """

    title: str
    library: str
    environment: str = ".venv"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return ROOT / self.environment / "bin" / "python"


@dataclass
class Told:
    """What a program said before it was killed."""

    begun: int = 0
    saved: int = 0
    durations: list[float] = field(default_factory=list)


class Server:
    """The process that starts a subject's programs; it ends with us."""

    def __init__(self, subject: Subject) -> None:
        environment = {**os.environ, "PYTHONNOUSERSITE": "1", "PATH": f"{subject.python.parent}:{os.environ['PATH']}"}
        self._process = subprocess.Popen(
            [subject.python, Path(__file__).with_name("server.py"), subject.library],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._rest = b""
        self.answer("ready")

    def start(self, do: str, directory: Path) -> int:
        """Start a program, and return its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps({"do": do, "directory": str(directory)}) + "\n").encode())
        self._process.stdin.flush()
        # The program may speak before its parent says who it is.
        self._early: list[dict[str, Any]] = []
        while True:
            document = self._read(ANSWER_S)
            if "pid" in document:
                return int(document["pid"])
            self._early.append(document)

    def next(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the next thing said, or nothing if none comes in time."""
        return self._early.pop(0) if self._early else self._read(timeout_s)

    def answer(self, key: str) -> Any:
        """Return the answer that has this key; what comes before it is skipped."""
        while True:
            document = self.next() if hasattr(self, "_early") else self._read(ANSWER_S)
            if not document:
                raise RuntimeError(f"no {key!r} within {ANSWER_S:.0f} s")
            if key in document:
                return document[key]

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return {}
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise RuntimeError("the server of programs ended")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return dict(json.loads(line))

    def close(self) -> None:
        """End."""
        self._process.kill()
        self._process.wait()


def kill_in_a_save(server: Server, directory: Path, rng: random.Random) -> Told:
    """Let a program save a few steps, and kill it in the course of one of them, at an instant of chance."""
    told, last = Told(), rng.randint(2, 5)
    share = rng.uniform(0.0, PAST_THE_END)
    pid = server.start("train", directory)
    try:
        _follow(server, told, last)
        time.sleep(share * statistics.median(told.durations))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while "ended" not in (document := server.next()):
        _hear(told, document)
    return told


def _follow(server: Server, told: Told, last: int) -> None:
    """Listen until the save that shall be killed begins."""
    began = time.monotonic()
    while told.begun <= last:
        document = server.next()
        _hear(told, document)
        if "begin" in document:
            began = time.monotonic()
        elif "saved" in document:
            told.durations.append(time.monotonic() - began)


def _hear(told: Told, document: dict[str, Any]) -> None:
    if not document or "found" in document or "ended" in document:
        raise RuntimeError(f"the program that trains did not: {document}")
    told.begun = document.get("begin", told.begun)
    told.saved = document.get("saved", told.saved)


def resume(server: Server, directory: Path) -> dict[str, Any]:
    """Start a program that resumes, and return what it found."""
    pid = server.start("resume", directory)
    try:
        found: dict[str, Any] = server.answer("found")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    server.answer("ended")
    return found


OUTCOMES = ("resumed the newest", "resumed an older one", "crashed on load", "wrong data, silently", "nothing found")


def judge(told: Told, found: dict[str, Any]) -> str:
    """Return which of `OUTCOMES` it is.

    The newest is the last that was reported as saved, or the one that was being saved.
    """
    if "error" in found:
        return OUTCOMES[2]
    if not found:
        return OUTCOMES[4]
    if found["state"] is None or found["state"] != found["position"]:
        return OUTCOMES[3]
    return OUTCOMES[0] if found["state"] >= told.saved else OUTCOMES[1]
