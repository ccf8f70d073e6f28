"""The end of a program that does not close its checkpointers: saves in flight are finished, and locks are released."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

from hpcckpt.checkpointer.session import Session
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.deadlines import wait_and_log
from hpcckpt.collective.uncaught import before_abort
from hpcckpt.core.weak import living
from hpcckpt.errors import CollectiveError, CollectiveMisuseError, HpcckptError, PeerTimeoutError

_log = logging.getLogger("hpcckpt")
_open_sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
"""Those that were opened, by their `id`, in an order that is the same on all ranks."""
_orphans: set[Session] = set()
"""Those whose checkpointers were collected too early: they are finished at the end of the program, or before."""
ENDED = "ended its program"
_LOOK_S = 0.1


class _Forgotten:
    """Sessions whose checkpointers were collected, and the thread that releases them.

    Python collects in whichever thread makes objects, which may hold a lock that a release needs. So a finalizer does
    no more than note the session, and takes no lock.
    """

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._sessions: deque[Session] = deque()
        self._requests: SimpleQueue[threading.Event | None] = SimpleQueue()  # its `put` is reentrant
        self._unused: deque[Communicator] = deque()  # of single ranks; those of several are freed by all together
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; without it sessions are released when the next one is opened, or at exit. Independent."""
        if self._thread is not None:
            return
        with self._guard, contextlib.suppress(RuntimeError):
            if self._thread is None:
                thread = threading.Thread(target=self._release_when_asked, name="hpcckpt-release", daemon=True)
                thread.start()
                self._thread = thread

    def note(self, session: Session) -> None:
        """Note a session to be released. Independent."""
        self._sessions.append(session)
        self._requests.put(None)

    def release(self) -> None:
        """Release what was noted until now; log now and then that this lasts. Independent."""
        if not self._sessions:  # each stays there until it is released
            return
        is_done, thread = threading.Event(), self._thread
        if thread is not None:
            self._requests.put(is_done)
            wait_and_log(
                lambda: is_done.wait(_LOOK_S) or not thread.is_alive(),
                "runs whose checkpointers were not closed are released",
            )
        if not is_done.is_set():
            self._release_all()

    def free_communicators(self) -> None:
        """Free the communicators of what was released, in a thread of the program: it may call MPI. Independent."""
        with contextlib.suppress(IndexError):  # there is none left
            while True:
                self._unused.popleft().free()

    def _release_when_asked(self) -> None:
        while True:
            is_done = self._requests.get()
            self._release_all()
            if is_done is not None:
                is_done.set()

    def _release_all(self) -> None:
        with self._guard:
            while self._sessions:
                session = self._sessions[0]
                if not session.is_ending:
                    with _logging():
                        _release(session)
                    if session.comm.size == 1 and session not in _orphans:
                        self._unused.append(session.comm)
                if self._sessions and self._sessions[0] is session:
                    self._sessions.popleft()  # last: an interrupted release is repeated


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Log what the block raises: others are left to release or to finish."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is
        _log.error("hpcckpt: %s", error)


_forgotten = _Forgotten()
_is_forked = False


def _become_child() -> None:
    """Let a forked child, which has no copy of the thread, begin with no sessions."""
    global _forgotten, _is_forked
    _forgotten, _is_forked = _Forgotten(), True
    _open_sessions.clear()
    _finish_at_exit_too.cache_clear()


os.register_at_fork(after_in_child=_become_child)


def release_when_forgotten(owner: object, session: Session) -> Callable[[], None]:
    """Release the lock soon after its owner is collected; return a function that does so now. Independent.

    The owner may be collected while saves are in flight: these are finished when the program ends.
    """
    _open_sessions[id(session)] = session
    if session.rundir.is_leading:
        _forgotten.start()
    pid = os.getpid()
    finalizer = weakref.finalize(owner, _note, session, pid)
    finalizer.atexit = False  # see `_finish_all`
    _finish_at_exit_too()  # after the first finalizer: what is registered last is called first, while those still work

    def release_now() -> None:
        if finalizer.detach() is not None and os.getpid() == pid:
            _release(session)

    return release_now


def _note(session: Session, pid: int) -> None:
    """Note a session, unless nothing is held any more, or this is a forked child, whose copy holds nothing."""
    is_over = session.is_closed and all(rundir.lock is None for rundir in session.rundirs)
    if os.getpid() == pid and not is_over:
        _forgotten.note(session)


def _release(session: Session) -> None:
    """Release the lock, and the memory of snapshots."""
    if not session.is_closed and session.comm.size > 1:
        _orphans.add(session)  # other ranks may wait for this one, which reports its end when the program ends
    release(session)
    if not session.is_saving:
        session.queue.arenas.close()


def release(session: Session) -> None:
    """Remove what was prepared for saves that will not come, and release the locks; may be repeated. Root only."""
    tiers, is_busy = session.scratch_tier, session.is_saving or session.is_draining
    is_left = tiers is not None and not (session.is_closed or tiers.drains.is_drained)
    if session.ended_by is not None and not (is_busy or is_left):
        session.rundir.journal.end(*session.ended_by)
    if tiers is not None and not (is_left or tiers.drains.is_draining):  # else another rank may be draining there again
        tiers.persistent.close()
    if is_busy or is_left:
        _orphans.add(session)  # also after a failure: another rank may not know it yet, and tries again at the end
    if not is_busy:
        session.rundir.close()


@contextlib.contextmanager
def raising(session: Session) -> Iterator[None]:
    """Close the run if the block makes its communicator unusable; shorten errors. Independent."""
    try:
        with shortening():
            yield
    except (CollectiveMisuseError, PeerTimeoutError) as error:
        if not session.is_closed:
            _abort(session, type(error).__name__)
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


def _abort(session: Session, why: str) -> None:
    """Release the locks without waiting for other ranks, after what is being committed is committed. Independent."""
    session.is_closed = True
    if why == CollectiveMisuseError.__name__ and session.comm.calls.peers.ended:  # a rank that ends has reported before
        session.let_saves_end(is_error_due=True)
    _let_commits_end(session)
    session.rundir.journal.end(why)
    session.queue.in_flight.clear()
    session.queue.arenas.close()
    for rundir in session.rundirs:
        rundir.close()


def _let_commits_end(session: Session) -> None:
    """Wait until what is being committed is committed. Root only."""
    tiers = session.scratch_tier
    for background in (session.queue.background, *(() if tiers is None else (tiers.drains.background,))):
        for task in background.tasks:
            if task.reduction is not None:
                task.reduction.join(f"{task.name} is committed")


@functools.cache
def _finish_at_exit_too() -> None:
    """Finish what is in flight when the program ends, before MPI is finalized and locks are released."""
    atexit.register(_finish_all, os.getpid())
    if _ends_without_atexit():
        with contextlib.suppress(RuntimeError):  # a limit of the system
            threading.Thread(target=_finish_after_threads, args=[os.getpid()], name="hpcckpt-exit").start()
    before_abort(functools.partial(_let_all_saves_end, os.getpid()))


def _ends_without_atexit() -> bool:
    """Return True in a child of `multiprocessing` that was forked, by the program or by its fork server."""
    process = sys.modules.get("multiprocessing.process")
    is_spawned = "--multiprocessing-fork" in sys.orig_argv and not _is_forked
    return process is not None and process.parent_process() is not None and not is_spawned


def _finish_after_threads(pid: int) -> None:
    """Finish all runs when all other threads of the program have ended; the process waits for this one."""
    main, this = threading.main_thread(), threading.current_thread()
    main.join()
    while others := [each for each in threading.enumerate() if not each.daemon and each not in (main, this)]:
        others[0].join()
    _finish_all(pid)


def _let_all_saves_end(pid: int) -> None:
    """Let the saves in flight of this thread's runs be committed, if other ranks end in the same way. Independent."""
    for session in living(_open_sessions):
        is_own = os.getpid() == pid and session.thread == threading.get_ident()
        if is_own and not session.is_closed and session.ended_by is None:
            session.let_saves_end()


def _finish_all(pid: int) -> None:
    """Finish what all runs of this process have in flight, also if one of them fails. Collective.

    Which runs, and in which order, depends on nothing that a rank may learn later than another one.
    """
    if os.getpid() != pid:
        return
    sessions = living(_open_sessions)
    for session in sessions:
        session.is_ending = True
    _forgotten.release()
    for session in sessions:
        if not session.is_closed and (session.queue.in_flight or session.scratch_tier is not None):
            session.comm.calls.ending = _end_of(session)
            _finish(session)
            _release(session)
    for session in sessions:
        if not session.is_closed and session.comm.is_usable:
            session.comm.calls.end(_end_of(session))
    for session in sessions:
        session.is_closed = True  # nothing will be drained again
        release(session)
        if session.is_saving:  # this rank could not finish it
            _let_commits_end(session)
            session.rundir.close()


def _finish(session: Session) -> None:
    """Finish what a run has in flight; log what fails. Collective."""
    with _logging(), contextlib.suppress(CollectiveError), raising(session):  # those root has logged already
        session.finish()
    if session.ended_by is not None:
        session.rundir.journal.end(*session.ended_by)


def finish_abandoned(directory: Path) -> None:
    """Finish the saves of this thread's abandoned runs of one rank, before the directory is opened again. Independent.

    At the end of the program their steps would be committed over those of the run that goes on. An exception ended
    these runs, or their checkpointers were forgotten. Those of several ranks are refused then; see `RunDirectory`.
    In other directories, and of several ranks, those are released whose saves have ended: they kept lock and memory.
    """
    _forgotten.release()
    _forgotten.free_communicators()
    for session in living(_open_sessions):
        is_abandoned = session.ended_by is not None or session in _orphans
        is_own = session.thread == threading.get_ident() and not session.is_calling
        if is_abandoned and is_own and not session.is_closed:
            with _logging():
                _finish_if_due(session, directory)


def _finish_if_due(session: Session, directory: Path) -> None:
    """Finish an abandoned run of one rank in a directory, or one that is idle; of several ranks, release it then."""
    if session.comm.size == 1 and (session.is_idle or session.rundirs[0].path == directory):
        _orphans.add(session)  # it must not be lost by an interrupt
        session.is_ending = True
        _forgotten.release()  # if it was noted meanwhile
        _finish(session)
        session.close()
        release(session)
        session.comm.free()
        _orphans.discard(session)
    elif session.is_idle:
        _release(session)


@contextlib.contextmanager
def freed_if_refused(comm: Communicator) -> Iterator[None]:
    """Free a duplicate if what is made with it is refused, on all ranks. Collective."""
    try:
        yield
    except HpcckptError as error:
        if not isinstance(error, CollectiveMisuseError | PeerTimeoutError):
            comm.free()
        raise


def _end_of(session: Session) -> str:
    return ENDED if session.ended_by is None else str(session.ended_by)
