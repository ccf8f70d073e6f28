"""How long a rank waits before it logs, sends a note, or gives up.

Every wait of the project that can be long asks `Waited` when its next line is due: no wait is silent for over 15 s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcckpt.core.system import CLOCK, Clock

_log = logging.getLogger("hpcckpt")
SPINS = 200
"""How often a wait only yields before it sleeps: most messages of a restore come within that."""
POLL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a rank waits before it does what.

    Attributes
    ----------
    peer_timeout_s : float
        Until it gives up. A checkpointer sets it; other groups of ranks wait forever.
    first_note_s, every_s : float
        Until it logs, and between two such lines: less than 15 s, for a line may be late by a moment.
    status_s, status_every_s : float
        Until it sends root a note, and between two notes.
    interrupt_s : float
        How long it still waits after an interrupt (Ctrl-C), so that ranks that are there complete the call.
    """

    peer_timeout_s: float = math.inf
    first_note_s: float = 10.0
    every_s: float = 14.0
    status_s: float = 1.0
    status_every_s: float = 5.0
    interrupt_s: float = 2.0

    def within(self, peer_timeout_s: float) -> Patience:
        """Return the same with another time-out, and at least one line before it. Pure."""
        half = peer_timeout_s / 2
        return replace(
            self,
            peer_timeout_s=peer_timeout_s,
            first_note_s=min(self.first_note_s, half),
            every_s=min(self.every_s, half),
            status_s=min(self.status_s, half / 4),
            status_every_s=min(self.status_every_s, half / 2),
        )


SILENT = Patience(first_note_s=math.inf)
"""Of ranks that wait for a person, or for what takes as long as it takes."""


class Waited:
    """How long a wait has lasted, and what is due."""

    def __init__(self, patience: Patience, clock: Clock = CLOCK) -> None:
        self._patience = patience
        self._now, self._sleep = clock.monotonic, clock.sleep
        self._began = self._first = first = clock.monotonic()
        self._status_at = first + patience.status_s
        self._log_at = first + patience.first_note_s
        self._interrupted_at: float | None = None
        self._n = 0
        self._n_news = -1

    @property
    def total(self) -> float:
        """How long it has lasted."""
        return self._now() - self._first

    @property
    def seconds(self) -> float:
        """How long this rank has waited without work to do, and without news."""
        return self._now() - self._began

    def has_news(self, n_news: int) -> bool:
        """Return True if something has happened since the last time."""
        before, self._n_news = self._n_news, n_news
        return before not in {-1, n_news}

    def begin_again(self) -> None:
        """Count from now."""
        self._began = self._now()

    def idle(self) -> None:
        """Yield at first, later sleep for a moment."""
        self._n += 1
        self._sleep(0 if self._n < SPINS else POLL_S)

    def is_status_due(self) -> bool:
        """Return True if a note to root is due, and set the time of the next one."""
        if self._now() < self._status_at:
            return False
        self._status_at = self._now() + self._patience.status_every_s
        return True

    def is_log_due(self) -> bool:
        """Return True if a line is due, and set the time of the next one."""
        if self._now() < self._log_at:
            return False
        self._log_at = self._now() + self._patience.every_s
        return True

    def is_interrupted_for_long(self) -> bool:
        """Return True if the time is over that a wait lasts after an interrupt."""
        if self._interrupted_at is None:
            self._interrupted_at = self._now()
        return self._now() - self._interrupted_at > self._patience.interrupt_s


def wait_and_log(has_ended: Callable[[], bool], text: str, clock: Clock = CLOCK) -> None:
    """Call `has_ended`, which waits for a moment, until it returns True; log now and then that `text` is waited for."""
    waited = Waited(Patience(), clock)
    while not has_ended():
        if waited.is_log_due():
            _log.warning("hpcckpt: waiting for %.0f s: %s", waited.total, text)
