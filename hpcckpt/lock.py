"""The lock of a run directory: one writing job at a time.

The lock is a small JSON file.  It is taken by linking a finished file to its name, so it is never
seen half written, and held with a heartbeat (its modification time).  It is taken over only from a
holder that is provably dead (same host: another boot, or no such process) or silent for longer than
`expiry_s` (another host, or another container of this one, whose processes cannot be seen from here).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt import files, layout
from hpcckpt.discovery import read_bounded
from hpcckpt.errors import ForkedError, LockedError, LockLostError, StorageError, from_os_error

HEARTBEAT_S = 30.0
LEFTOVER_S = 3600.0
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "COBALT_JOBID", "LSB_JOBID")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock."""

    host: str
    pid: int
    boot_id: str
    started: str
    job_id: str
    nonce: str
    pid_ns: str = ""

    def __str__(self) -> str:
        job = f", job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job}"


def boot_id() -> str:
    """Return the identity of this boot of this host; "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; "" if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


def pid_namespace() -> str:
    """Return the identity of the namespace that process numbers of this process are from; "" if unknown."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def this_holder() -> Holder:
    """Return what this process writes into a lock."""
    job_id = next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), "")
    pid = os.getpid()
    return Holder(socket.gethostname(), pid, boot_id(), process_start(pid), job_id, layout.new_nonce(), pid_namespace())


def read_holder(path: Path) -> Holder | None:
    """Return who holds the lock at `path`; ``None`` if nobody does or the file says nothing sensible."""
    try:
        return _read_holder(path)
    except OSError:
        return None


def _read_holder(path: Path) -> Holder | None:
    """Do the same, but raise what keeps the file from being read: that is no proof that nobody holds the lock."""
    try:
        document: dict[str, Any] = json.loads(read_bounded(os.fspath(path), 65536))
        return Holder(**{name: document[name] for name in Holder.__dataclass_fields__ if name in document})
    except (FileNotFoundError, ValueError, TypeError):  # TypeError: a field is missing; older versions wrote no pid_ns
        return None


def is_dead(holder: Holder, age_s: float, expiry_s: float) -> bool:
    """Say whether a holder is provably dead, or on another host and silent for longer than `expiry_s`."""
    if holder.host != socket.gethostname():
        return age_s > expiry_s
    if holder.boot_id and boot_id() and holder.boot_id != boot_id():
        return True
    if holder.pid_ns != pid_namespace() and holder.pid_ns and pid_namespace():
        return age_s > expiry_s  # the same number means another process there
    if os.path.isdir("/proc/self"):
        return process_start(holder.pid) != holder.started
    return age_s > expiry_s


class RunLock:
    """The lock of one run directory; root takes it before its first change.

    Parameters
    ----------
    directory : path_like
        The run directory, which exists.
    expiry_s : float
        Seconds of silence after which another host's holder counts as dead.

    Notes
    -----
    Within one process the lock is shared by all checkpointers of the directory.
    """

    _held: dict[str, RunLock] = {}  # noqa: RUF012 - one table per process
    _guard = threading.Lock()

    def __init__(self, directory: str | os.PathLike[str], expiry_s: float = 600.0) -> None:
        self.path = Path(directory) / layout.LOCK
        self.expiry_s = expiry_s
        self.holder = this_holder()
        self._users = 0
        self._stop = threading.Event()

    @classmethod
    def become_child(cls) -> None:
        """Forget the locks of the parent in a forked child; one of its threads may have held the guard. Independent."""
        cls._held = {}
        cls._guard = threading.Lock()

    @classmethod
    def take(cls, directory: str | os.PathLike[str], expiry_s: float = 600.0) -> RunLock:
        """Take the lock, or share it with another user in this process. Root only.

        Raises
        ------
        LockedError
            If another job holds it; says which.
        StorageError
            If the directory cannot be written.
        """
        key = os.path.realpath(directory)
        with cls._guard:
            lock = cls._held.get(key)
            if lock is None:
                lock = cls(key, expiry_s)
                lock._acquire()
                cls._held[key] = lock
            lock._users += 1
            return lock

    def release(self) -> None:
        """Give the lock back; the last user of the process removes the file. Root only."""
        with self._guard:
            self._users -= 1
            if self._users > 0:
                return
            self._held.pop(str(self.path.parent), None)
            self._stop.set()
            with contextlib.suppress(OSError):  # it expires: a job that is done must not fail over this
                if self.is_mine():
                    files.unlink(self.path)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def is_mine(self) -> bool:
        """Return True if this process took the lock and the file is still this lock. Root only.

        Raises
        ------
        StorageError
            If the file cannot be read just now.
        """
        if self.holder.pid != os.getpid():
            return False  # a forked child has a copy of the lock that its parent holds
        try:
            return _read_holder(self.path) == self.holder
        except OSError as error:
            raise from_os_error(error, "read the run's lock") from error

    def check(self) -> None:
        """Raise if the lock was taken over. Root only.

        Raises
        ------
        LockLostError
            Naming the new holder.
        """
        self._check_process()
        if not self.is_mine():
            raise self._lost()

    def _check_process(self) -> None:
        if self.holder.pid != os.getpid():
            raise ForkedError(
                f"{self.path} is held by process {self.holder.pid}, and this is process {os.getpid()}, forked from it; "
                "create a new Checkpointer here, with another directory"
            )

    def _lost(self) -> LockLostError:
        return LockLostError(
            f"{self.path} is now held by {read_holder(self.path) or 'nobody'}: this job was taken for dead; "
            "nothing was published, stop one of the two jobs"
        )

    def reclaim(self) -> bool:
        """Take the lock again if it was lost and whoever took it is gone; say whether that was needed. Root only.

        What the other job found lying about it may have swept: nothing that was begun before may be published
        (see `check`).

        Raises
        ------
        LockLostError
            If the other job still holds it.
        """
        self._check_process()
        with self._guard:
            if self.is_mine():
                return False
            before = self.holder, self._stop
            self.holder, self._stop = this_holder(), threading.Event()
            try:
                self._acquire()
            except BaseException as error:
                self.holder, self._stop = before
                if isinstance(error, LockedError):
                    raise self._lost() from error
                raise
            before[1].set()
            return True

    def _acquire(self) -> None:
        beat = threading.Thread(
            target=self._beat, args=(self.holder, self._stop), name="hpcckpt-heartbeat", daemon=True
        )
        try:
            beat.start()  # first, for once the lock has its name nothing may fail any more
            self._link_or_take_over()
        except BaseException as error:
            self._stop.set()
            if isinstance(error, LockedError):
                raise
            if isinstance(error, OSError):
                raise from_os_error(error, "take the run's lock") from error
            if isinstance(error, RuntimeError):
                raise StorageError(f"take the run's lock {self.path}: no thread for its heartbeat ({error})") from error
            raise
        _sweep_leftovers(self.path.parent)

    def _link_or_take_over(self) -> None:
        for _ in range(5):
            if self._link():
                return
            holder, age_s = _read_holder(self.path), self._age_s()
            if holder is None and age_s < 10.0:  # another job is just letting go or taking over
                time.sleep(0.05)
            elif holder is None or is_dead(holder, age_s, self.expiry_s):
                self._remove_stale(holder)
            else:
                raise LockedError(
                    f"{self.path.parent} is in use by {holder} (heartbeat {age_s:.0f} s ago); "
                    "wait for it, stop it, or choose another directory"
                )
        raise LockedError(f"{self.path.parent}: other jobs keep taking the lock; try again later")

    def _link(self) -> bool:
        """Put a finished lock file under its name; say whether the name was free."""
        draft = self.path.with_name(f"{layout.LOCK}.{_mark(self.holder)}-{self.holder.nonce}")
        try:
            draft.write_text(self._text())
            files.link(draft, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create()
        finally:
            with contextlib.suppress(OSError):  # it is swept later
                files.unlink(draft)
        return True

    def _create(self) -> bool:
        """Do the same on a file system without hard links; a reader may see the file before it is filled."""
        try:
            with open(self.path, "x", encoding="utf-8") as file:
                file.write(self._text())
        except FileExistsError:
            return False
        return True

    def _text(self) -> str:
        return json.dumps({name: getattr(self.holder, name) for name in Holder.__dataclass_fields__})

    def _remove_stale(self, holder: Holder | None) -> None:
        """Move a dead holder's lock away; put it back if somebody else's got in between."""
        grave = self.path.with_name(f".lock.dead-{layout.new_nonce()}")
        try:
            files.rename(self.path, grave)
        except FileNotFoundError:
            return
        try:
            is_stale = _read_holder(grave) == holder
        except OSError:
            is_stale = False
        if not is_stale:
            # A third one has it, and the second will notice; or has swept it.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                files.link(grave, self.path)
        files.unlink(grave)

    def _age_s(self) -> float:
        try:
            return time.time() - self.path.lstat().st_mtime
        except OSError:
            return 0.0

    def _beat(self, holder: Holder, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_S):
            if read_holder(self.path) not in (holder, None):
                return
            with contextlib.suppress(OSError):  # the file system may be back at the next beat
                os.utime(self.path)


os.register_at_fork(after_in_child=RunLock.become_child)


def _mark(holder: Holder) -> str:
    """Return what says whose a file is, though nothing could be written into it."""
    place = f"{holder.host} {holder.boot_id} {holder.pid_ns}"  # process numbers mean something there only
    return f"{hashlib.sha256(place.encode()).hexdigest()[:12]}-{holder.pid}-{holder.started}"


def _is_of_the_dead(name: str) -> bool:
    """Say whether a file was made by a process of this host that is gone, or by this one, which makes none now."""
    place, _, rest = name.removeprefix(f"{layout.LOCK}.").partition("-")
    pid, _, started = rest.rpartition("-")[0].partition("-")
    here = this_holder()
    if not pid.isdecimal() or f"{place}-{here.pid}-{here.started}" != _mark(here):
        return False
    return int(pid) == here.pid or process_start(int(pid)) != started


def _sweep_leftovers(directory: Path) -> None:
    """Remove what jobs left that were killed while they took the lock; others may be of a job that lives."""
    with contextlib.suppress(OSError):  # debris is no reason to fail
        for entry in os.scandir(directory):
            if entry.name.startswith(f"{layout.LOCK}."):
                found = entry.stat(follow_symlinks=False)
                age_s = time.time() - max(found.st_mtime, found.st_ctime)  # a rename sets ctime alone
                holder = read_holder(Path(entry.path))
                is_own = holder is not None and holder.pid == os.getpid() and holder.host == socket.gethostname()
                is_gone = is_own or (holder is not None and is_dead(holder, age_s, LEFTOVER_S))
                if age_s > LEFTOVER_S or is_gone or _is_of_the_dead(entry.name):
                    files.unlink(entry.path)


def describe(directory: str | os.PathLike[str]) -> tuple[Holder, bool] | None:
    """Return who holds a run's lock and whether that holder looks dead; ``None`` if it is free. Independent."""
    path = Path(directory) / layout.LOCK
    holder = read_holder(path)
    if holder is None:
        return None
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return None
    return holder, is_dead(holder, age_s, 600.0)
