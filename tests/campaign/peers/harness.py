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
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

ANSWER_S = 300.0
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

    def hear(self, document: dict[str, Any]) -> None:
        """Take note of what it says."""
        if not document.keys() & {"begin", "saved"}:
            raise RuntimeError(f"the program that trains said {document}")
        self.begun = document.get("begin", self.begun)
        self.saved = document.get("saved", self.saved)


class Server:
    """The process that starts a subject's programs; it ends when we do, as its input does."""

    def __init__(self, subject: Subject) -> None:
        environment = {**os.environ, "PYTHONNOUSERSITE": "1", "PATH": f"{subject.python.parent}:{os.environ['PATH']}"}
        self._process = subprocess.Popen(
            [subject.python, Path(__file__).with_name("server.py"), subject.library],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._lines: deque[dict[str, Any]] = deque()
        self._rest = b""
        self.expect("ready")

    def start(self, do: str, directory: Path) -> int:
        """Start a program, and return its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps({"do": do, "directory": str(directory)}) + "\n").encode())
        self._process.stdin.flush()
        return int(self.expect("pid"))

    def hear(self) -> dict[str, Any]:
        """Return the next thing said."""
        return self._lines.popleft() if self._lines else self._read()

    def expect(self, key: str) -> Any:
        """Return the answer that has this key; what is said before it is kept for later."""
        early = []
        while key not in (document := self._read()):
            early.append(document)
        self._lines.extend(early)
        return document[key]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
                raise RuntimeError(f"nothing was said in {ANSWER_S:.0f} s")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise RuntimeError("the server of programs ended")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        document: dict[str, Any] = json.loads(line)
        if "broken" in document:
            raise RuntimeError(document["broken"])
        return document

    def close(self) -> None:
        """End."""
        self._process.kill()
        self._process.communicate()


def kill_in_a_save(server: Server, directory: Path, rng: random.Random) -> Told:
    """Let a program save a few steps, and kill it in the course of one of them, at an instant of chance."""
    told, last = Told(), rng.randint(2, 5)
    share = rng.uniform(0.0, PAST_THE_END)
    pid = server.start("train", directory)
    try:
        _follow(server, told, last)
        time.sleep(share * statistics.median(told.durations))
    finally:
        with contextlib.suppress(ProcessLookupError):  # it failed, and `hear` reports it
            os.kill(pid, signal.SIGKILL)
    while "ended" not in (document := server.hear()):
        told.hear(document)
    return told


def _follow(server: Server, told: Told, last: int) -> None:
    """Listen until the save that shall be killed begins."""
    began = time.monotonic()
    while told.begun <= last:
        document = server.hear()
        told.hear(document)
        if "begin" in document:
            began = time.monotonic()
        elif "saved" in document:
            told.durations.append(time.monotonic() - began)


def resume(server: Server, directory: Path) -> dict[str, Any]:
    """Start a program that resumes, and return what it found."""
    server.start("resume", directory)
    found: dict[str, Any] = {}
    while "ended" not in (document := server.hear()):
        found = document["found"]
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
