"""How ranks agree on a batch boundary, without waiting for each other at any other one.

Ranks pass boundaries at their own pace: nearly together if each batch ends with a collective call, or far apart.  A
rank that has passed a boundary cannot go back to it, and one that waits at it holds up the batch of all others, if that
is collective.  So nobody may just stop.

1  (any)   A rank that wants something calls, and passes on: the *line* is at its next boundary.  In a small group it
           tells everybody, else root alone, which calls again.
2  (each)  Who hears of it in time stands at its first boundary at the line or behind it, for a while: if nothing
           follows, root is perhaps in a batch that needs this rank, and so it goes on to a line further on, twice as
           far each time.
3  (root)  When root stands, it draws the line, with a number.
4  (each)  Who stands at a drawn line reports to root where it stands and what it wants, and does not move any more
           without a word of root.
5  (root)  When all stand, at the same step: that is the step.  At different ones: a call to the farthest of them.
           Not all are there after a while: those that are may be what the others wait for, within a batch; so a call to
           a line further on, as in 2, and the line that was drawn is gone.
6  (root)  The step is told to all, and all are there.

Nobody stands for long but where root stands, answers, and lets them go if it must: so nothing can hang.

Between boundaries nothing is said, and while nobody wants anything a boundary costs one look for messages.  What root
decides rests on reports of ranks that stand still: neither a late message nor a slow rank can make two ranks see
different steps, they only cost time.  A rank without further batches counts as standing wherever the others do
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
"""In groups of more ranks a call goes to root alone, and the line is a batch further on."""
MAX_UNEVEN = 16
"""After so many lines at which ranks stood at different steps, they have no boundary in common."""

_log = logging.getLogger("hpcckpt")


class Position(NamedTuple):
    """A boundary: the step that ended there, and how many boundaries there were since (in validation)."""

    step: int
    part: int = 0

    def next(self) -> Position:
        """Return the least position that another boundary can have."""
        return Position(self.step, self.part + 1)


class Wish(NamedTuple):
    """What a rank wants all to do, and why."""

    what: What
    reason: str


class Agreed(NamedTuple):
    """What all do now, at which step, and why."""

    what: What
    step: int
    reason: str


class _Call(NamedTuple):
    line: Position


class _Line(NamedTuple):
    number: int
    line: Position


class _Report(NamedTuple):
    number: int
    at: Position
    wish: Wish | None


class _Done(NamedTuple):
    at: Position
    is_ready: bool


class _Post:
    """Messages between root and the others, and calls to all, each counted: none may be left over at the end."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._n_to_root = self._n_to_all = self._n_received = 0

    def to_root(self, letter: Any) -> None:
        """Send to root. Independent."""
        self._n_to_root += 1
        self.comm.send(0, letter)

    def to_all(self, letter: Any) -> None:
        """Send to all others. Independent."""
        self._n_to_all += 1
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.comm.send(rank, letter)

    def next(self) -> tuple[int, Any] | None:
        """Return the next letter and who sent it; ``None`` if there is none. Independent."""
        message = (
            self.comm.receive() or self.comm.receive()
        )  # a look that finds nothing fetches what the next one finds
        if message is None:
            return None
        self._n_received += 1
        return message.source, message.value

    def close(self) -> None:
        """Take in what is still on its way, and give up the communicator. Collective."""
        sent = self.comm.allgather((self._n_to_root, self._n_to_all))
        expected = sum(n for rank, (_, n) in enumerate(sent) if rank != self.comm.rank)
        expected += sum(n for n, _ in sent) if self.comm.is_root else 0
        while self._n_received < expected:
            if self.next() is None:
                time.sleep(POLL_S)
        self.comm.free()


class Agreement:
    """The agreements of one group of ranks, one after the other.

    Parameters
    ----------
    comm : Communicator
        A duplicate of its own.
    patience_s : float
        How long root waits for all to stand, beside the time of a batch, before it lets them go on.
    peer_timeout_s : float
        How long a rank that stands puts up with root's silence, before it ends the job.
    """

    def __init__(self, comm: Communicator, patience_s: float = 1.0, peer_timeout_s: float = 1800.0) -> None:
        self.comm = comm
        self._post = _Post(comm)
        self._patience_s = patience_s
        self._timeout_s = peer_timeout_s
        self._at = self._before = Position(-1)
        self._left_at: float | None = None
        self._batch_s = 0.0
        self._number = 0
        self._line: Position | None = None
        self._has_called = False
        self._hint: Position | None = None
        self._wish: Wish | None = None
        self._last = Position(-1)
        self._word: Agreed | None = None
        self._reports: dict[int, _Report] = {}
        self._done: dict[int, _Done] = {}
        self._is_known = False
        self._reach = 1
        self._n_uneven = 0
        self.is_over = False
        self._has_ended = False

    # -- what ranks call -----------------------------------------------------------------------------

    def boundary(self, step: int, wish: Wish | None, meanwhile: Callable[[], None]) -> Agreed | None:
        """Pass a boundary, or agree at it on what to do now. Independent, unless a line is drawn here.

        Parameters
        ----------
        step : int
            The step that has just ended; the same again at boundaries in which no step ended.
        wish : Wish, optional
            What this rank wants.
        meanwhile : callable
            Called again and again while it stands.
        """
        began = time.monotonic()
        self._batch_s = 0.0 if self._left_at is None else began - self._left_at
        self._before, self._at = self._at, self._at.next() if step == self._at.step else Position(step)
        try:
            if self.comm.size == 1:
                return None if wish is None else Agreed(wish.what, step, wish.reason)
            return self._pass(wish, meanwhile)
        finally:
            self._left_at = time.monotonic()

    def go_back(self) -> None:
        """Take calls for steps that were passed before: the ranks have gone back to an older one. Independent."""
        self._last = Position(-1)

    def finished(self, meanwhile: Callable[[], None], *, is_ready: bool = True) -> Agreed:
        """Wait until the others agree on something, or have no further batches either. Collective.

        Parameters
        ----------
        meanwhile : callable
            Called again and again.
        is_ready : bool
            Whether this rank still does what is agreed; else nothing can be agreed any more.
        """
        if self.comm.size == 1 or self._has_ended:
            return Agreed("end", self._at.step, "")
        done = _Done(self._at, is_ready)
        if not self.comm.is_root:
            self._post.to_root(done)
        self._done[self.comm.rank] = done
        began, number, waited = time.monotonic(), self._number, Waited(self.comm.patience)
        while True:
            self._log_wait(waited)
            self._take_in()
            if self.comm.is_root:
                if number != self._number:
                    began, number = time.monotonic(), self._number
                self._root_has_finished(time.monotonic() - began)
            word = self._take_word()
            if word is not None and word.what != "none":
                self._has_ended = word.what == "end"
                return word
            meanwhile()
            time.sleep(POLL_S)

    def close(self, meanwhile: Callable[[], None]) -> None:
        """Leave, when all do, and give up the communicator. Collective."""
        while self.finished(meanwhile, is_ready=False).what != "end":
            pass
        self._post.close()

    def release(self) -> None:
        """Give up the communicator, where all have agreed on the end. Collective."""
        self._post.close()

    # -- at a boundary -------------------------------------------------------------------------------

    def _pass(self, wish: Wish | None, meanwhile: Callable[[], None]) -> Agreed | None:
        self._take_in()
        self._take_word()  # nothing is agreed without this rank: it can only be that nothing will be
        if self.is_over:
            return None
        self._wish = _stronger(self._wish, wish)
        if self._wish is not None and not self._has_called and self._line is None and self._hint is None:
            self._has_called = True
            self._call(self._at.next())
        if self.comm.is_root and self._hint is not None and self._at >= self._hint:
            if self._is_known and self._before < self._hint:
                self._draw(self._hint)
            else:  # it is late, or others have not heard of it
                self._call(self._at.next())
        return self._stand(meanwhile) if self._must_stand() else None

    def _call(self, line: Position) -> None:
        """Call out that all should stand at a line (1). Independent."""
        self._line = None  # root takes back the one that it drew
        if self.comm.is_root or self.comm.size <= FAN_OUT:
            self._post.to_all(_Call(line))
            self._hint, self._is_known = line, True
        else:
            self._post.to_root(_Call(line))

    def _must_stand(self) -> bool:
        line = self._hint if self._line is None else self._line
        return line is not None and self._at >= line

    def _stand(self, meanwhile: Callable[[], None]) -> Agreed | None:
        """Stand still until root's word comes, or a line further on (2, 4). Collective."""
        began, before, reported = time.monotonic(), None, -1
        total = Waited(self.comm.patience)
        while self._must_stand():
            self._log_wait(total)
            if before != (self._number, self._line, self._hint):
                began, before = time.monotonic(), (self._number, self._line, self._hint)
            waited = time.monotonic() - began
            if self._line is None:
                if waited > self._patience():
                    self._hint = self._further(self._at.step)
                    return None
            elif reported != self._number:
                reported = self._number
                self._report()
            if self.comm.is_root:
                self._conclude(waited)
            elif waited > self._timeout_s:
                self._give_up()
            word = self._take_word()
            if word is not None:
                return None if word.what in {"none", "end"} else word
            meanwhile()
            time.sleep(POLL_S)
            self._take_in()
        return None

    def _further(self, step: int) -> Position:
        """Return a line further on, twice as far as the last time. Independent."""
        line, self._reach = Position(step + self._reach), 2 * self._reach
        return line

    def _report(self) -> None:
        report = _Report(self._number, self._at, self._wish)
        if self.comm.is_root:
            self._reports[0] = report
        else:
            self._post.to_root(report)

    def _patience(self) -> float:
        return min((self._patience_s + self._batch_s) * self._reach, 10.0 * self._patience_s)

    def _log_wait(self, waited: Waited) -> None:
        """Log now and then that this rank waits. Independent."""
        if waited.is_log_due():
            missing = sorted({*range(self.comm.size)} - {*self._done, *self._reports}) if self.comm.is_root else [0]
            _log.warning(
                "hpcckpt: [rank %d] waits for %.0f s after step %d, to agree with the other ranks: waiting for rank %s",
                self.comm.rank, waited.total, self._at.step, ", ".join(map(str, missing[:16])) or "0",
            )  # fmt: skip

    def _give_up(self) -> None:
        """End the job: root is silent, and may have decided. Independent."""
        _log.critical(
            "hpcckpt: [rank %d] stands behind step %d to agree on a save: no word from rank 0 for %.0f s; "
            "the job is ended, the steps on storage are whole",
            self.comm.rank, self._at.step, self._timeout_s,
        )  # fmt: skip
        self.comm.abort(1)

    # -- what root decides -----------------------------------------------------------------------------

    def _draw(self, line: Position) -> None:
        """Draw a line, at which or behind which root stands (3). Root only."""
        self._number += 1
        self._reports.clear()
        self._line, self._hint = line, None
        self._post.to_all(_Line(self._number, line))

    def _conclude(self, waited_s: float) -> None:
        """See who stands, and decide (5). Root only."""
        if any(not done.is_ready for done in self._done.values()):
            self.is_over = True
            self._tell(Agreed("none", self._at.step, "a rank has left"))
            return
        standing = [report for rank, report in self._reports.items() if rank not in self._done]
        farthest = max(report.at.step for report in standing) if standing else self._at.step
        if len(standing) + len(self._done) < self.comm.size:
            if waited_s > self._patience():
                self._call(self._further(max(farthest, self._at.step)))
        elif any(report.at.step != farthest for report in standing) and self._n_uneven < MAX_UNEVEN:
            self._n_uneven += 1
            if self._at.step < farthest and 0 not in self._done:
                self._call(Position(farthest))
            else:
                self._draw(Position(farthest))
        else:
            self._agree(farthest)

    def _agree(self, step: int) -> None:
        wishes = [report.wish for _, report in sorted(self._reports.items())]
        wish: Wish | None = None
        for other in wishes:
            wish = _stronger(wish, other)
        self._tell(Agreed("none", step, "") if wish is None else Agreed(wish.what, step, wish.reason))

    def _root_has_finished(self, waited_s: float) -> None:
        if len(self._done) == self.comm.size:
            self._tell(Agreed("end", self._at.step, ""))
        elif self._line is not None:
            self._conclude(waited_s)
        elif self._hint is not None and not self.is_over:
            self._draw(self._hint)

    def _tell(self, word: Agreed) -> None:
        """Tell all what is agreed (6). Root only."""
        self._post.to_all(word)
        self._word = word

    # -- letters ---------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Take in what has come, up to a word of root. Independent."""
        while self._word is None and (found := self._post.next()) is not None:
            source, letter = found
            match letter:
                case _Call(line) if source == 0:
                    self._line, self._hint = None, line
                case _Call(line) if self._line is None and line > self._last:
                    self._hint = line if self._hint is None else max(line, self._hint)
                    self._is_known = self.comm.size <= FAN_OUT
                case _Line(number, line):
                    self._number, self._line, self._hint = number, line, None
                case _Report(number) if number == self._number:
                    self._reports[source] = letter
                case _Done():
                    self._done[source] = letter
                case Agreed():
                    self._word = letter
        if self._word is not None and self._word.reason == "a rank has left" and self._word.what == "none":
            self.is_over = True

    def _take_word(self) -> Agreed | None:
        """Return root's word once, and begin anew. Independent."""
        word = self._word
        if word is not None:
            self._word = self._line = self._hint = self._wish = None
            self._has_called = self._is_known = False
            self._last = max(self._last, self._at, Position(word.step))
            self._reports.clear()
            self._reach, self._n_uneven = 1, 0
            self.is_over = self.is_over or word.what == "stop"
        return word


def _stronger(one: Wish | None, other: Wish | None) -> Wish | None:
    """Return the wish that counts for more; the first of two that count alike."""
    if one is None or other is None:
        return one or other
    return other if _RANKING.index(other.what) > _RANKING.index(one.what) else one
