"""Faults on purpose: kill, stop or fail ranks at a named phase of saving or restoring.

Tests of a backend or of a training program arm a fault, run into it, and look at what is left::

    with faults.armed(Fault("4-durable", rank=0)):                    # SIGKILL of this rank, when it is rank 0
        ckpt.save(2, state)

    with faults.armed(Fault("2-write", "raise", rank=1, error=OSError(errno.ENOSPC, "full"))):
        ckpt.save(2, state)                                            # NoSpaceError on every rank

The phases are those of :data:`hpcckpt.core.failpoints.PHASES`.  Phases that only root reaches (1, 4, 5, 6 and 8)
spring on rank 0; `victims` makes them hit other ranks, which takes their process ids (:func:`process_ids`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core import failpoints

Action = Literal["kill", "stop", "raise"]
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class InjectedError(RuntimeError):
    """The failure that a fault with the action ``raise`` causes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, once.

    Parameters
    ----------
    phase : str
        Name of the phase at which it springs.
    action : {"kill", "stop", "raise"}
        SIGKILL, SIGSTOP, or an exception raised in the rank that springs it.
    rank : int
        The rank that must reach the phase.
    occurrence : int
        At which of its arrivals, counted from 1 on since the fault was armed.
    victims : sequence of int, optional
        Ranks that get the signal, on this host; by default the one that reached the phase.
    error : BaseException, optional
        What ``raise`` raises; an `InjectedError` by default.

    Raises
    ------
    ValueError
        If there is no such phase.
    """

    phase: str
    action: Action = "kill"
    rank: int = 0
    occurrence: int = 1
    victims: Sequence[int] | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        if self.phase not in failpoints.PHASES:
            raise ValueError(f"no phase {self.phase!r}; there are {', '.join(failpoints.PHASES)}")


@dataclass(slots=True)
class _Trap:
    """Faults that wait for their ranks to arrive; threads as ranks share one."""

    faults: Sequence[Fault]
    pids: Sequence[int]
    arrivals: dict[int, int] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, phase: str, rank: int) -> None:
        for number, fault in enumerate(self.faults):
            if (fault.phase, fault.rank) == (phase, rank) and self._count_arrival(number) == fault.occurrence:
                self._spring(fault)

    def _count_arrival(self, number: int) -> int:
        with self.guard:
            self.arrivals[number] = self.arrivals.get(number, 0) + 1
            return self.arrivals[number]

    def _spring(self, fault: Fault) -> None:
        if fault.action == "raise":
            raise fault.error or InjectedError(f"injected at phase {fault.phase} of rank {fault.rank}")
        victims = [fault.rank] if fault.victims is None else fault.victims
        own = os.getpid()
        for pid in sorted((self._pid(fault, victim) for victim in victims), key=lambda pid: pid == own):
            os.kill(pid, _SIGNALS[fault.action])  # this process last

    def _pid(self, fault: Fault, victim: int) -> int:
        if victim == fault.rank:
            return os.getpid()
        return self.pids[victim]


def process_ids(comm: Communicator) -> list[int]:
    """Return the process id of every rank, for faults that hit other ranks than the one they spring on. Collective."""
    return comm.allgather(os.getpid())


def arm(*faults: Fault, pids: Sequence[int] = ()) -> None:
    """Let faults wait in this process, in place of any that waited before. Independent.

    Parameters
    ----------
    *faults : Fault
        What is to go wrong.
    pids : sequence of int
        Process ids by rank; needed where a fault's victims are other ranks.
    """
    failpoints.install_hook(_Trap(faults, tuple(pids)))


def disarm() -> None:
    """Take all faults of this process away. Independent."""
    failpoints.install_hook(None)


@contextmanager
def armed(*faults: Fault, pids: Sequence[int] = ()) -> Iterator[None]:
    """Arm faults for the length of a ``with`` block. Independent."""
    arm(*faults, pids=pids)
    try:
        yield
    finally:
        disarm()
