"""The interfaces to the system: clock, file system, threads, and which process this is.

`collective`, `rundir`, `saving`, `restoring` and `tiers` use nothing else of the operating system: no `time`, no
`threading`, no call of `os` that touches a file (`tests/unit/core/test_system.py`).  The interface to the other
ranks is `hpcckpt.collective.communicator.Communicator`.  All are passed at construction, so that ranks can be
simulated in one process, with time, storage and the order of threads under the control of a test.  There is one
implementation of each: here, and for files in `hpcckpt.native.posix_files`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

PathLike = str | os.PathLike[str]
T = TypeVar("T")

# -- time -----------------------------------------------------------------------------------------


class Clock(Protocol):
    """What time it is, and a pause."""

    def monotonic(self) -> float:
        """Return seconds since some moment; never set."""

    def time(self) -> float:
        """Return seconds since 1970, as this machine has them; comparable with the times of files."""

    def sleep(self, seconds: float) -> None:
        """Let other threads run for this time; 0 only yields."""


class SystemClock:
    """The clock of this machine."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    time = staticmethod(time.time)  # last: in this class it hides the module


# -- threads --------------------------------------------------------------------------------------


class Flag:
    """One thread sets it, another waits for it; the wait clears it.

    Not a `threading.Event`: a signal's exception (Ctrl-C) in one of its methods may leave its lock locked, and the
    next call of `set` hangs then.  This is only a lock, whose methods a signal cannot interrupt.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Let the thread that waits, or the next one that waits, continue."""
        with contextlib.suppress(RuntimeError):  # it is set
            self._unset.release()

    def clear(self) -> bool:
        """Clear it; return True if it was set."""
        return self._unset.acquire(blocking=False)

    def wait(self, timeout_s: float = -1.0) -> bool:
        """Wait until it is set, at most for `timeout_s` seconds, and clear it; return True if it was set."""
        return self._unset.acquire(timeout=timeout_s)


class Thread(Protocol):
    """A function that runs beside others."""

    @property
    def ident(self) -> int | None:
        """A number; ``None`` before the start."""

    def start(self) -> None:
        """Start it, or raise RuntimeError: it was started, or there can be no more threads."""

    def is_alive(self) -> bool:
        """Return True while it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""


class Executor(Protocol):
    """Threads, and what they wait for each other with."""

    def thread(self, function: Callable[..., object], *arguments: Any, name: str, is_daemon: bool = False) -> Thread:
        """Return a thread that will call a function; the program ends without waiting for a daemon."""

    def current(self) -> Thread:
        """Return the thread that calls this."""

    def is_ending(self) -> bool:
        """Return True if the program ends, and waits only for its threads."""

    def flag(self) -> Flag:
        """Return a flag that is not set."""

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Return a lock that the thread that holds it may enter again."""


class ThreadExecutor:
    """The threads of Python."""

    def thread(self, function: Callable[..., object], *arguments: Any, name: str, is_daemon: bool = False) -> Thread:
        """Return a thread that will call a function; the program ends without waiting for a daemon."""
        return threading.Thread(target=function, args=arguments, name=name, daemon=is_daemon)

    def current(self) -> Thread:
        """Return the thread that calls this."""
        return threading.current_thread()

    def is_ending(self) -> bool:
        """Return True if the program ends, and waits only for its threads."""
        return not threading.main_thread().is_alive()

    def flag(self) -> Flag:
        """Return a flag that is not set."""
        return Flag()

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Return a lock that the thread that holds it may enter again."""
        return threading.RLock()


# -- processes ------------------------------------------------------------------------------------


class Processes(Protocol):
    """Which process this is, and which others there are."""

    def host(self) -> str:
        """Return the name of this host."""

    def pid(self) -> int:
        """Return the number of this process; a forked child has another."""

    def started(self, pid: int) -> str:
        """Return when a process started, in the kernel's ticks; "" if there is no such process."""

    def exists(self, pid: int) -> bool:
        """Return True if there is a process of this number, ended or not."""

    def boot_id(self) -> str:
        """Return the identity of this boot of this host; "" if it is unknown."""

    def machine_id(self) -> str:
        """Return the identity of this installation of the system; "" if there is none."""

    def pid_namespace(self) -> str:
        """Return the identity of the namespace of this process' number; "" if it is unknown."""


class LocalProcesses:
    """The processes of this host."""

    def host(self) -> str:
        """Return the name of this host."""
        return socket.gethostname()

    def pid(self) -> int:
        """Return the number of this process; a forked child has another."""
        return os.getpid()

    def started(self, pid: int) -> str:
        """Return when a process started, in the kernel's ticks; "" if there is no such process."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in {"Z", "X"} else fields[19]

    def exists(self, pid: int) -> bool:
        """Return True if there is a process of this number, ended or not."""
        return os.path.exists(f"/proc/{pid}")

    def boot_id(self) -> str:
        """Return the identity of this boot of this host; "" if it is unknown."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def machine_id(self) -> str:
        """Return the identity of this installation of the system; "" if there is none."""
        try:
            return Path("/etc/machine-id").read_text(encoding="ascii").strip()[:64]
        except (OSError, ValueError):
            return ""

    def pid_namespace(self) -> str:
        """Return the identity of the namespace of this process' number; "" if it is unknown."""
        try:
            return str(os.stat("/proc/self/ns/pid").st_ino)
        except OSError:
            return ""


# -- files ----------------------------------------------------------------------------------------


class FileSystem(Protocol):
    """Directories, small files, and blocks of large ones. Errors are those of `os`: OSError with its `errno`.

    `rename`, `exchange`, `link` and `unlink` return normally when the request was carried out, even if the system
    reported an error (:mod:`hpcckpt.core.files`).
    """

    # directories

    def names(self, path: PathLike) -> list[str]:
        """Return the names in a directory."""

    def tree(self, path: PathLike) -> list[os.stat_result]:
        """Return the status of all that is below a directory; follow no link, not even `path`.

        What vanishes meanwhile, and what may not be read, is left out.
        """

    def mkdir(self, path: PathLike) -> None:
        """Make a directory; one that exists is no error."""

    def in_made_directory(self, path: PathLike, act: Callable[[], T]) -> T:
        """Make a directory if it does not exist, call a function that makes a file in it, and return its result."""

    def rmdir(self, path: PathLike) -> None:
        """Remove an empty directory."""

    def remove_tree(self, path: PathLike) -> None:
        """Remove a directory and all that is below it."""

    def fsync_dir(self, path: PathLike) -> None:
        """Wait until the entries of a directory are on storage."""

    def free_space(self, path: PathLike) -> os.statvfs_result:
        """Return the sizes of the file system of a directory."""

    # names

    def rename(self, source: PathLike, target: PathLike, is_done: Callable[[], bool] | None = None) -> None:
        """Rename a file or directory; a file at `target` is replaced."""

    def exchange(self, a: PathLike, b: PathLike, spare: PathLike, is_done: Callable[[], bool] | None = None) -> None:
        """Exchange two names atomically, or in three renames through a free name."""

    def link(self, source: PathLike, target: PathLike) -> None:
        """Give a file a second name."""

    def unlink(self, path: PathLike) -> bool:
        """Remove a file's name; return False if there was none."""

    def real_path(self, path: PathLike) -> str:
        """Return an absolute path without symbolic links."""

    # status

    def stat(self, path: PathLike) -> os.stat_result:
        """Return the status of what a name leads to."""

    def lstat(self, path: PathLike) -> os.stat_result:
        """Return the status of a name; follow no link."""

    def exists(self, path: PathLike) -> bool:
        """Return True if a name exists, even if it is a link that leads nowhere."""

    def is_link(self, path: PathLike) -> bool:
        """Return True if a name is a symbolic link."""

    def is_dir(self, path: PathLike) -> bool:
        """Return True if a name leads to a directory."""

    def touch(self, path: PathLike | int) -> None:
        """Set the times of a file, or of an open one, to now."""

    # files

    def open(self, path: PathLike, flags: int, mode: int = 0o666) -> int:
        """Open a file as `os.open` does; return its descriptor."""

    def open_regular(self, path: str) -> int:
        """Open an ordinary file for reading; refuse links, devices and pipes."""

    def close(self, fd: int) -> None:
        """Close an open file."""

    def fstat(self, fd: int) -> os.stat_result:
        """Return the status of an open file."""

    def read_at(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Read bytes from an offset on, fewer only where the file ends."""

    def read_bounded(self, path: str, limit: int) -> bytes:
        """Read an ordinary file of at most `limit` bytes; refuse links."""

    def write_whole(self, fd: int, data: bytes) -> None:
        """Write all bytes at the position of an open file."""

    def write_file(self, path: PathLike, data: bytes, *, is_new: bool = False, is_durable: bool = False) -> None:
        """Write a file, which must not exist if it `is_new`; wait until it is on storage if it `is_durable`."""

    def truncate(self, fd: int, nbytes: int) -> None:
        """Set the length of an open file."""

    def fsync(self, fd: int, path: PathLike = "") -> None:
        """Wait until an open file is on storage; `path` is for the error."""

    def fdatasync(self, fd: int, path: PathLike = "") -> None:
        """Wait until the bytes of an open file are on storage."""

    def uncache(self, fd: int) -> None:
        """Have the next read of an open file that is on storage come from there, if the system can do that."""

    # blocks of data

    def write_blocks(self, fd: int, pieces: Iterable[tuple[Any, int]], **options: Any) -> list[list[int]]:
        """Write buffers at offsets, as `hpcckpt.native.write_blocks` does; return the checksums of their blocks."""

    def read_blocks(
        self, fd: int, pieces: Iterable[tuple[Any, int, Sequence[int] | None]], **options: Any
    ) -> list[tuple[int, int]]:
        """Read into buffers, as `hpcckpt.native.read_blocks` does; return the blocks with other checksums."""


# -- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class OperatingSystem:
    """The operating system as one process uses it.

    Attributes
    ----------
    files : FileSystem
        Its files.
    clock : Clock
        Its time.
    executor : Executor
        Its threads.
    processes : Processes
        Which process this is.
    apart_s : float
        How far the clock that can be set was before the one that cannot, when the process began.
    """

    files: FileSystem
    clock: Clock = field(default_factory=SystemClock)
    executor: Executor = field(default_factory=ThreadExecutor)
    processes: Processes = field(default_factory=LocalProcesses)
    apart_s: float = field(init=False)
    _shared: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "apart_s", self.clock.time() - self.clock.monotonic())
        _SYSTEMS.add(self)

    def shared(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return the one object of a key in this process, made if there is none. Independent.

        A forked child shares nothing with its parent. The table is never locked, for a fork would copy the lock.
        """
        found: T | None = self._shared.get(key)
        return self._shared.setdefault(key, make()) if found is None else found

    def become_child(self) -> None:
        """Forget what the parent shares, in a forked child. Independent."""
        self._shared.clear()


def _become_child() -> None:
    for system in list(_SYSTEMS):
        system.become_child()


_SYSTEMS: weakref.WeakSet[OperatingSystem] = weakref.WeakSet()
os.register_at_fork(after_in_child=_become_child)

CLOCK = SystemClock()
EXECUTOR = ThreadExecutor()
