"""Ends what tests have begun when its standard input ends, however those do who hold the other side of the pipe.

reaper.py NAME=VALUE [DIRECTORY]: kills all that has this in its environment, and takes the directory away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def main(mark: str, *directories: str) -> None:
    """Wait; then kill: a cluster's daemons, those of steps, and what they started, say."""
    sys.stdin.read()
    while left := list(processes(mark)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def reaped(mark: str, *directories: str) -> Iterator[None]:
    """Have all that bears a mark end with this block."""
    command = [sys.executable, __file__, mark, *directories]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


def processes(mark: str) -> Iterator[int]:
    """Yield what has something in its environment; zombies have none."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                yield int(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
