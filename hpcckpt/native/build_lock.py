"""A lock that lets one process build a library while the others wait for it.

1. The builder has the kernel's lock on a file beside the library. The lock ends with the process, killed or not, and
   holds on all nodes that share the directory.
2. The file says who builds, and what the last failure was. A process that waited for a build that failed raises the
   same error: it does not try once more. One that comes later does.
3. Of all processes that wait, one writes a line.

Where the file system has no locks, each process is a builder: libraries get their names when they are complete, so
the last one replaces its equals.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcckpt.core import files
from hpcckpt.core.std_streams import write_message

_PAUSES_S = (0.05, 2.0)
_MAX_FAILURE = 16000
_IS_TAKEN = (errno.EAGAIN, errno.EACCES)


class BuildLock:
    """The turn to build a library: taken on entry, after a wait if need be. Independent.

    Parameters
    ----------
    path : Path
        The file that is locked; it stays.
    words : str
        What messages call the library.
    """

    def __init__(self, path: Path, words: str) -> None:
        self._path, self._words = path, words
        self.failure = ""
        """Why the builder that was waited for failed; "" if it did not, or none was waited for."""
        self.is_exclusive = True
        """False where the file system has no locks."""

    def __enter__(self) -> BuildLock:
        self._descriptor = _open(self._path)
        try:
            n_failures = self._read().get("n_failures", 0)
            if not self._is_taken():
                self._wait()
                content = self._read()
                self.failure = content["failure"] if content.get("n_failures", 0) > n_failures else ""
            self._write(self._read() | {"builder": f"process {os.getpid()} on {socket.gethostname()}"})
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not self.failure:
                content = self._read()
                self._write(
                    content | {"n_failures": content.get("n_failures", 0) + 1, "failure": str(error)[:_MAX_FAILURE]}
                )
        finally:
            os.close(self._descriptor)

    def _is_taken(self) -> bool:
        """Try to take the lock, and return whether this process may build."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _IS_TAKEN:
                return False
            self.is_exclusive = False
        return True

    def _wait(self) -> None:
        speaker = _open(self._path.with_suffix(".waiting"))
        try:
            try:
                fcntl.flock(speaker, fcntl.LOCK_EX | fcntl.LOCK_NB)
                builder = self._read().get("builder", "another process")
                write_message(f"hpcckpt: waiting for {self._words}, which {builder} builds")
            except BlockingIOError:
                pass  # another one has written the line
            pause = _PAUSES_S[0]
            while not self._is_taken():
                time.sleep(pause)
                pause = min(2 * pause, _PAUSES_S[1])
        finally:
            os.close(speaker)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(files.read_at(self._descriptor, 1 << 20, 0))
        except ValueError:  # nothing yet, or what a builder was killed in
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, content: dict[str, Any]) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(content).encode(), 0)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
