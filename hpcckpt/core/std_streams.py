"""The standard streams, which may be closed, full, or pipes without a reader: no result depends on a message.

Python tries to write what is still buffered when the interpreter exits, and exits with 120 if that fails, whatever
the program's own exit code was.  What cannot be written is therefore dropped here.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import textwrap
from collections.abc import Iterator
from typing import IO

_WIDTH = 80
_open_line: object = None
_ended_line: object = None


def mark_open_line(mark: object) -> None:
    """Remember that another writer has left a line without its end on standard output. Independent.

    Parameters
    ----------
    mark : object
        Equal for the same state of the line, which is ended once; ``None`` if no line is open.
    """
    global _open_line
    _open_line = mark


def is_terminal() -> bool:
    """Return True if people read standard error on a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def write_wrapped(text: str) -> None:
    """Write a line as `write_message` does; on a terminal it is wrapped between words. Independent."""
    if is_terminal():
        text = textwrap.fill(text, _columns(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    write_message(text)


def _columns() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
    return _WIDTH


def write_message(text: str) -> None:
    """Write a line to standard error at once, or drop it where that fails. Independent."""
    stream = sys.stderr
    if stream is None:  # the caller closed it
        return
    _end_open_line()
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except (OSError, ValueError):
        discard(stream)


def _end_open_line() -> None:
    """End the line that another writer has left open, if ours would be appended to it: a terminal or a log has both."""
    global _ended_line
    if _open_line is None or _open_line == _ended_line or sys.stdout is None:
        return
    _ended_line = _open_line
    try:
        if _is_separate_file():
            return
        is_screen = sys.stdout.isatty() and is_terminal() and os.environ.get("TERM") != "dumb"
        sys.stdout.write("\r\x1b[K" if is_screen else "\n")  # on a screen the other writer draws its line again
        sys.stdout.flush()
    except (OSError, ValueError):
        discard(sys.stdout)


def _is_separate_file() -> bool:
    """Return True if standard output is a file, and standard error is elsewhere."""
    out, err = (os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr))
    return stat.S_ISREG(out.st_mode) and (out.st_dev, out.st_ino) != (err.st_dev, err.st_ino)


def flush_or_discard() -> None:
    """Write what is buffered for standard output and standard error; drop what cannot be written. Independent."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                discard(stream)


def discard(stream: IO[str]) -> None:
    """Drop what is buffered for a stream that cannot be written; later text is tried again. Independent."""
    with contextlib.suppress(OSError, ValueError), _to_devnull(stream.fileno()):
        stream.flush()


@contextlib.contextmanager
def _to_devnull(descriptor: int) -> Iterator[None]:
    kept = os.dup(descriptor)
    try:
        devnull = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(devnull, descriptor)
        os.close(devnull)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


def open_closed_descriptors() -> None:
    """Open /dev/null for each of the descriptors 0 to 2 that is closed, or a file opened later gets it. Independent.

    What a library in C or a child process writes to standard error would go into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # POSIX: the lowest number that is free; not O_CLOEXEC: children inherit it
