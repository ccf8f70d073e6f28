"""Every wait for other ranks is this loop: it exchanges messages, logs, raises, and gives up."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from hpcckpt.collective import interrupts
from hpcckpt.collective.calls import Carrier
from hpcckpt.collective.deadlines import Waited
from hpcckpt.errors import Failure, MpiError, PeerTimeoutError

_log = logging.getLogger("hpcckpt")


def wait_until(
    comm: Carrier,
    is_done: Callable[[], bool],
    missing: Callable[[], Sequence[int]],
    *,
    doing: Callable[[], str] = lambda: "",
    is_busy: Callable[[], bool] = lambda: False,
    text: str = "",
    give_up: Callable[[], None] | None = None,
    idle: Callable[[], None] | None = None,
) -> None:
    """Wait; exchange messages and raise errors meanwhile. Collective.

    Parameters
    ----------
    comm : Communicator
        The group of ranks.
    is_done : callable
        Returns True when the wait is over.
    missing : callable
        Returns the ranks that this one waits for, as far as known.
    doing : callable
        Returns what this rank does, for the others' logs.
    is_busy : callable
        Returns True if this rank itself still works: then it waits for no other rank.
    text : str
        What it waits for, outside of a call.
    give_up : callable, optional
        Called at the time-out in place of what is done for a call.
    idle : callable, optional
        Called between two checks, in place of a short sleep.

    Raises
    ------
    MpiError
        If MPI is finalized before.
    KeyboardInterrupt
        Some time after Ctrl-C within a call of several ranks; at once elsewhere.
    """
    waited = Waited(comm.patience, comm.clock)
    with comm.lasting():
        while True:
            comm.pump()
            if comm.calls.failure is None and is_done():
                return
            comm.calls.check()
            _check_usable(comm)
            (idle or waited.idle)()
            _tick(comm, waited, missing, doing, is_busy, text, give_up)
            if interrupts.is_noted() and waited.is_interrupted_for_long():
                interrupts.raise_noted()


def _check_usable(comm: Carrier) -> None:
    if not comm.is_usable:
        raise MpiError(
            f"[rank {comm.rank}] MPI is finalized and the checkpointer still used: close the checkpointer on all ranks "
            "before any of them finalizes MPI, ends its program, or calls hvd.shutdown()"
        )


def wait_for_all(comm: Carrier, is_done: Callable[[], bool]) -> None:
    """Wait until all ranks have entered a call that has no messages yet. Collective."""
    waited, timeout_s = Waited(comm.patience, comm.clock), comm.patience.peer_timeout_s
    while not is_done():
        waited.idle()
        if waited.is_log_due():
            _log.warning(
                "hpcckpt: [rank %d] in Checkpointer(...) for %.0f s: at least one of the %d ranks has not made its "
                "checkpointer; MPI does not report which: see whether one of them has failed%s",
                comm.rank, waited.seconds, comm.size, "" if math.isinf(timeout_s) else
                f"; the job is ended after {timeout_s:.0f} s (peer_timeout_s)",
            )  # fmt: skip
        if waited.seconds > timeout_s:
            _log.critical("hpcckpt: [rank %d] not all ranks made a checkpointer; the job is ended", comm.rank)
            comm.abort(1)


def _tick(
    comm: Carrier,
    waited: Waited,
    missing: Callable[[], Sequence[int]],
    doing: Callable[[], str],
    is_busy: Callable[[], bool],
    text: str,
    give_up: Callable[[], None] | None,
) -> None:
    calls, own = comm.calls, doing()
    calls.peers.does(comm.rank, own)
    if comm.size > 1 and waited.is_status_due():
        calls.announce(own, wants_answer=True)
        if calls.ending:
            calls.end(calls.ending)
    if is_busy() or waited.has_news(calls.peers.n_news):
        waited.begin_again()
    if waited.is_log_due():
        where = calls.current.text if calls.current else text
        others = f": waiting for other ranks: {calls.peers.describe(missing())}" if comm.size > 1 else ""
        _log.warning(
            "hpcckpt: [rank %d] in %s%s for %.0f s%s",
            comm.rank, where, f" ({own})" if own else "", waited.total, others,
        )  # fmt: skip
    if comm.size > 1 and waited.seconds > comm.patience.peer_timeout_s * (1.0 if comm.is_root else 1.5):
        # root first: it knows which ranks are missing
        (give_up or (lambda: _time_out(comm, missing())))()


def _time_out(comm: Carrier, missing: Sequence[int]) -> None:
    """Let all raise the same error, where all can; else end the job. Independent."""
    calls, call, timeout_s = comm.calls, comm.calls.current, comm.patience.peer_timeout_s
    assert call is not None
    elsewhere = [rank for rank in (range(comm.size) if comm.is_root else missing) if not calls.peers.is_in(rank, call)]
    named = calls.peers.describe(elsewhere or missing)
    text = f"{call.text}: rank {comm.rank} waited {timeout_s:.0f} s (peer_timeout_s): {named}"
    if not elsewhere:
        calls.give_up(Failure(PeerTimeoutError.kind, f"{text}; try again, or raise peer_timeout_s"))
    _log.critical("hpcckpt: [rank %d] %s; the job is ended, the committed steps are intact", comm.rank, text)
    comm.abort(1)
