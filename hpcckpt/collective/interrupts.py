"""Ctrl-C that takes effect when a collective call is over.

An interrupt at any line of a call would leave the other ranks with messages that never come, or past a call that this
rank has not made.  So in a group of several ranks SIGINT is noted while a call lasts: this rank has then made the call,
or not begun it.  A wait that lasts longer is left (:attr:`hpcckpt.collective.deadlines.Patience.interrupt_s`), and a
second Ctrl-C takes effect at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_is_noted = False


def _is_here() -> bool:
    return threading.current_thread() is threading.main_thread()


def _note(*_: object) -> None:
    global _is_noted
    if _is_noted:
        _is_noted = False
        raise KeyboardInterrupt
    _is_noted = True


def raise_noted() -> None:
    """Raise the interrupt that was noted, if there is one. Independent."""
    global _is_noted
    if is_noted():
        _is_noted = False
        raise KeyboardInterrupt


def is_noted() -> bool:
    """Return True if this thread was interrupted, and does not know it yet. Independent."""
    return _is_noted and _is_here()


@contextlib.contextmanager
def deferred(n_ranks: int) -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block; a program that has its own handler for SIGINT gets it at once."""
    if n_ranks == 1 or not _is_here() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise_noted()
