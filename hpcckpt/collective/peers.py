"""What a rank knows of the other ranks: the last call of each, and what it does there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpcckpt.collective.deadlines import Patience
from hpcckpt.collective.notes import Call, Ended, StatusSummary
from hpcckpt.core.system import Clock

N_NAMED = 8


class _Calls(Protocol):
    current: Call | None

    @property
    def last(self) -> Call | None: ...


class _Ranks(Protocol):
    rank: int
    size: int
    patience: Patience
    clock: Clock

    @property
    def calls(self) -> _Calls: ...


class Peers:
    """The other ranks, as far as known here.

    Parameters
    ----------
    comm : Communicator
        The group of ranks.

    Attributes
    ----------
    ended : dict of int to Ended
        Ranks that call nothing any more.
    n_news : int
        Rises when something new is known.
    """

    def __init__(self, comm: _Ranks) -> None:
        self._comm = comm
        self.ended: dict[int, Ended] = {}
        self.n_news = 0
        self._worked_at: dict[int, float] = {}
        self._has_root_seen_work = False
        self._seen: dict[int, Call] = {}
        self._doing: dict[int, str] = {}
        self._known: dict[int, str] = {}
        self._shown: dict[int, str] = {}
        self._shown_until = 0.0

    def saw(self, rank: int, call: Call) -> None:
        """Take in that a rank has come to a call. Independent."""
        seen = self._seen.get(rank)
        if seen is None or call.number > seen.number:
            self._seen[rank] = call
            self._doing.pop(rank, None)

    def does(self, rank: int, doing: str) -> None:
        """Take in what a rank, or this one, does in its call. Independent."""
        self.n_news += self._doing.get(rank, "") != doing
        self._doing[rank] = doing
        if doing:
            self._worked_at[rank] = self._comm.clock.monotonic()
        else:
            self._worked_at.pop(rank, None)

    def begins_call(self) -> None:
        """Take in that this rank has come to another call. Independent."""
        self._doing.pop(self._comm.rank, None)

    def take_summary(self, note: StatusSummary) -> None:
        """Take in what root knows. Independent."""
        self.n_news += self._known != note.texts
        self._known = note.texts
        self._has_root_seen_work = note.is_work_seen

    def summary(self) -> StatusSummary:
        """Return where root is, and ranks that may hold up the others; made once in a while. Root only."""
        if self._comm.clock.monotonic() > self._shown_until:
            newest = max((call.number for call in self._seen.values()), default=0)
            others = [rank for rank in range(1, self._comm.size) if self._may_hold_up(rank, newest)]
            self._shown = {rank: self.where(rank) for rank in (0, *others[:N_NAMED])}
            self._shown_until = self._comm.clock.monotonic() + self._comm.patience.status_s
        return StatusSummary(self._shown, self._is_work_seen((0, *self._worked_at)))

    def _may_hold_up(self, rank: int, number: int) -> bool:
        seen = self._seen.get(rank)
        return seen is None or seen.number < number or bool(self._doing.get(rank))

    def others_work(self) -> bool:
        """Return whether another rank has reported lately that it works; not on root: once for each answer."""
        if self._comm.rank == 0:
            return self._is_work_seen([rank for rank in self._worked_at if rank != 0])
        seen, self._has_root_seen_work = self._has_root_seen_work, False
        return seen

    def _is_work_seen(self, ranks: Sequence[int]) -> bool:
        """Return whether one of these ranks has reported lately that it works, and has not ended. Root only."""
        since = self._comm.clock.monotonic() - 2 * self._comm.patience.status_every_s
        return any(self._worked_at.get(rank, since) > since and rank not in self.ended for rank in ranks)

    def is_in(self, rank: int, call: Call) -> bool:
        """Return True if a rank is known to be in a call, or past it, and has not ended. Independent."""
        seen = self._seen.get(rank)
        return rank == self._comm.rank or (
            seen is not None and seen.number >= call.number and rank not in self.ended
        )  # fmt: skip

    def where(self, rank: int) -> str:
        """Return in words which call a rank is in, as far as known here. Independent."""
        calls, doing = self._comm.calls, self._doing.get(rank, "")
        if rank == self._comm.rank:
            return _inside(calls.current, doing) if calls.current else _outside(calls.last)
        if rank in self.ended:
            return self.ended[rank].text
        seen = self._seen.get(rank)
        if seen is not None and calls.last is not None and seen.number >= calls.last.number:
            known = self._known.get(rank, "")
            return known if known.startswith("is in ") else _inside(seen, doing)
        return self._known.get(rank) or _outside(seen)

    def describe(self, missing: Sequence[int]) -> str:
        """Return in words where the ranks are that hold this one up. Independent."""
        busy = [rank for rank, doing in self._doing.items() if doing and rank not in missing]
        known = [rank for rank in self._known if rank not in missing and rank != self._comm.rank]
        ranks = dict.fromkeys([*missing, *busy, *known])
        return "; ".join(f"rank {rank} {self.where(rank)}" for rank in [*ranks][:N_NAMED])


def _inside(call: Call, doing: str) -> str:
    return f"is in {call.text}{f' ({doing})' if doing else ''}"


def _outside(last: Call | None) -> str:
    return f"has not entered a call of hpcckpt{f' since {last.text}' if last else ''}"
