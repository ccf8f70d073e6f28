"""The file ``HALT`` in a run directory: how people ask a running job to save and to stop.

It holds nothing (stop now), ``after-step N``, or ``at TIME``; lines that begin with ``#`` are remarks.  Root looks for
it now and then, and takes it away when the job has stopped, so that the next job goes on: it renames it, by which
``hpcckpt supervise`` sees that people want the run to stand still.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from hpcckpt import files, layout
from hpcckpt.discovery import read_bounded
from hpcckpt.errors import HpcckptError, OptionError, StepNotFoundError, from_os_error
from hpcckpt.preemption.clock import moment_s, moment_text

MAX_NBYTES = 4096
AGAIN_S = 1.0


class Halt(NamedTuple):
    """When a job is to stop: at once, behind a step, or at a moment (seconds since 1970)."""

    after_step: int | None = None
    at: float | None = None

    def __str__(self) -> str:
        if self.after_step is not None:
            return f"after-step {self.after_step}"
        return "" if self.at is None else f"at {moment_text(self.at)}"


def parse_halt(text: str) -> Halt:
    """Read what a file ``HALT`` says. Independent.

    Raises
    ------
    OptionError
        If it says something else than is understood.
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
    raise OptionError(f"{shown!r} is not understood: an empty file, 'after-step N', or 'at TIME'")


def _is_step(number: str) -> bool:
    return number.isascii() and number.isdecimal() and len(number) < 100 and int(number) <= layout.MAX_STEP


def write_halt(directory: str | os.PathLike[str], halt: Halt, remark: str = "") -> Path:
    """Ask the job that works in a run directory to stop; return the file that says so. Independent.

    Raises
    ------
    StepNotFoundError
        If there is no such directory: one that is made for a name mistyped would stop nobody, and say that it does.
    StorageError, ReadOnlyError, NoSpaceError
        If the file cannot be written.
    """
    path = Path(directory) / layout.HALT
    draft = path.with_name(f".{layout.HALT}.{layout.new_nonce()}")
    remarks = "".join(f"# {line}\n" for line in remark.splitlines())
    try:
        draft.write_text(f"{remarks}{halt}\n", encoding="utf-8")
        files.rename(draft, path)  # a job sees all of it, or nothing
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StepNotFoundError(nobody_is_there(Path(directory))) from error
    except OSError as error:
        files.unlink(draft)
        raise from_os_error(error, "ask the job to stop") from error
    return path


def nobody_is_there(directory: Path) -> str:
    """Return why nobody can be asked to stop in what is no directory, and what to do instead. Independent."""
    if directory.exists():
        return f"{directory} is not a directory: give the directory of a run"
    return (
        f"{directory} does not exist: no job has begun there. See whether that is its name; take a job that waits out "
        "of the queue (scancel, qdel), or make the directory first: then the job stops soon after it has begun"
    )


def read_halt(directory: str | os.PathLike[str]) -> Halt | None:
    """Return what the file ``HALT`` of a run directory says; ``None`` if there is none. Independent.

    Raises
    ------
    OptionError
        If it is not understood.
    CorruptError
        If it is no ordinary file, or a large one.
    """
    try:
        raw = read_bounded(os.path.join(directory, layout.HALT), MAX_NBYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_halt(raw.decode("utf-8", errors="replace"))


def take_back_halt(directory: str | os.PathLike[str]) -> bool:
    """Remove the file ``HALT`` of a run directory, whatever it says; say whether there was one. Independent.

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
    """Looks for the file now and then. Root only.

    Parameters
    ----------
    directory : path_like
        The run directory.
    every_s : float
        How often; one file is opened, which is not there as a rule.
    """

    def __init__(self, directory: str | os.PathLike[str], every_s: float) -> None:
        self.path = Path(directory) / layout.HALT
        self.complaint = ""
        self._every_s = every_s
        self._next = float("-inf")
        self._found: Halt | None = None
        self._is_young = False

    def reason(self, step: int) -> str:
        """Return why the job is to stop behind `step`; "" if it is not. Root only."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._look(now)
        return f"{layout.HALT} {self._found}".strip() if _is_due(self._found, step) else ""

    def _look(self, now: float) -> None:
        try:
            found = read_halt(self.path.parent)
            self.complaint = ""
        except (HpcckptError, OSError) as error:
            found, self.complaint = None, f"{self.path}: {error}"
        is_empty = found == Halt()
        if is_empty and not self._is_young and self._found is None:
            self._is_young, self._next = True, now + min(AGAIN_S, self._every_s)  # it may not be filled yet
            return
        self._is_young, self._found = False, found

    def reason_now(self, step: int) -> str:
        """Return why a job that stops behind `step` is halted, by the file as it is now; "" if not. Root only."""
        with contextlib.suppress(HpcckptError, OSError):  # what is not understood asks for nothing
            found = read_halt(self.path.parent)
            return f"{layout.HALT} {found}".strip() if _is_due(found, step) else ""
        return ""

    def take_away(self, step: int) -> None:
        """Put the file aside, if the job that stops behind `step` has done what it asks. Root only."""
        if self.reason_now(step):
            with contextlib.suppress(FileNotFoundError):
                files.rename(self.path, self.path.with_name(layout.HALTED))


def _is_due(halt: Halt | None, step: int) -> bool:
    """Say whether a job is to stop behind a step now. Independent."""
    if halt is None or (halt.after_step is not None and step < halt.after_step):
        return False
    return halt.at is None or time.time() >= halt.at
