"""A program that was started with all it starts itself, and that can be ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcckpt.errors import ConfigError

_TAIL = 2000
_PROC = Path("/proc")


class Program:
    """A program in a new session.

    Parameters
    ----------
    command : sequence of str
        What to run.
    log : Path
        Where its output goes.
    environment : mapping of str to str
        More for its environment.

    Raises
    ------
    ConfigError
        If it cannot be started.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._began = time.monotonic()
        try:
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    command,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be run: {error.strerror or error}") from error

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._began

    def code(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.poll()

    def kill(self) -> int:
        """Kill it and all processes in its session; return its exit code."""
        while (found := self._members()) and self._kill(found):
            time.sleep(0.001)
        return self._process.wait()

    def _kill(self, members: Sequence[int]) -> bool:
        """Send SIGKILL; return True if a process received it and the program still runs."""
        reached = False
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
                reached = True
            except ProcessLookupError:
                continue
        return reached and self._process.poll() is None

    def _members(self) -> list[int]:
        """Return the live processes of the session; ranks of an MPI job have their own process groups."""
        own = [self._process.pid] if self._process.poll() is None else []
        return own if not _PROC.is_dir() else [*own, *(pid for pid in _session(self._process.pid) if pid not in own)]


def tail_of(log: Path) -> str:
    """Return the end of what a program printed."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        return file.read().decode(errors="replace").strip()


def _session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        try:
            status = Path(_PROC, name, "stat").read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(status[3]) == leader and status[0] not in {"Z", "X"}:
            found.append(int(name))
    return found
