"""The standard streams, which may be closed, full, or pipes without a reader: no result depends on a message.

Python tries to write what is still buffered when the interpreter exits, and exits with 120 if that fails, whatever
the program's own exit code was.  What cannot be written is therefore dropped here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO


def write_message(text: str) -> None:
    """Write a line to standard error at once, or drop it where that fails. Independent."""
    stream = sys.stderr
    if stream is None:  # the caller closed it
        return
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except (OSError, ValueError):
        discard(stream)


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
