"""The file ``HALT`` in a run directory: how people ask a running job to save and to stop.

It is empty (stop now) or contains ``after-step N`` or ``at TIME``; lines that begin with ``#`` are comments.  Root
checks for it at intervals, and renames it when the job has stopped, so that the next job is not stopped.
``hpcckpt supervise`` sees by the renamed file that the stop was requested.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcckpt.core import files
from hpcckpt.core.durations import moment_s, moment_text
from hpcckpt.core.files import read_bounded
from hpcckpt.errors import HpcckptError, OptionError, StepNotFoundError, from_os_error
from hpcckpt.format import layout

MAX_NBYTES = 4096
AGAIN_S = 1.0


class Halt(NamedTuple):
    """When a job is to stop: at once, after a step, or at a time (seconds since 1970)."""

    after_step: int | None = None
    at: float | None = None

    def __str__(self) -> str:
        if self.after_step is not None:
            return f"after-step {self.after_step}"
        return "" if self.at is None else f"at {moment_text(self.at)}"


def parse_halt(text: str) -> Halt:
    """Return the request in the text of a file ``HALT``. Independent.

    Raises
    ------
    OptionError
        If it is invalid.
    """
    lines = [line.strip() for line in text.splitlines()]
    words = " ".join(line for line in lines if line and not line.startswith("#")).split()
    match words:
        case [] | ["now"]:
            return Halt()
        case ["after-step", number] if _is_step(number):
            return Halt(after_step=int(number))
        case ["at", *moment] if moment:
            return Halt(at=moment_s(" ".join(moment)))
    shown = " ".join(words)[:60]
    raise OptionError(f"{shown!r} is not understood: expected an empty file, 'after-step N', or 'at TIME'")


def _is_step(number: str) -> bool:
    return number.isascii() and number.isdecimal() and len(number) < 100 and int(number) <= layout.MAX_STEP


def write_halt(directory: str | os.PathLike[str], halt: Halt, remark: str = "") -> Path:
    """Write the file ``HALT`` of a run directory; return its path. Independent.

    It requests that the job of the run directory stops.

    Raises
    ------
    StepNotFoundError
        If the directory does not exist. It is not created: if its name was mistyped, no job would stop.
    StorageError, ReadOnlyError, NoSpaceError
        If the file cannot be written.
    """
    path = Path(directory) / layout.HALT
    draft = path.with_name(f".{layout.HALT}.{layout.new_nonce()}")
    remarks = "".join(f"# {line}\n" for line in remark.splitlines())
    try:
        draft.write_text(f"{remarks}{halt}\n", encoding="utf-8")
        files.rename(draft, path)  # a job reads the whole file, or none
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StepNotFoundError(explain_no_directory(Path(directory))) from error
    except OSError as error:
        files.unlink(draft)
        raise from_os_error(error, "ask the job to stop") from error
    return path


def explain_no_directory(directory: Path) -> str:
    """Return why no job can be stopped where there is no directory, and what to do instead. Independent."""
    if directory.exists():
        return f"{directory} is not a directory: give the directory of a run"
    return (
        f"{directory} does not exist: no job has begun there. Check the name; remove a job that waits from the queue "
        "(scancel, qdel), or make the directory first: then the job stops soon after it has begun"
    )


def read_halt(directory: str | os.PathLike[str]) -> Halt | None:
    """Return the request in the file ``HALT`` of a run directory; None if there is none. Independent.

    Raises
    ------
    OptionError
        If it is invalid.
    CorruptError
        If it is not a regular file, or too large.
    """
    try:
        raw = read_bounded(os.path.join(directory, layout.HALT), MAX_NBYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_halt(raw.decode("utf-8", errors="replace"))


def remove_halt(directory: str | os.PathLike[str]) -> bool:
    """Remove the file ``HALT`` of a run directory; return True if there was one. Independent.

    Raises
    ------
    StorageError, ReadOnlyError
        If it cannot be removed.
    """
    try:
        return files.unlink(os.path.join(directory, layout.HALT))
    except NotADirectoryError:
        return False
    except OSError as error:
        raise from_os_error(error, "take the request back") from error


class HaltWatch:
    """Checks for the file at intervals, from its creation on. Root only.

    Parameters
    ----------
    directories : iterable of path_like
        Where the file may be.
    every_s : float
        Seconds between two checks. Each opens one file for each directory, which usually does not exist.
    """

    def __init__(self, directories: Iterable[str | os.PathLike[str]], every_s: float) -> None:
        self.paths = [Path(directory) / layout.HALT for directory in directories]
        self.error = ""
        self._every_s = every_s
        self._next = float("-inf")
        self._found: Halt | None = None
        self._is_maybe_unfinished = False
        self._check()

    def reason(self, step: int) -> str:
        """Return why the job is to stop after `step`; "" if it is not. Root only."""
        if time.monotonic() >= self._next:
            self._check()
        return f"{layout.HALT} {self._found}".strip() if _is_due(self._found, step) else ""

    def _check(self) -> None:
        now = time.monotonic()
        self._next = now + self._every_s
        found, self.error, is_empty = None, "", False
        for path in self.paths:
            try:
                if found is None:
                    found = read_halt(path.parent)
                    is_empty = found is not None and _is_new_and_empty(path)
            except (HpcckptError, OSError) as error:
                self.error = f"{path}: {error}"
        if is_empty and not self._is_maybe_unfinished and self._found is None:
            self._is_maybe_unfinished, self._next = True, now + min(AGAIN_S, self._every_s)
            return
        self._is_maybe_unfinished, self._found = False, found

    def reason_now(self, step: int) -> str:
        """Return why a job that stops after `step` is halted, by the files as they are now; "" if not. Root only."""
        found = next(self._due(step), None)
        return "" if found is None else f"{layout.HALT} {found[1]}".strip()

    def move_aside(self, step: int) -> list[str]:
        """Move the files aside whose requests a job that stops after `step` obeys; return what failed. Root only."""
        failures = []
        for path, _ in self._due(step):
            try:
                files.rename(path, path.with_name(layout.HALTED))
            except FileNotFoundError:
                continue
            except OSError as error:
                failures.append(f"{path} could not be removed ({error})")
        return failures

    def _due(self, step: int) -> Iterator[tuple[Path, Halt]]:
        """Yield the files that request a stop after `step`, and their requests."""
        for path in self.paths:
            with contextlib.suppress(HpcckptError, OSError):  # an invalid file requests nothing
                found = read_halt(path.parent)
                if found is not None and _is_due(found, step):
                    yield path, found


def _is_new_and_empty(path: Path) -> bool:
    """Return True if a file may be one that an editor or a shell is about to write. Independent."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_size == 0 and time.time() - status.st_mtime < AGAIN_S
    return False


def _is_due(halt: Halt | None, step: int) -> bool:
    """Return True if a job is to stop now, after a step. Independent."""
    if halt is None or (halt.after_step is not None and step < halt.after_step):
        return False
    return halt.at is None or time.time() >= halt.at
