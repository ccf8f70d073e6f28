"""What is left when nobody closes: saves under way are finished as the program ends, and locks are given back."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import os
import weakref
from collections.abc import Iterator

from hpcckpt import publishing, saving
from hpcckpt.errors import (
    CollectiveError,
    CollectiveMisuseError,
    HpcckptError,
    LockLostError,
    PeerTimeoutError,
)
from hpcckpt.run import Run

_log = logging.getLogger("hpcckpt")
_open_runs: weakref.WeakKeyDictionary[Run, int] = weakref.WeakKeyDictionary()
"""Those that were opened, numbered in that order: it is the same on all ranks."""
_numbers = itertools.count()
_orphans: list[Run] = []
ENDED = "ended its program"


def release_when_forgotten(owner: object, run: Run) -> weakref.finalize[[Run, int], object]:
    """Have the lock of a run given back with its owner, or when the program ends; return what does so now. Independent.

    The owner may be forgotten while saves are under way: these are finished when the program ends.
    """
    _open_runs[run] = next(_numbers)
    _finish_at_exit_too()
    return weakref.finalize(owner, _release, run, os.getpid())


def _release(run: Run, pid: int) -> None:
    """Release the lock, unless this is a forked child: it has a copy of all this, and nothing of it is its own."""
    if os.getpid() != pid:
        return
    if not run.closed and run.comm.size > 1:
        _orphans.append(run)  # other ranks may wait for this one, which reports its end when the program ends
    release(run)


def release(run: Run) -> None:
    """Remove what was prepared for saves that will not come, and release the lock; may be repeated. Root only."""
    if run.tier is not None and not run.tier.is_draining:
        release(run.tier.home)
    if _is_under_way(run) or not (run.closed or run.tier is None or run.tier.is_drained):
        _orphans.append(run)  # also what failed: another rank may not have heard of it yet, and tries again at the end
    if not _is_under_way(run):
        _release_lock(run)


def _release_lock(run: Run) -> None:
    """Remove what was prepared, and release the lock. Root only."""
    if run.lock is None:
        return
    with contextlib.suppress(OSError, LockLostError):
        if run.lock.is_mine():
            publishing.sweep_all(run, run.lock)
    problem = run.workspace.finish_removal()
    if problem:
        _log.warning("hpcckpt: %s: a retired step could not be removed: %s", run.directory, problem)
    run.lock.release()
    run.lock = None


@contextlib.contextmanager
def raising(run: Run) -> Iterator[None]:
    """Close the run if the block makes its communicator unusable; shorten errors. Independent."""
    try:
        with shortening():
            yield
    except (CollectiveMisuseError, PeerTimeoutError) as error:
        if not run.closed:
            _abandon(run, type(error).__name__)
        raise


@contextlib.contextmanager
def shortening() -> Iterator[None]:
    """Remove from an error of all ranks those causes that its text repeats; the program's own stay. Independent.

    Otherwise each rank prints several tracebacks that end with the same text.
    """
    try:
        yield
    except CollectiveError as error:
        cause = error.__cause__
        repeated: list[BaseException] = [error]  # on the rank that failed an error may be its own cause
        while isinstance(cause, HpcckptError) and str(cause) in str(error):
            repeated.append(cause)
            cause = None if any(cause.__cause__ is each for each in repeated) else cause.__cause__
        error.__cause__ = cause  # the context stays suppressed
        raise


def _abandon(run: Run, why: str) -> None:
    """Give the locks back without waiting for other ranks; what is being committed is committed first. Independent."""
    run.closed = True
    for one in (run,) if run.tier is None else (run, run.tier.home):
        for matter in one.draining.matters:
            if matter.conclusion is not None:
                matter.conclusion.join(f"{matter.name} is committed")
    run.journal.end(why)
    run.underway.clear()
    for one in (run,) if run.tier is None else (run.tier.home, run):
        _release_lock(one)


def _is_under_way(run: Run) -> bool:
    return any(this.answer is None for this in run.underway) or _is_draining(run)


def _is_draining(run: Run) -> bool:
    return run.tier is not None and run.tier.is_draining


@functools.cache
def _finish_at_exit_too() -> None:
    """Have what is under way finished when the program ends, before MPI is finalized and locks are given back."""
    atexit.register(_finish_all, os.getpid())


def _finish_all(pid: int) -> None:
    """Finish what all runs of this process have under way; none keeps the others from it. Collective.

    Which runs, and in which order, depends on nothing that a rank may learn later than another one.
    """
    if os.getpid() != pid:
        return
    for run in sorted(_open_runs, key=_open_runs.__getitem__):
        if not run.closed and (run.underway or run.tier is not None):
            try:
                run.comm.calls.ending = ENDED
                with raising(run):
                    finish(run)
            except CollectiveError:
                pass  # root has logged it already
            except Exception as error:  # noqa: BLE001 - others are left to finish
                _log.error("hpcckpt: %s", error)
            if run.ended_by is not None:
                run.journal.end(*run.ended_by)
            _release(run, pid)
    for run in _open_runs:
        if not run.closed and run.comm.is_usable:
            run.comm.calls.end(ENDED)


def finish(run: Run) -> None:
    """Wait for all saves and, whatever becomes of them, for all drains. Collective."""
    saving.begin_part(run)
    try:
        saving.finish(run)
    finally:
        if run.tier is not None:
            run.tier.finish()
