"""How ranks agree on a batch boundary, without waiting for each other at any other one.

Ranks pass boundaries at their own pace: nearly together if each batch ends with a collective call, or far apart.  A
rank that has passed a boundary cannot go back to it, and one that waits at it holds up the batch of all others, if that
is collective.  So no rank may simply stop.

1  (any)   A rank with a request proposes its next boundary, and continues.  In a small group it sends the proposal to
           all ranks, else to root only, which proposes to all.
2  (each)  A rank that has received a proposal waits at its first boundary at or after the proposed one, for a limited
           time: if nothing follows, root may be in a batch that needs this rank, so it continues and waits at a later
           boundary, twice as many steps ahead each time.
3  (root)  When root waits, it opens a numbered round at that boundary.
4  (each)  A rank that waits in a round reports its boundary and its request to root, and does not continue without a
           decision of root.
5  (root)  When all ranks wait at the same step, that is the step.  At different steps root proposes the latest.
           If some have not reported in time, they may need the waiting ranks in a batch: root cancels the round and
           proposes a later boundary, as in 2.
6  (root)  Root sends the decision to all ranks, which all wait at the agreed step.

A rank waits without a limit only while root waits too, and root always ends the round: so nothing can hang.

Between boundaries no messages are sent, and a boundary without requests costs one check for messages.  Root's decision
depends only on reports of ranks that wait: neither a late message nor a slow rank can make two ranks see
different steps, they only cost time.  A rank without further batches counts as waiting wherever the others do
(`Agreement.finished`).  Once a rank has left (`Agreement.close`) nothing can be agreed any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.deadlines import Waited

What = Literal["none", "save", "stop", "end"]
_RANKING = ("none", "save", "stop")
POLL_S = 0.0005
FAN_OUT = 256
"""In groups of more ranks a proposal goes to root only, and root proposes a boundary one batch later."""
MAX_UNEVEN = 16
"""After this many rounds in which ranks waited at different steps, they have no boundary in common."""

_log = logging.getLogger("hpcckpt")


class Boundary(NamedTuple):
    """A batch boundary: the step that ended there, and the number of boundaries since then (in validation)."""

    step: int
    part: int = 0

    def next(self) -> Boundary:
        """Return the earliest boundary that can follow."""
        return Boundary(self.step, self.part + 1)


class BoundaryRequest(NamedTuple):
    """What a rank requests of all ranks, and why."""

    what: What
    reason: str


class Agreed(NamedTuple):
    """What all ranks do now, at which step, and why."""

    what: What
    step: int
    reason: str


class _Proposal(NamedTuple):
    boundary: Boundary


class _Round(NamedTuple):
    number: int
    boundary: Boundary


class _Report(NamedTuple):
    number: int
    at: Boundary
    request: BoundaryRequest | None


class _Done(NamedTuple):
    at: Boundary
    is_ready: bool


class _Mailbox:
    """Messages between root and other ranks, and to all; counted, so that none is left unreceived at the end."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._n_to_root = self._n_to_all = self._n_received = 0

    def to_root(self, message: Any) -> None:
        """Send to root. Independent."""
        self._n_to_root += 1
        self.comm.send(0, message)

    def to_all(self, message: Any) -> None:
        """Send to all others. Independent."""
        self._n_to_all += 1
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.comm.send(rank, message)

    def next(self) -> tuple[int, Any] | None:
        """Return the rank that sent the next message, and the message; None if there is none. Independent."""
        # A call that returns nothing lets the transport make progress: the second call may find a message.
        message = self.comm.receive() or self.comm.receive()
        if message is None:
            return None
        self._n_received += 1
        return message.source, message.value

    def close(self) -> None:
        """Receive what is still in transit, and free the communicator. Collective."""
        n_to_root, n_to_all = self.comm.allreduce((self._n_to_root, self._n_to_all), _sums)
        expected = n_to_all - self._n_to_all + (n_to_root if self.comm.is_root else 0)
        while self._n_received < expected:
            if self.next() is None:
                time.sleep(POLL_S)
        self.comm.free()


class Agreement:
    """Lets a group of ranks agree on a boundary and an action, repeatedly.

    Parameters
    ----------
    comm : Communicator
        A duplicate that nothing else uses.
    patience_s : float
        Seconds that root waits for all ranks, in addition to the time of a batch, before they continue.
    peer_timeout_s : float
        Seconds that a waiting rank waits for root before it aborts the job.
    """

    def __init__(self, comm: Communicator, patience_s: float = 1.0, peer_timeout_s: float = 1800.0) -> None:
        self.comm = comm
        self._mailbox = _Mailbox(comm)
        self._patience_s = patience_s
        self._timeout_s = peer_timeout_s
        self._at = self._before = Boundary(-1)
        self._left_at: float | None = None
        self._batch_s = 0.0
        self._round = 0
        self._round_at: Boundary | None = None
        self._has_proposed = False
        self._proposed: Boundary | None = None
        self._request: BoundaryRequest | None = None
        self._last = Boundary(-1)
        self._decision: Agreed | None = None
        self._reports: dict[int, _Report] = {}
        self._done: dict[int, _Done] = {}
        self._is_known_to_all = False
        self._n_ahead = 1
        self._n_uneven = 0
        self.is_over = False
        self._has_ended = False

    # -- what ranks call -----------------------------------------------------------------------------

    def boundary(self, step: int, request: BoundaryRequest | None, meanwhile: Callable[[], None]) -> Agreed | None:
        """Pass a boundary, or agree there on what to do. Independent, unless a round is open here.

        Parameters
        ----------
        step : int
            The step that has just ended; the same as before at boundaries at which no step ended.
        request : BoundaryRequest, optional
            The request of this rank.
        meanwhile : callable
            Called repeatedly while this rank waits.
        """
        began = time.monotonic()
        self._batch_s = 0.0 if self._left_at is None else began - self._left_at
        self._before, self._at = self._at, self._at.next() if step == self._at.step else Boundary(step)
        try:
            if self.comm.size == 1:
                return None if request is None else Agreed(request.what, step, request.reason)
            return self._pass(request, meanwhile)
        finally:
            self._left_at = time.monotonic()

    def go_back(self) -> None:
        """Accept proposals of steps that were passed before: the ranks resume from an older step. Independent."""
        self._last = Boundary(-1)

    def finished(self, meanwhile: Callable[[], None], *, is_ready: bool = True) -> Agreed:
        """Wait until the other ranks agree on something, or have no further batches either. Collective.

        Parameters
        ----------
        meanwhile : callable
            Called repeatedly.
        is_ready : bool
            Whether this rank can still do what is agreed; if not, nothing can be agreed any more.
        """
        if self.comm.size == 1 or self._has_ended:
            return Agreed("end", self._at.step, "")
        done = _Done(self._at, is_ready)
        if not self.comm.is_root:
            self._mailbox.to_root(done)
        self._done[self.comm.rank] = done
        began, number, waited = time.monotonic(), self._round, Waited(self.comm.patience)
        while True:
            self._log_wait(waited)
            self._receive()
            if self.comm.is_root:
                if number != self._round:
                    began, number = time.monotonic(), self._round
                self._root_has_finished(time.monotonic() - began)
            decision = self._take_decision()
            if decision is not None and decision.what != "none":
                self._has_ended = decision.what == "end"
                return decision
            meanwhile()
            time.sleep(POLL_S)

    def close(self, meanwhile: Callable[[], None]) -> None:
        """Wait until all ranks leave, and free the communicator. Collective."""
        while self.finished(meanwhile, is_ready=False).what != "end":
            pass
        self._mailbox.close()

    def release(self) -> None:
        """Free the communicator, after all ranks have agreed on the end. Collective."""
        self._mailbox.close()

    # -- at a boundary -------------------------------------------------------------------------------

    def _pass(self, request: BoundaryRequest | None, meanwhile: Callable[[], None]) -> Agreed | None:
        self._receive()
        self._take_decision()  # no decision is made without this rank, except that there will be none
        if self.is_over:
            return None
        self._request = _stronger(self._request, request)
        if self._request is not None and not self._has_proposed and self._round_at is None and self._proposed is None:
            self._has_proposed = True
            self._propose(self._at.next())
        if self.comm.is_root and self._proposed is not None and self._at >= self._proposed:
            if self._is_known_to_all and self._before < self._proposed:
                self._open_round(self._proposed)
            else:  # root is late, or other ranks have not received the proposal
                self._propose(self._at.next())
        return self._wait(meanwhile) if self._must_wait() else None

    def _propose(self, boundary: Boundary) -> None:
        """Propose that all ranks wait at a boundary (1). Independent."""
        self._round_at = None  # root cancels its open round
        if self.comm.is_root or self.comm.size <= FAN_OUT:
            self._mailbox.to_all(_Proposal(boundary))
            self._proposed, self._is_known_to_all = boundary, True
        else:
            self._mailbox.to_root(_Proposal(boundary))

    def _must_wait(self) -> bool:
        boundary = self._proposed if self._round_at is None else self._round_at
        return boundary is not None and self._at >= boundary

    def _wait(self, meanwhile: Callable[[], None]) -> Agreed | None:
        """Wait for root's decision, or until a later boundary is proposed (2, 4). Collective."""
        began, before, reported = time.monotonic(), None, -1
        total = Waited(self.comm.patience)
        while self._must_wait():
            self._log_wait(total)
            if before != (self._round, self._round_at, self._proposed):
                began, before = time.monotonic(), (self._round, self._round_at, self._proposed)
            waited = time.monotonic() - began
            if self._round_at is None:
                if waited > self._patience():
                    self._proposed = self._later_boundary(self._at.step)
                    return None
            elif reported != self._round:
                reported = self._round
                self._report()
            if self.comm.is_root:
                self._count_reports(waited)
            elif waited > self._timeout_s:
                self._give_up()
            decision = self._take_decision()
            if decision is not None:
                return None if decision.what in {"none", "end"} else decision
            meanwhile()
            time.sleep(POLL_S)
            self._receive()
        return None

    def _later_boundary(self, step: int) -> Boundary:
        """Return a later boundary, twice as many steps ahead as the last time. Independent."""
        boundary, self._n_ahead = Boundary(step + self._n_ahead), 2 * self._n_ahead
        return boundary

    def _report(self) -> None:
        report = _Report(self._round, self._at, self._request)
        if self.comm.is_root:
            self._reports[0] = report
        else:
            self._mailbox.to_root(report)

    def _patience(self) -> float:
        return min((self._patience_s + self._batch_s) * self._n_ahead, 10.0 * self._patience_s)

    def _log_wait(self, waited: Waited) -> None:
        """Log at intervals that this rank waits. Independent."""
        if waited.is_log_due():
            missing = sorted({*range(self.comm.size)} - {*self._done, *self._reports}) if self.comm.is_root else [0]
            _log.warning(
                "hpcckpt: [rank %d] waits for %.0f s after step %d, to agree with the other ranks: waiting for rank %s",
                self.comm.rank, waited.total, self._at.step, ", ".join(map(str, missing[:16])) or "0",
            )  # fmt: skip

    def _give_up(self) -> None:
        """Abort the job: root does not answer, and may have decided. Independent."""
        _log.critical(
            "hpcckpt: [rank %d] waits after step %d to agree on a save, without an answer from rank 0 for %.0f s; "
            "the job is aborted, the steps on storage are complete",
            self.comm.rank, self._at.step, self._timeout_s,
        )  # fmt: skip
        self.comm.abort(1)

    # -- what root decides -----------------------------------------------------------------------------

    def _open_round(self, boundary: Boundary) -> None:
        """Open a round at a boundary that root has reached (3). Root only."""
        self._round += 1
        self._reports.clear()
        self._round_at, self._proposed = boundary, None
        self._mailbox.to_all(_Round(self._round, boundary))

    def _count_reports(self, waited_s: float) -> None:
        """Decide by the reports, or open another round (5). Root only."""
        if any(not done.is_ready for done in self._done.values()):
            self.is_over = True
            self._announce(Agreed("none", self._at.step, "a rank has left"))
            return
        waiting = [report for rank, report in self._reports.items() if rank not in self._done]
        latest = max(report.at.step for report in waiting) if waiting else self._at.step
        if len(waiting) + len(self._done) < self.comm.size:
            if waited_s > self._patience():
                self._propose(self._later_boundary(max(latest, self._at.step)))
        elif any(report.at.step != latest for report in waiting) and self._n_uneven < MAX_UNEVEN:
            self._n_uneven += 1
            if self._at.step < latest and 0 not in self._done:
                self._propose(Boundary(latest))
            else:
                self._open_round(Boundary(latest))
        else:
            self._agree(latest)

    def _agree(self, step: int) -> None:
        requests = [report.request for _, report in sorted(self._reports.items())]
        request: BoundaryRequest | None = None
        for other in requests:
            request = _stronger(request, other)
        self._announce(Agreed("none", step, "") if request is None else Agreed(request.what, step, request.reason))

    def _root_has_finished(self, waited_s: float) -> None:
        if len(self._done) == self.comm.size:
            self._announce(Agreed("end", self._at.step, ""))
        elif self._round_at is not None:
            self._count_reports(waited_s)
        elif self._proposed is not None and not self.is_over:
            self._open_round(self._proposed)

    def _announce(self, decision: Agreed) -> None:
        """Send the decision to all ranks (6). Root only."""
        self._mailbox.to_all(decision)
        self._decision = decision

    # -- messages --------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Receive messages, up to a decision of root. Independent."""
        while self._decision is None and (found := self._mailbox.next()) is not None:
            source, message = found
            match message:
                case _Proposal(boundary) if source == 0:
                    self._round_at, self._proposed = None, boundary
                case _Proposal(boundary) if self._round_at is None and boundary > self._last:
                    self._proposed = boundary if self._proposed is None else max(boundary, self._proposed)
                    self._is_known_to_all = self.comm.size <= FAN_OUT
                case _Round(number, boundary):
                    self._round, self._round_at, self._proposed = number, boundary, None
                case _Report(number) if number == self._round:
                    self._reports[source] = message
                case _Done():
                    self._done[source] = message
                case Agreed():
                    self._decision = message
        if self._decision is not None and self._decision.reason == "a rank has left" and self._decision.what == "none":
            self.is_over = True

    def _take_decision(self) -> Agreed | None:
        """Return root's decision once, and reset for the next agreement. Independent."""
        decision = self._decision
        if decision is not None:
            self._decision = self._round_at = self._proposed = self._request = None
            self._has_proposed = self._is_known_to_all = False
            self._last = max(self._last, self._at, Boundary(decision.step))
            self._reports.clear()
            self._n_ahead, self._n_uneven = 1, 0
            self.is_over = self.is_over or decision.what == "stop"
        return decision


def _sums(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _stronger(one: BoundaryRequest | None, other: BoundaryRequest | None) -> BoundaryRequest | None:
    """Return the request of the higher rank in `_RANKING`; the first of two equal ones."""
    if one is None or other is None:
        return one or other
    return other if _RANKING.index(other.what) > _RANKING.index(one.what) else one
