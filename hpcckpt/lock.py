"""The lock of a run directory: one writing job at a time.

The lock is a small JSON file.  It is taken by linking a finished file to its name, so it is never
seen half written, and held with a heartbeat (its modification time).  It is taken over if

a. the holder ran on this machine, in this boot and PID namespace, and there is no such process; or
b. its host has the name of this one and another boot, and its heartbeat is seen not to change for two beats; or
c. it is older than `expiry_s`, by this machine's clock, and its heartbeat is seen not to change for two beats.

Host names and clocks prove nothing on their own: two machines may have one name, and a clock may be wrong.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcckpt import files, layout
from hpcckpt.collective.deadlines import Patience, Waited
from hpcckpt.discovery import read_bounded
from hpcckpt.errors import ForkedError, HpcckptError, LockedError, LockLostError, StorageError, from_os_error, printable

_log = logging.getLogger("hpcckpt")
HEARTBEAT_S = 30.0
N_BEATS = 2
"""For how many beats a heartbeat must not change before it counts as stopped."""
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
    machine_id: str = ""

    def __str__(self) -> str:
        job = f", job {self.job_id}" if self.job_id else ""
        return printable(f"process {self.pid} on {self.host}{job}")


def boot_id() -> str:
    """Return the identity of this boot of this host; "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_id() -> str:
    """Return the identity of this installation of the system; "" if there is none."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
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
    names = (boot_id(), process_start(pid), job_id, layout.new_nonce(), pid_namespace(), machine_id())
    return Holder(socket.gethostname(), pid, *names)


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


Verdict = Literal["alive", "dead", "suspect"]
"""What can be said of a holder at once; a suspect's heartbeat has to be watched."""


def judge(holder: Holder, age_s: float, expiry_s: float) -> Verdict:
    """Return what can be said of a holder whose heartbeat is `age_s` old by this machine's clock. Independent."""
    boot, namespace = boot_id(), pid_namespace()
    if holder.host == socket.gethostname() and holder.boot_id and boot and namespace:
        is_other = bool(holder.machine_id) and holder.machine_id != machine_id()
        if holder.boot_id == boot and holder.pid_ns in {namespace, ""} and not is_other:
            return "alive" if process_start(holder.pid) == holder.started else "dead"
        if holder.boot_id != boot:
            return "suspect"
    return "suspect" if age_s > expiry_s else "alive"


def is_dead(holder: Holder, age_s: float, expiry_s: float) -> bool:
    """Return True if a holder is dead, or a suspect whose heartbeat has been silent for two beats. Independent."""
    verdict = judge(holder, age_s, expiry_s)
    return verdict == "dead" or (verdict == "suspect" and age_s > N_BEATS * HEARTBEAT_S)


class _SuspectError(Exception):
    """The heartbeat of a holder has to be watched."""

    def __init__(self, seen: Seen, holder: Holder | None, age_s: float) -> None:
        super().__init__()
        self.seen, self.holder, self.age_s = seen, holder, age_s


Seen = tuple[Any, ...]
"""A lock file as it was at one moment: a heartbeat changes it."""


def _look(path: Path) -> Seen | None:
    """Return the lock file as it is now, ``None`` if there is none. Independent.

    It is opened, for an NFS client may keep what `stat` returns for a minute.
    """
    text = b""
    with contextlib.suppress(OSError, HpcckptError):
        text = read_bounded(os.fspath(path), 65536)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, text


def _watch(path: Path, suspect: _SuspectError, beat_s: float) -> Seen | None:
    """Wait for two beats, and return the lock file if it has not changed; ``None`` if it is gone. Independent.

    Raises
    ------
    LockedError
        If it has: the holder lives.
    """
    watch_s = N_BEATS * beat_s
    _log.warning(
        "hpcckpt: the lock of %s is held by %s (heartbeat %.0f s ago), which cannot be seen from here: "
        "watching for %.0f s whether its heartbeat has stopped",
        path.parent, suspect.holder or "a file that names no job", suspect.age_s, watch_s,
    )  # fmt: skip
    end, waited = time.monotonic() + watch_s, Waited(Patience())
    while time.monotonic() < end:
        time.sleep(min(1.0, watch_s / 20))
        if waited.is_log_due():
            _log.warning("hpcckpt: watching the lock of %s for %.0f s", path.parent, waited.total)
        now = _look(path)
        if now is None:
            return None
        if now != suspect.seen:
            raise LockedError(
                f"{path.parent} is in use by {read_holder(path) or suspect.holder}: its heartbeat was seen to change; "
                "wait for it, stop it, or choose another directory"
            )
    _log.warning("hpcckpt: the lock of %s is taken over from %s", path.parent, suspect.holder or "an unknown job")
    return suspect.seen


class RunLock:
    """The lock of one run directory; root takes it before its first change.

    Parameters
    ----------
    directory : path_like
        The run directory, which exists.
    expiry_s : float
        Seconds of silence after which the heartbeat of another machine's holder is watched.
    beat_s : float, optional
        Seconds from one beat to the next; 30 by default.

    Notes
    -----
    Within one process the lock is shared by all checkpointers of the directory.
    """

    _held: dict[str, RunLock] = {}  # noqa: RUF012 - one table per process
    _guard = threading.Lock()

    def __init__(self, directory: str | os.PathLike[str], expiry_s: float = 600.0, beat_s: float | None = None) -> None:
        self.path = Path(directory) / layout.LOCK
        self.expiry_s = expiry_s
        self.beat_s = HEARTBEAT_S if beat_s is None else beat_s
        self.holder = this_holder()
        self._users = 0
        self._stop = threading.Event()
        self._is_taken = False

    @classmethod
    def become_child(cls) -> None:
        """Forget the locks of the parent in a forked child; one of its threads may have held the guard. Independent."""
        cls._held = {}
        cls._guard = threading.Lock()

    @classmethod
    def take(cls, directory: str | os.PathLike[str], expiry_s: float = 600.0, beat_s: float | None = None) -> RunLock:
        """Take the lock, or share it with another user in this process. Root only.

        Where the holder cannot be seen from here, this lasts two beats, which is logged.

        Raises
        ------
        LockedError
            If another job holds it; says which.
        StorageError
            If the directory cannot be written.
        """
        key = os.path.realpath(directory)
        silent: Seen | None = None
        while True:
            try:
                with cls._guard:
                    lock = cls._held.get(key)
                    if lock is None:
                        lock = cls(key, expiry_s, beat_s)
                        lock._acquire(silent)
                        cls._held[key] = lock
                    lock._users += 1
                    return lock
            except _SuspectError as suspect:
                silent = _watch(Path(key) / layout.LOCK, suspect, HEARTBEAT_S if beat_s is None else beat_s)

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
        silent: Seen | None = None
        while True:
            try:
                with self._guard:
                    return self._reclaim(silent)
            except _SuspectError as suspect:
                try:
                    silent = _watch(self.path, suspect, self.beat_s)
                except LockedError as error:
                    raise self._lost() from error

    def _reclaim(self, silent: Seen | None) -> bool:
        if self.is_mine():
            return False
        before = self.holder, self._stop
        self.holder, self._stop = this_holder(), threading.Event()
        try:
            self._acquire(silent)
        except BaseException as error:
            self.holder, self._stop = before
            if isinstance(error, LockedError):
                raise self._lost() from error
            raise
        before[1].set()
        return True

    def _acquire(self, silent: Seen | None = None) -> None:
        """Take the lock; one whose file is `silent` too, for its heartbeat was watched. Root only."""
        self._is_taken = False
        beat = threading.Thread(
            target=self._beat, args=(self.holder, self._stop), name="hpcckpt-heartbeat", daemon=True
        )
        try:
            beat.start()  # first, for once the lock has its name nothing may fail any more
            self._link_or_take_over(silent)
            self._is_taken = True
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

    def _link_or_take_over(self, silent: Seen | None) -> None:
        for n_left in reversed(range(5)):
            if self._link():
                return
            seen, holder, age_s = _look(self.path), _read_holder(self.path), self._age_s()
            verdict = "suspect" if holder is None else judge(holder, age_s, self.expiry_s)
            if verdict == "dead" or (verdict == "suspect" and seen is not None and seen == silent):
                self._remove_stale(holder)
            elif seen is None or (holder is None and age_s < 10.0 and n_left > 0):
                time.sleep(0.05)  # another job is just giving it back or taking it
            elif verdict == "suspect":
                raise _SuspectError(seen, holder, age_s)
            else:
                raise LockedError(
                    f"{self.path.parent} is in use by {holder} ({_age_text(age_s)}); "
                    "wait for it, stop it, or choose another directory"
                )
        raise LockedError(f"{self.path.parent}: other jobs keep taking the lock; try again later")

    def _link(self) -> bool:
        """Put a finished lock file under its name; say whether the name was free."""
        draft = self.path.with_name(f"{layout.LOCK}.{_mark(self.holder)}-{self.holder.nonce}")
        try:
            draft.write_text(self._text(), encoding="utf-8")
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
        while not stop.wait(self.beat_s):
            if not self._is_taken:
                continue  # a heartbeat would make the lock of a dead job look alive
            if read_holder(self.path) not in (holder, None):
                return
            with contextlib.suppress(OSError):  # the file system may be back at the next beat
                os.utime(self.path)


os.register_at_fork(after_in_child=RunLock.become_child)


def _age_text(age_s: float) -> str:
    if age_s < -1.0:
        return f"heartbeat {-age_s:.0f} s in the future: a clock is wrong; if no job runs, remove {layout.LOCK}"
    return f"heartbeat {max(age_s, 0.0):.0f} s ago"


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
