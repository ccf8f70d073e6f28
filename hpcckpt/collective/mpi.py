"""Ranks that are MPI processes. The only module that imports mpi4py."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mpi4py import MPI

from hpcckpt.collective import launchers
from hpcckpt.collective.communicator import Communicator, world_is
from hpcckpt.collective.deadlines import POLL_S, Patience
from hpcckpt.collective.uncaught import exit_with_code_of_error, finish_before_abort
from hpcckpt.collective.waits import wait_for_all
from hpcckpt.core.std_streams import flush_or_discard
from hpcckpt.core.system import CLOCK
from hpcckpt.core.weak import living
from hpcckpt.errors import CollectiveError, MpiError

_log = logging.getLogger("hpcckpt")
_open: weakref.WeakValueDictionary[int, MpiCommunicator] = weakref.WeakValueDictionary()
"""Those that are not freed, by their `id`."""
GRACE_S = 1.0
EXIT_S = 10.0
"""How long the end of the program waits for messages that have not left."""
_unsent: list[MPI.Request] = []
"""Messages of communicators that are gone. Their buffers must stay: a rank may not have received them yet."""
_LIBMPI = re.compile(r"/lib(?:mpi|mpich|mpi_cray|mpi_intel)\.so[.\d]*$")


class _Use:
    """Keeps MPI from being finalized by another thread while it is used here.

    Where Horovod has initialized MPI, its background thread finalizes it, on all ranks, as soon as one has ended.

    Attributes
    ----------
    lock : threading.RLock
        To be held while MPI is called outside of `lasting`.
    is_over : bool
        Whether MPI must not be called any more.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_over = False
        self._n_lasting = 0
        self._none_lasts = threading.Condition(self.lock)

    @contextlib.contextmanager
    def lasting(self) -> Iterator[None]:
        """Let MPI last as long as the block, unless it is over. Independent."""
        with self.lock:
            self._n_lasting += 1
        try:
            yield
        finally:
            with self.lock:
                self._n_lasting -= 1
                if self._n_lasting == 0:
                    self._none_lasts.notify_all()

    def end(self) -> None:
        """Wait for the calls of this rank; send and receive what is under way; let MPI not be called again."""
        with self.lock:
            self._none_lasts.wait_for(lambda: self._n_lasting == 0)
            _send_all()
            for comm in living(_open):
                comm.take_in_all()
            self.is_over = True


_use = _Use()


@functools.cache
def _end_before_mpi() -> None:
    """Let `_use` end before MPI: its finalization deletes the attributes of COMM_SELF first."""
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda *_: _use.end()), True)


def _is_usable() -> bool:
    return not _use.is_over and not MPI.Is_finalized()


class MpiCommunicator(Communicator):
    """A duplicate of an MPI communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        An intra-communicator; it is duplicated, so our messages never meet the caller's. Collective.

    Raises
    ------
    MpiError
        If two MPI libraries meet in this process, or the launcher and the library do not match.
    """

    def __init__(self, comm: MPI.Intracomm, patience: Patience | None = None) -> None:
        super().__init__(patience)
        abort_on_uncaught()
        _end_before_mpi()
        check_one_library(comm)
        world_is(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
        self._found: MPI.Message | None = None
        self._status = MPI.Status()
        self._sends: list[MPI.Request] = []
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._comm = comm  # which `abort` needs while it is duplicated
        with _use.lasting():
            self._comm = self._duplicated(comm)
        with _use.lock:
            _open[id(self)] = self
        weakref.finalize(self, _unsent.extend, self._sends).atexit = False

    def _duplicated(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """Return a duplicate, when all ranks have asked for one. Collective."""
        if self.size == 1:
            return comm.Dup()
        made, request = comm.Idup()
        wait_for_all(self, request.Test)
        return made

    @property
    def is_usable(self) -> bool:
        """Whether messages can be sent: MPI is not finalized."""
        return _is_usable()

    def lasting(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which MPI is not finalized by another thread. Independent."""
        return _use.lasting()

    @property
    def mpi(self) -> MPI.Intracomm:
        """Our duplicate, for libraries that communicate themselves."""
        return self._comm

    def hints(self, values: Mapping[str, str]) -> MPI.Info:
        """Return hints for MPI, for libraries that communicate themselves. Independent."""
        return MPI.Info.Create(dict(values))

    def _post(self, dest: int, message: tuple[str, Any]) -> None:
        with _use.lock:
            if not _use.is_over:  # else no rank can receive it
                # in one step, in which no interrupt can drop the request and with it the buffer
                self._sends.extend(map(self._comm.isend, (message,), (dest,)))

    def _take_in(self) -> None:
        if self.size == 1:
            return
        with _use.lock:
            if not _use.is_over:
                self._take_in_one()

    def _take_in_one(self) -> bool:
        """Take in a message if one has come; return whether one had. Independent."""
        if _unsent:
            _drop_sent()
        if self._sends:
            self._sends[:] = [request for request in self._sends if not request.Test()]
        if self._found is None:
            self._found = self._comm.improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status)
        found = self._found
        if found is not None:  # in one line: an interrupt neither loses nor doubles a message
            self._found = self._raw.append((self._status.Get_source(), found.recv()))  # type: ignore[func-returns-value]
        return found is not None

    def take_in_all(self) -> None:
        """Take in all messages that have come: MPI ends. Independent."""
        while self.size > 1 and self._take_in_one():
            pass

    def duplicate(self) -> MpiCommunicator:
        """Return another duplicate. Collective."""
        return MpiCommunicator(self._comm, self.patience)

    def free(self) -> None:
        """Free the duplicate, unless MPI is finalized already. Collective."""
        with _use.lock:
            _open.pop(id(self), None)
            if self.calls.failure is not None:
                return  # messages that other ranks will never receive cannot be waited for
            if _is_usable() and self._comm != MPI.COMM_NULL:
                MPI.Request.Waitall(self._sends)
                self._comm.Free()

    def abort(self, code: int) -> None:
        """End the whole job. Independent."""
        self._comm.Abort(code)


def _drop_sent() -> None:
    """Drop the messages of earlier communicators that have left. Independent."""
    for request in tuple(_unsent):  # a copy, for the end of a communicator may add some at any moment
        if request.Test():
            _unsent.remove(request)


@atexit.register
def _send_all() -> None:
    """Let messages leave before the program ends: afterwards their buffers are gone. Independent."""
    until = CLOCK.monotonic() + EXIT_S
    for comm in living(_open):
        if comm.calls.failure is None:
            _unsent.extend(comm._sends)
            comm._sends.clear()
    while CLOCK.monotonic() < until:
        with _use.lock:
            if not _is_usable() or MPI.Request.Testall(_unsent):
                return
        CLOCK.sleep(POLL_S)


def of_world_ranks(ranks: Sequence[int]) -> MpiCommunicator:
    """Return a communicator of these ranks of MPI.COMM_WORLD, in this order. Collective over them."""
    made = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group().Incl(list(ranks)))
    try:
        return MpiCommunicator(made)
    finally:
        made.Free()


def thread_level() -> str:
    """Return the level of thread support that MPI gives this process: ``MULTIPLE``. Independent."""
    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    return {getattr(MPI, f"THREAD_{name}"): name for name in names}[MPI.Query_thread()]


def world_rank() -> int:
    """Return this process' rank in MPI.COMM_WORLD. Independent."""
    return MPI.COMM_WORLD.Get_rank()


def abort_on_uncaught() -> None:
    """Let a rank that ends with an uncaught exception end the job; one rank alone exits. Independent.

    Without that the others wait for it in their next collective call, and it for them in MPI_Finalize, forever.
    First it finishes what it can (see `before_abort`). The others get `GRACE_S` to raise its error, to clean up, and to
    print what they know.
    """
    earlier = sys.excepthook
    if MPI.COMM_WORLD.Get_size() == 1:
        exit_with_code_of_error()
        return
    if getattr(earlier, "aborts_job", False):
        return

    def report_and_abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        earlier(kind, error, trace)
        flush_or_discard()
        try:
            if _is_usable():
                finish_before_abort()
            if _is_usable() and not isinstance(error, CollectiveError):
                for comm in living(_open):
                    comm.calls.end(f"ended with {kind.__name__}: {str(error)[:200]}")
            if _open or isinstance(error, CollectiveError):
                CLOCK.sleep(GRACE_S)
        finally:  # also if a signal's handler raises meanwhile
            if _is_usable():
                rank = MPI.COMM_WORLD.Get_rank()
                _log.critical("hpcckpt: [rank %d] ended with %s; the job is ended", rank, kind.__name__)
                MPI.COMM_WORLD.Abort(getattr(error, "exit_code", 1))

    report_and_abort.aborts_job = True  # type: ignore[attr-defined]
    sys.excepthook = report_and_abort


def world(patience: Patience | None = None) -> MpiCommunicator:
    """Return a duplicate of MPI.COMM_WORLD. Collective."""
    return MpiCommunicator(MPI.COMM_WORLD, patience)


def mapped_mpi_libraries(maps: str = "/proc/self/maps") -> list[str]:
    """Return the MPI libraries that are mapped into this process. Independent."""
    try:
        lines = Path(maps).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
    return sorted(path for path in paths if _LIBMPI.search(path))


def check_one_library(comm: MPI.Comm, maps: str = "/proc/self/maps") -> None:
    """Raise if two MPI libraries are loaded. Independent.

    Raises
    ------
    MpiError
        Naming both libraries, or the rank counts of the launcher and the library.
    """
    found = mapped_mpi_libraries(maps)
    if len({Path(path).resolve() for path in found}) > 1:
        raise MpiError(
            f"two MPI libraries are loaded in one process: {' and '.join(found)}; "
            "build mpi4py, Horovod and h5py with the same MPI"
        )
    check_launch(comm)


def check_launch(comm: MPI.Comm) -> None:
    """Raise if the launcher started other ranks than MPI connected. Independent.

    Ranks that MPI did not connect would all write the same directory.  A communicator of several ranks of a larger
    world (a heterogeneous job, a spawned one) is accepted.

    Raises
    ------
    MpiError
        Naming rank and size of the launcher and of the library.
    """
    launch = launchers.here().launch
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if launch is None or size > 1 or comm.Get_size() > 1:
        return
    n_ranks = 1 if launch.size is None else launch.size.value
    if n_ranks == 1 and (launch.rank is None or launch.rank.value == rank):
        return
    library = MPI.Get_library_version().split(",")[0].strip("\0 \n")
    raise MpiError(
        f"the launcher started {n_ranks if launch.size else 'several'} ranks, but mpi4py's library ({library}) sees 1: "
        f"this process is {launch}; each would write on its own. Either the launcher belongs to another MPI: use that "
        "of mpi4py's MPI (srun: try --mpi=pmix, or another of srun --mpi=list), or rebuild mpi4py; or its variables "
        f"are left from another job: unset them, or {launchers.OVERRIDE}={launchers.NOBODY}"
    )
