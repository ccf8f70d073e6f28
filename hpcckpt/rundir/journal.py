"""The journal of a run, ``RUN/journal.jsonl``: what happened there, one JSON object a line, for the operator's tools.

It is a side file: nothing that restores, keeps or removes a step reads it, and losing it costs nothing but its
history.  Root alone writes it, and only while it holds the run's lock, so that reading a run leaves no
trace.  Lines go to its end whole, each with what came before it in one ``write``, and are not synced; readers
skip a line that a crash has cut.  What happens before the first save ends is kept in memory until then.

The file is bounded: beyond `MAX_NBYTES` the older half of its lines is dropped, but not those by which readers know
the last job.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import math
import os
import stat
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcckpt._version import __version__
from hpcckpt.core.system import OperatingSystem, PathLike
from hpcckpt.errors import CollectiveError, Failure, HpcckptError, as_failure, from_read_error
from hpcckpt.format import layout
from hpcckpt.native.posix_files import REAL
from hpcckpt.rundir.workspace import Workspace

NAME = "journal.jsonl"
SWITCH = "HPCCKPT_JOURNAL"
MAX_NBYTES = 4 << 20
MAX_READ_NBYTES = 2 * MAX_NBYTES
MAX_LINE_NBYTES = 16 << 10
MAX_TEXT = 500
MAX_METRICS = 64
MAX_WAITING = 200
SCHEDULERS = {"SLURM_JOB_ID": "slurm", "PBS_JOBID": "pbs", "COBALT_JOBID": "cobalt", "LSB_JOBID": "lsf"}

_log = logging.getLogger("hpcckpt")


class Journal:
    """Writes the journal of a run. Root only; on other ranks it writes nothing.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    is_writing : bool
        Whether this is root. The variable ``HPCCKPT_JOURNAL=off`` silences root too.
    by : str
        What changes the run without being a job of it, such as ``prune``: it neither begins nor ends, and writes
        nothing where no job has begun a journal.
    system : OperatingSystem
        Where the directory is, and this process.
    """

    def __init__(
        self, directory: Path, *, is_writing: bool = True, by: str = "", system: OperatingSystem = REAL
    ) -> None:
        self.path = directory / NAME
        self._is_writing = is_writing and os.environ.get(SWITCH, "").lower() not in {"0", "off", "no", "false"}
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._system = system
        self._by = {"by": by} if by else {}
        self._is_begun = bool(by)
        self._is_warned = False
        self._made = system.clock.time()
        self._pid = system.processes.pid()

    @functools.cached_property
    def _guard(self) -> contextlib.AbstractContextManager[Any]:
        """Held while lines are written: one that another journal appends while the older half is dropped is lost."""
        return Workspace.at(self.path.parent, self._system).journal_mutex

    # -- what happened ---------------------------------------------------------------------------

    def begin(self, *, n_ranks: int, backend: str) -> None:
        """Record that a job begins to write in the run, once. Root only, under the lock."""
        if self._is_begun:
            return
        self._is_begun = True
        facts = {"time": self._made, **this_job(self._system), "n_ranks": n_ranks, "backend": backend}
        self._note("start", facts, is_first=True)

    def saved(self, saved: Any, content: Any, job: Any) -> None:
        """Record a committed step: a `SavedStep`, its `Content` and its `SaveJob`. Root only."""
        facts = {
            "step": saved.step,
            "epoch": epoch_of(content.objects),
            "bytes": saved.nbytes,
            "linked_bytes": saved.linked_nbytes,
            "files": saved.files,
            "stall_seconds": saved.stall_seconds,
            "seconds": saved.seconds,
            "bytes_per_second": saved.nbytes / max(saved.seconds, 1e-9),
            "kept": saved.kept,
            "n_ranks": job.n_ranks,
            "level": content.level,
            "save_id": job.save_id,
            "metrics": dict(list(content.metrics.items())[:MAX_METRICS]),
        }
        self._note("saved", {**facts, "warnings": list(saved.warnings)} if saved.warnings else facts, is_step=True)

    def drained(self, step: int, seconds: float, scratch: Path) -> None:
        """Record that a step was drained to the run directory, `seconds` after its save began. Root only."""
        self._note("drained", {"step": step, "seconds": seconds, "from": str(scratch)})

    def failed(self, step: int | None, phase: str, failures: Mapping[int, Failure]) -> None:
        """Record a save that failed, with the failures by rank. Root only."""
        first = min(failures)
        kind, text = failures[first].kind, failures[first].text
        ranks = sorted(failures)[:16]
        facts = {"step": step, "phase": phase, "kind": kind, "message": text, "ranks": ranks}
        self._note("failed", facts, is_step=True)  # also of the first save: else nothing in the run would show it

    def failed_by(self, step: Any, phase: str, error: HpcckptError) -> None:
        """Record a save that ended by an error; a step that is not a number is left out. Root only."""
        failures = {0: as_failure(error)}
        if isinstance(error, CollectiveError) and error.failures:
            failures = {rank: Failure(error.kinds[rank], text) for rank, text in error.failures.items()}
            phase = error.phase.rpartition(": ")[2] or phase
        self.failed(step if isinstance(step, int) else None, phase, failures)

    def restored(self, restored: Any, n_ranks: int, skipped: Sequence[str]) -> None:
        """Record a restore: a `Restored`, the number of ranks, and which steps were skipped. Root only."""
        facts = {
            "step": restored.step,
            "from": str(restored.path),
            "ranks_before": restored.n_ranks,
            "n_ranks": n_ranks,
            "level": restored.level,
            "seconds": restored.seconds,
            "skipped": len(skipped),
        }
        self._note("restored", facts)

    def removed(self, steps: Sequence[int]) -> None:
        """Record the steps that retention, or the command that writes this journal, removed. Root only."""
        if steps:
            self._note("removed", {"steps": sorted(steps)[:256], "n_steps": len(steps)})

    def repaired(self, step: int, save_id: str, nbytes: int) -> None:
        """Record a step whose manifest was rebuilt, or whose name was restored. Root only."""
        self._note("repaired", {"step": step, "save_id": save_id, "bytes": nbytes})

    def resharded(self, step: int, save_id: str, nbytes: int, n_ranks: int) -> None:
        """Record a step that was written into other files, as another save. Root only."""
        self._note("resharded", {"step": step, "save_id": save_id, "bytes": nbytes, "n_ranks": n_ranks})

    def copied(self, step: int, save_id: str, nbytes: int, source: Path) -> None:
        """Record a step that was copied here from another directory. Root only."""
        self._note("copied", {"step": step, "save_id": save_id, "bytes": nbytes, "from": str(source)})

    def cost(self, step: int, seconds: float) -> None:
        """Record what a save cost the training, slowed batches included; written with the next event. Root only."""
        self._note("cost", {"step": step, "seconds": seconds}, is_later=True)

    def stopped(self, step: int, reason: str) -> None:
        """Record that the job saves and stops, and why. Root only."""
        self._note("halted" if reason.startswith(layout.HALT) else "preempted", {"step": step, "reason": reason})

    def listening(self, *, halt: bool) -> None:
        """Record whether the job checks for the file ``HALT`` from now on. Root only."""
        self._note("listening", {"halt": halt})

    def end(self, error: str = "", exit_code: int | None = None, message: str = "") -> None:
        """Record that the job has finished with the run; `error` is what ended it. Root only, under the lock."""
        if self._is_begun:
            facts = {"error": error, "exit_code": exit_code, "message": message or None}
            self._note("end", facts if error else {})
            self._is_begun = False

    # -- how it is written -----------------------------------------------------------------------

    def _note(
        self,
        event: str,
        facts: Mapping[str, Any],
        *,
        is_first: bool = False,
        is_step: bool = False,
        is_later: bool = False,
    ) -> None:
        """Write a line, after those that wait; or let it wait too, as long as nothing may be written yet."""
        system = self._system
        is_child = system.processes.pid() != self._pid  # a forked child writes nothing into its parent's
        if not self._is_writing or is_child:
            return
        line = _line({"time": system.clock.time(), "event": event, **facts, **self._by})
        with self._guard:
            self._waiting.appendleft(line) if is_first else self._waiting.append(line)
            if is_later or not self._is_begun or not (is_step or system.files.exists(self.path)):
                return
            lines = b"".join(self._waiting)
            self._waiting.clear()
            try:
                self._append(lines)
            except OSError as error:
                self._warn(error)

    def _append(self, lines: bytes) -> None:
        files = self._system.files
        fd = files.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = files.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not an ordinary file")
            nbytes = found.st_size
            if nbytes and files.read_at(fd, 1, nbytes - 1) != b"\n":  # a crash cut the last line: it stays alone
                lines = b"\n" + lines
            files.write_whole(fd, lines)
            if nbytes + len(lines) > MAX_NBYTES:
                self._drop_older_half(fd)
        finally:
            files.close(fd)

    def _drop_older_half(self, fd: int) -> None:
        """Keep the newer lines, and what the older ones record of the last job itself.

        The file is whole before and after, and may be far larger than it should be.
        """
        files, nbytes = self._system.files, MAX_READ_NBYTES
        text = files.read_at(fd, nbytes, max(0, files.fstat(fd).st_size - nbytes))
        half = max(0, len(text) - MAX_NBYTES // 2)
        cut = half + text[half:].find(b"\n") + 1
        draft = self.path.with_name(f".{NAME}.draft")
        files.unlink(draft)  # of a job that was killed here, or anything else of this name
        files.write_file(draft, _about_last_job(text[:cut]) + text[cut:], is_new=True)
        files.rename(draft, self.path)

    def _warn(self, error: OSError) -> None:
        if not self._is_warned:
            self._is_warned = True
            _log.warning("hpcckpt: the journal %s cannot be written (%s); the run continues", self.path, error)


def _about_last_job(text: bytes) -> bytes:
    """Return the last line of each event that concerns the last job as a whole. Pure."""
    found: dict[str, bytes] = {}
    for line in text.split(b"\n"):
        entry = _entry(line)
        if entry is None or entry["event"] not in _OF_A_JOB:
            continue
        if entry["event"] == "start":
            found.clear()
        found[entry["event"]] = line + b"\n"
    return b"".join(found.values())


_OF_A_JOB = frozenset({"start", "restored", "listening", "halted", "preempted", "end"})


def exit_code_of(error: object) -> int | None:
    """Return the exit code of ``sys.exit``; ``None`` of any other error. Pure."""
    if not isinstance(error, SystemExit):
        return None
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def _line(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as one line; one that is far too long goes without its metrics. Pure."""
    line = json.dumps(_plain(entry), separators=(",", ":")).encode("ascii") + b"\n"
    if len(line) <= MAX_LINE_NBYTES:
        return line
    kept = {name: value for name, value in entry.items() if not isinstance(value, Mapping | list)}
    return json.dumps(_plain(kept), separators=(",", ":")).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, short: numbers that it has not, such as NaN, become texts. Pure."""
    if isinstance(value, Mapping):
        return {str(name)[:MAX_TEXT]: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) and abs(value) < 1e8 else _large(value)
    return str(value)[:MAX_TEXT]


def _large(value: float) -> float | str:
    return round(value, 3) if math.isfinite(value) else str(value)


def this_job(system: OperatingSystem = REAL) -> dict[str, Any]:
    """Return what the journal records of a job that begins: host, scheduler, number of restarts. Independent."""
    this = system.processes
    variable = next((name for name in SCHEDULERS if os.environ.get(name)), "")
    restarts = os.environ.get("HPCCKPT_RESTART_COUNT") or os.environ.get("SLURM_RESTART_COUNT", "")
    return {
        "job": os.environ.get(variable, ""),
        "scheduler": SCHEDULERS.get(variable, ""),
        "restart": int(restarts) if restarts.isascii() and restarts.isdigit() and len(restarts) < 10 else None,
        "host": this.host(),
        "pid": this.pid(),
        "born": this.started(this.pid()),
        "version": __version__,
    }


def epoch_of(objects: Mapping[str, Any], depth: int = 4) -> int | None:
    """Return the epoch that the program recorded, if it did: the first object that is called ``epoch``. Pure."""
    for name, value in objects.items():
        if name.rpartition("/")[2] == "epoch" and isinstance(value, int) and not isinstance(value, bool):
            return value
    nested = (value for value in objects.values() if isinstance(value, Mapping) and depth > 1)
    return next((epoch for value in nested if (epoch := epoch_of(value, depth - 1)) is not None), None)


# -- reading -------------------------------------------------------------------------------------


def read_journal(directory: PathLike, system: OperatingSystem = REAL) -> list[dict[str, Any]]:
    """Return the entries of a run's journal, oldest first; raise what `read_lines` does. Independent."""
    return read_lines(os.path.join(directory, NAME), system)


def read_lines(path: PathLike, system: OperatingSystem = REAL) -> list[dict[str, Any]]:
    """Return the entries of a file of JSON lines, of a very large one the last; none if there is none. Independent.

    Lines that are no entries are skipped.

    Raises
    ------
    CorruptError
        If it is no ordinary file.
    StorageError
        If it cannot be read.
    """
    try:
        text = _tail(os.fspath(path), system)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise from_read_error(error, "read the journal") from error
    return [entry for line in text.split(b"\n") if (entry := _entry(line)) is not None]


def _tail(path: str, system: OperatingSystem) -> bytes:
    """Return the last bytes of a file, twice as many as a journal may have."""
    files = system.files
    fd = files.open_regular(path)
    try:
        return files.read_at(fd, MAX_READ_NBYTES, max(0, files.fstat(fd).st_size - MAX_READ_NBYTES))
    finally:
        files.close(fd)


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line; ``None`` if it is cut, or no entry. Pure."""
    if not line or len(line) > 4 * MAX_LINE_NBYTES:
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("event"), str) else None
