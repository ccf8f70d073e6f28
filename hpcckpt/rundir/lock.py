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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcckpt.collective.deadlines import Patience, Waited
from hpcckpt.core.system import Flag, OperatingSystem, PathLike
from hpcckpt.core.tensors import is_text
from hpcckpt.errors import (
    ForkedError,
    HpcckptError,
    LockedError,
    LockLostError,
    OptionError,
    StorageError,
    from_os_error,
    from_read_error,
    printable,
)
from hpcckpt.format import layout
from hpcckpt.native.posix_files import REAL

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


def this_holder(system: OperatingSystem = REAL) -> Holder:
    """Return what this process writes into a lock."""
    job_id = next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), "")
    this = system.processes
    pid = this.pid()
    names = (this.boot_id(), this.started(pid), job_id, layout.new_nonce(), this.pid_namespace(), this.machine_id())
    return Holder(this.host(), pid, *names)


def read_holder(path: Path, system: OperatingSystem = REAL) -> Holder | None:
    """Return who holds the lock at `path`; ``None`` if it is free or the file is not valid."""
    try:
        return _read_holder(path, system)
    except OSError:
        return None


def _read_holder(path: Path, system: OperatingSystem) -> Holder | None:
    """Do the same, but raise what keeps the file from being read: that does not prove that the lock is free."""
    try:
        document: dict[str, Any] = json.loads(system.files.read_bounded(os.fspath(path), 65536))
        holder = Holder(**{name: document[name] for name in Holder.__dataclass_fields__ if name in document})
    except (
        FileNotFoundError,
        ValueError,
        TypeError,
        RecursionError,
    ):  # a field is missing; old versions have no pid_ns
        return None
    names = (getattr(holder, name) for name in Holder.__dataclass_fields__ if name != "pid")
    return holder if type(holder.pid) is int and all(map(_is_name, names)) else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value and is_text(value)


Verdict = Literal["alive", "dead", "suspect"]
"""What can be said of a holder at once; a suspect's heartbeat has to be watched."""


def judge(holder: Holder, age_s: float, expiry_s: float, system: OperatingSystem = REAL) -> Verdict:
    """Return what can be said of a holder whose heartbeat is `age_s` old by this machine's clock. Independent."""
    this = system.processes
    boot, namespace = this.boot_id(), this.pid_namespace()
    if holder.host == this.host() and holder.boot_id and boot and namespace:
        is_other = bool(holder.machine_id) and holder.machine_id != this.machine_id()
        if holder.boot_id == boot and holder.pid_ns in {namespace, ""} and not is_other:
            return "alive" if this.started(holder.pid) == holder.started else "dead"
        if holder.boot_id != boot:
            return "suspect"
    return "suspect" if age_s > expiry_s else "alive"


def is_dead(holder: Holder, age_s: float, expiry_s: float, system: OperatingSystem = REAL) -> bool:
    """Return True if a holder is dead, or a suspect whose heartbeat has been silent for two beats. Independent."""
    verdict = judge(holder, age_s, expiry_s, system)
    return verdict == "dead" or (verdict == "suspect" and age_s > N_BEATS * HEARTBEAT_S)


class _SuspectError(Exception):
    """The heartbeat of a holder has to be watched."""

    def __init__(self, seen: Seen, holder: Holder | None, age_s: float) -> None:
        super().__init__()
        self.seen, self.holder, self.age_s = seen, holder, age_s


Seen = tuple[Any, ...]
"""A lock file as it was at one moment: a heartbeat changes it."""


def _look(path: Path, system: OperatingSystem) -> Seen | None:
    """Return the lock file as it is now, ``None`` if there is none. Independent.

    It is opened, for an NFS client may keep what `stat` returns for a minute.
    """
    text = b""
    with contextlib.suppress(OSError, HpcckptError):
        text = system.files.read_bounded(os.fspath(path), 65536)
    try:
        found = system.files.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, text


def longest_watch_s() -> float:
    """Return for how long the lock of another machine is watched before it is taken over. Independent."""
    return N_BEATS * HEARTBEAT_S


def _watch(path: Path, suspect: _SuspectError, beat_s: float, system: OperatingSystem) -> Seen | None:
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
    clock = system.clock
    end, waited = clock.monotonic() + watch_s, Waited(Patience(), clock)
    while clock.monotonic() < end:
        clock.sleep(min(1.0, watch_s / 20))
        if waited.is_log_due():
            _log.warning("hpcckpt: watching the lock of %s for %.0f s", path.parent, waited.total)
        now = _look(path, system)
        if now is None:
            return None
        if now != suspect.seen:
            raise LockedError(
                f"{path.parent} is in use by {read_holder(path, system) or suspect.holder}: its heartbeat was seen to "
                "change; wait for it, stop it, or choose another directory"
            )
    _log.warning("hpcckpt: the lock of %s is taken over from %s", path.parent, suspect.holder or "an unknown job")
    return suspect.seen


class _HeldLocks:
    """The locks that this process holds, by directory."""

    def __init__(self, system: OperatingSystem) -> None:
        self.guard = system.executor.lock()
        self.locks: dict[str, RunLock] = {}

    @classmethod
    def of(cls, system: OperatingSystem) -> _HeldLocks:
        """Return those of a process; a forked child has none, and its own guard."""
        return system.shared((cls,), lambda: cls(system))


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
    system : OperatingSystem
        Where the directory is, and this process.

    Notes
    -----
    Within one process the lock is shared by all checkpointers of the directory.
    """

    def __init__(
        self, directory: PathLike, expiry_s: float = 600.0, beat_s: float | None = None, system: OperatingSystem = REAL
    ) -> None:
        self.system = system
        self.path = Path(directory) / layout.LOCK
        self.expiry_s = expiry_s
        self.beat_s = HEARTBEAT_S if beat_s is None else beat_s
        self.holder = this_holder(system)
        self._users = 0
        self._stop = system.executor.flag()
        self._is_taken = False

    @classmethod
    def take(
        cls, directory: PathLike, expiry_s: float = 600.0, beat_s: float | None = None, system: OperatingSystem = REAL
    ) -> RunLock:
        """Take the lock, or share it with another user in this process. Root only.

        Where the holder cannot be seen from here, this lasts two beats, which is logged.

        Raises
        ------
        LockedError
            If another job holds it, which is named.
        OptionError
            If it is the directory of a step: written into, its path would mean another checkpoint.
        StorageError
            If the directory cannot be written.
        """
        key, held = system.files.real_path(directory), _HeldLocks.of(system)
        _refuse_step(directory, Path(key), system)
        silent: Seen | None = None
        while True:
            try:
                with held.guard:
                    lock = held.locks.get(key)
                    if lock is None:
                        lock = cls(key, expiry_s, beat_s, system)
                        lock._acquire(silent)
                        held.locks[key] = lock
                    lock._users += 1
                    return lock
            except _SuspectError as suspect:
                silent = _watch(Path(key) / layout.LOCK, suspect, HEARTBEAT_S if beat_s is None else beat_s, system)

    def release(self) -> None:
        """Release the lock; the last user of the process removes the file. Root only."""
        held = _HeldLocks.of(self.system)
        with held.guard:
            self._users -= 1
            if self._users > 0:
                return
            if held.locks.get(str(self.path.parent)) is self:
                held.locks.pop(str(self.path.parent))
            self._stop.set()
            with contextlib.suppress(OSError):  # it expires: a job that is done must not fail over this
                if self.is_mine():
                    self.system.files.unlink(self.path)

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
        if self.holder.pid != self.system.processes.pid():
            return False  # a forked child has a copy of the lock that its parent holds
        try:
            return _read_holder(self.path, self.system) == self.holder
        except OSError as error:
            raise from_read_error(error, "read the run's lock") from error

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
        pid = self.system.processes.pid()
        if self.holder.pid != pid:
            raise ForkedError(
                f"{self.path} is held by process {self.holder.pid}, and this is process {pid}, forked from it; "
                "create a new Checkpointer here, with another directory"
            )

    def _lost(self) -> LockLostError:
        directory, holder = self.path.parent, read_holder(self.path, self.system)
        if holder is not None:
            cause = f"{self.path} is now held by {holder}: this job was taken for dead"
            return LockLostError(f"{cause}; nothing was committed, stop one of the two jobs")
        if self.system.files.is_dir(directory):
            return LockLostError(f"{self.path} was removed or damaged; nothing was committed, save again")
        return LockLostError(
            f"{directory} was removed or renamed while this job used it; nothing was committed: restore its name, or "
            "restart the job"
        )

    def reclaim(self) -> bool:
        """Take the lock again if it was lost and the other job has ended; return True if it was lost. Root only.

        The other job may have swept staging directories: nothing that was begun before may be committed (see `check`).

        Raises
        ------
        LockLostError
            If the other job still holds it.
        """
        self._check_process()
        silent: Seen | None = None
        while True:
            try:
                with _HeldLocks.of(self.system).guard:
                    return self._reclaim(silent)
            except _SuspectError as suspect:
                try:
                    silent = _watch(self.path, suspect, self.beat_s, self.system)
                except LockedError as error:
                    raise self._lost() from error

    def _reclaim(self, silent: Seen | None) -> bool:
        if self.is_mine():
            return False
        if not self.system.files.is_dir(self.path.parent):
            raise self._lost()
        before = self.holder, self._stop
        self.holder, self._stop = this_holder(self.system), self.system.executor.flag()
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
        beat = self.system.executor.thread(
            self._beat, self.holder, self._stop, name="hpcckpt-heartbeat", is_daemon=True
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
        _sweep_leftovers(self.path.parent, self.system)

    def _link_or_take_over(self, silent: Seen | None) -> None:
        for n_left in reversed(range(5)):
            if self._link():
                return
            seen, holder, age_s = _look(self.path, self.system), _read_holder(self.path, self.system), self._age_s()
            verdict = "suspect" if holder is None else judge(holder, age_s, self.expiry_s, self.system)
            if verdict == "dead" or (verdict == "suspect" and seen is not None and seen == silent):
                self._remove_stale(holder)
            elif seen is None or (holder is None and age_s < 10.0 and n_left > 0):
                self.system.clock.sleep(0.05)  # another job is just releasing it or taking it
            elif verdict == "suspect":
                raise _SuspectError(seen, holder, age_s)
            else:
                raise LockedError(
                    f"{self.path.parent} is in use by {holder} ({_age_text(age_s)}); "
                    f"wait for it, stop it, or choose another directory{self._expiry_text(holder)}"
                )
        raise LockedError(f"{self.path.parent}: other jobs keep taking the lock; try again later")

    def _link(self) -> bool:
        """Link a finished lock file to its name; return True if the name was free."""
        files = self.system.files
        draft = self.path.with_name(f"{layout.LOCK}.{_mark(self.holder)}-{self.holder.nonce}")
        try:
            files.write_file(draft, self._text())
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
            self.system.files.write_file(self.path, self._text(), is_new=True)
        except FileExistsError:
            return False
        return True

    def _text(self) -> bytes:
        return json.dumps({name: getattr(self.holder, name) for name in Holder.__dataclass_fields__}).encode()

    def _remove_stale(self, holder: Holder | None) -> None:
        """Move a dead holder's lock away; put it back if it is that of another job by now."""
        files = self.system.files
        grave = self.path.with_name(f".lock.dead-{layout.new_nonce()}")
        try:
            files.rename(self.path, grave)
        except FileNotFoundError:
            return
        try:
            is_stale = _read_holder(grave, self.system) == holder
        except OSError:
            is_stale = False
        if not is_stale:
            # A third job has it, and the second will notice; or has swept it.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                files.link(grave, self.path)
        files.unlink(grave)

    def _expiry_text(self, holder: Holder | None) -> str:
        """Say when the lock of a node that died may be taken; this node's own is free as soon as its process ends."""
        if holder is None or holder.host == self.system.processes.host():
            return ""
        return f"; if that node died, the lock can be taken {self.expiry_s:.0f} s after its last heartbeat"

    def _age_s(self) -> float:
        try:
            return self.system.clock.time() - self.system.files.lstat(self.path).st_mtime
        except OSError:
            return 0.0

    def _beat(self, holder: Holder, stop: Flag) -> None:
        while not stop.wait(self.beat_s):
            if not self._is_taken:
                continue  # a heartbeat would make the lock of a dead job look alive
            if read_holder(self.path, self.system) not in (holder, None):
                return
            with contextlib.suppress(OSError):  # the file system may be back at the next beat
                self.system.files.touch(self.path)


def _age_text(age_s: float) -> str:
    if age_s < -1.0:
        return f"heartbeat {-age_s:.0f} s in the future: a clock is wrong; if no job runs, remove {layout.LOCK}"
    return f"heartbeat {max(age_s, 0.0):.0f} s ago"


def _mark(holder: Holder) -> str:
    """Return a part of a file name that identifies a process, for a file that may be empty."""
    host = f"{holder.host} {holder.boot_id} {holder.pid_ns}"  # where process numbers are unique
    return f"{hashlib.sha256(host.encode()).hexdigest()[:12]}-{holder.pid}-{holder.started}"


def _is_of_dead_process(name: str, system: OperatingSystem) -> bool:
    """Return True if a file was made by a process of this host that is gone, or by this one, which makes none now."""
    host, _, rest = name.removeprefix(f"{layout.LOCK}.").partition("-")
    pid, _, started = rest.rpartition("-")[0].partition("-")
    here = this_holder(system)
    if not pid.isdecimal() or f"{host}-{here.pid}-{here.started}" != _mark(here):
        return False
    return int(pid) == here.pid or system.processes.started(int(pid)) != started


def _refuse_step(given: PathLike, whole: Path, system: OperatingSystem) -> None:
    if layout.parse_step(whole.name) is not None and system.files.exists(whole / layout.MANIFEST):
        raise OptionError(
            f"{os.fspath(given)} is the directory of one step: give that of the run, {whole.parent}, or another one"
        )


def _sweep_leftovers(directory: Path, system: OperatingSystem) -> None:
    """Remove what jobs left that were killed while they took the lock; others may be of a job that runs."""
    files, this = system.files, system.processes
    with contextlib.suppress(OSError):  # leftovers are no reason to fail
        for name in files.names(directory):
            if name.startswith(f"{layout.LOCK}."):
                path = directory / name
                found = files.lstat(path)
                age_s = system.clock.time() - max(found.st_mtime, found.st_ctime)  # a rename sets ctime alone
                holder = read_holder(path, system)
                is_own = holder is not None and holder.pid == this.pid() and holder.host == this.host()
                is_gone = is_own or (holder is not None and is_dead(holder, age_s, LEFTOVER_S, system))
                if age_s > LEFTOVER_S or is_gone or _is_of_dead_process(name, system):
                    files.unlink(path)


def describe(directory: PathLike, system: OperatingSystem = REAL) -> tuple[Holder, bool] | None:
    """Return who holds a run's lock, and True if that holder looks dead; ``None`` if it is free. Independent."""
    path = Path(directory) / layout.LOCK
    holder = read_holder(path, system)
    if holder is None:
        return None
    try:
        age_s = system.clock.time() - system.files.stat(path).st_mtime
    except OSError:
        return None
    return holder, is_dead(holder, age_s, 600.0, system)
