"""Starting programs under a real mpirun, with a time-out behind each."""

from __future__ import annotations

import atexit
import errno
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.paths import TESTS
from tests.support.programs import python_path

PROGRAMS = TESTS / "mpi"
_LAUNCHER_VARIABLES = (
    "OMPI_COMM",
    "OMPI_UNIVERSE",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte",
    "PMI",
    "OPAL",
    "ORTE",
    "PRTE",
    "SLURM_",
)
_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_odls_base_sigkill_timeout": "0",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

_PLACE = "OMPI_MCA_orte_tmpdir_base"

TIMED_OUT = errno.ETIMEDOUT
"""What mpirun returns where its time limit has ended a job."""
LIMIT_S = 180.0
"""After which a job hangs: many times what it takes, for the machine may have much else to do."""
ENDING_S = 60.0
"""How long a launcher may take to end a job, and its processes to be gone."""
LAUNCHER_S = 5.0
"""How often it is checked whether a launcher is still there though its ranks are gone."""
_APART = 'exec "$@" 2>>"$0"'
"""Has a rank write its errors into a file: what it says right before it is ended, the launcher may not pass on."""


class Finished(NamedTuple):
    """How a program under mpirun ended."""

    code: int
    out: str
    err: str

    def lines(self, word: str) -> list[Any]:
        """Return the JSON values that programs print as ``WORD {…}``, a line each, or joined by mpirun."""
        starts = re.finditer(rf"(?:^|(?<=[\]}}])){re.escape(word)} ", self.out, re.MULTILINE)
        return [json.JSONDecoder().raw_decode(self.out, start.end())[0] for start in starts]


def find_mpirun() -> str | None:
    """Return the launcher: $MPIRUN, the environment's own, or the system's."""
    own = Path(sys.executable).parent / "mpirun"
    return os.environ.get("MPIRUN") or (str(own) if own.exists() else shutil.which("mpirun"))


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without what a launcher has put there, and with what tests on one small host need."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_VARIABLES)}
    return {**kept, **_SETTINGS, _PLACE: _own_place(), **more, "PYTHONPATH": python_path(more.get("PYTHONPATH"))}


@functools.cache
def _own_place() -> str:
    """Return where launchers of this process keep their files: one that ends takes away what another would use."""
    inherited = os.environ.get(_PLACE)
    if inherited:
        return inherited
    place = tempfile.mkdtemp(prefix="hpcckpt-mpi-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def run_python(*args: str, timeout_s: float = LIMIT_S, **env: str) -> Finished:
    """Run Python in one process, without a launcher."""
    return _run([sys.executable, *args], clean_environment(**env), timeout_s)


def _command(n_ranks: int, program: Sequence[str]) -> list[str]:
    launcher = find_mpirun()
    assert launcher is not None
    return [launcher, "-n", str(n_ranks), *program]


def mpirun(n_ranks: int, *args: str, timeout_s: float = LIMIT_S, **env: str) -> Finished:
    """Run Python on `n_ranks` ranks; a job that hangs is ended and fails the test."""
    environment = clean_environment(MPIEXEC_TIMEOUT=str(int(timeout_s)), **env)
    with tempfile.NamedTemporaryFile("r", dir=_own_place(), errors="replace", encoding="utf-8") as said:
        program = ["/bin/sh", "-c", _APART, said.name, sys.executable, *args]
        ended = _run(_command(n_ranks, program), environment, timeout_s + ENDING_S, is_launcher=True)
        ended = ended._replace(err=ended.err + said.read())
    is_hung = ended.code == TIMED_OUT or "time limit for job execution" in ended.err + ended.out
    assert not is_hung, f"hung for {timeout_s} s\n{ended.err}"
    return ended


def run_program(n_ranks: int, name: str, arguments: Any, timeout_s: float = LIMIT_S, **env: str) -> Finished:
    """Run a program of tests/mpi on `n_ranks` ranks, its arguments as JSON."""
    return mpirun(n_ranks, *_program(name, arguments), timeout_s=timeout_s, **env)


def _program(name: str, arguments: Any) -> list[str]:
    return [str(PROGRAMS / f"{name}.py"), json.dumps(arguments)]


@contextmanager
def started(n_ranks: int, name: str, arguments: Any, timeout_s: float = LIMIT_S) -> Iterator[subprocess.Popen[str]]:
    """Start a program of tests/mpi, for a test that acts while it runs; end it with the block."""
    environment = clean_environment(MPIEXEC_TIMEOUT=str(int(timeout_s)))
    with _start(_command(n_ranks, [sys.executable, *_program(name, arguments)]), environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                _end(process)


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )


def _run(command: list[str], environment: dict[str, str], timeout_s: float, *, is_launcher: bool = False) -> Finished:
    with _start(command, environment) as process:
        try:
            out, err = _communicate(process, timeout_s) if is_launcher else process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            out, err = _end(process)
            raise AssertionError(f"no end after {timeout_s} s: {' '.join(command)}\n{out}\n{err}") from None
    _wait_for_session(process.pid)
    return Finished(process.returncode, out, err)


def _communicate(process: subprocess.Popen[str], timeout_s: float) -> tuple[str, str]:
    """Wait for a launcher; kill one whose ranks are gone and that does not end.

    mpirun of Open MPI 4.1 sometimes locks up in ``PMIx_server_finalize`` after ranks have ended without MPI_Finalize.
    """
    end, n_alone = time.monotonic() + timeout_s, 0
    while n_alone < 3:
        try:
            return process.communicate(timeout=min(LAUNCHER_S, timeout_s))
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                raise
        n_alone = n_alone + 1 if _session_of(process.pid) == [process.pid] else 0
    process.kill()
    return process.communicate(timeout=ENDING_S / 2)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ask the launcher to end its ranks; then end what is left of its session."""
    process.terminate()
    try:
        return process.communicate(timeout=ENDING_S / 2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=ENDING_S / 2)


def _wait_for_session(leader: int) -> None:
    """Wait until all that a launcher started is gone: it kills ranks, but does not wait for them on a busy machine."""
    deadline = time.monotonic() + ENDING_S
    while left := _session_of(leader):
        if time.monotonic() > deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.005)


def _session_of(leader: int) -> list[int]:
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_running(pid, leader)]


def is_running(pid: int, session: int | None = None) -> bool:
    """Return True if a process (of a session, if given) has a running thread; the first may end before others."""
    place = Path("/proc", str(pid))
    try:
        state, _, _, own, *_ = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        is_meant = session is None or int(own) == session
        return is_meant and (state not in {"Z", "X"} or len(os.listdir(place / "task")) > 1)
    except OSError:  # it has ended
        return False
