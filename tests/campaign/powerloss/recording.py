"""Run a scenario under the recorder, and read what it did."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcckpt
from tests.campaign.powerloss.trace import Trace, build_trace

HERE = Path(__file__).parent
SOURCES = Path(hpcckpt.__file__).parents[1]
"""Where the job imports hpcckpt from: from where we do."""
MEMORY = Path("/dev/shm")


def reason_to_skip() -> str:
    """Say why nothing can be recorded here, or ""."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        return "needs Linux and a C compiler"
    return "" if os.access(MEMORY, os.W_OK) else f"needs {MEMORY}"


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Make a directory in memory, for the time of a ``with`` block."""
    where = Path(tempfile.mkdtemp(prefix="powerloss-", dir=MEMORY))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A scenario's trace, what was promised before it began, and the tree it really left.

    Attributes
    ----------
    run : str
        The run directory, below the directory that was watched.
    """

    name: str
    run: str
    trace: Trace
    earlier: list[str]
    after: Any


@functools.cache
def recorder() -> Path:
    """Compile the recorder, once in each process."""
    library = Path(tempfile.mkdtemp(prefix="powerloss-recorder-")) / "recorder.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, HERE / "recorder.c"], check=True)
    return library


@functools.cache
def record(name: str) -> Recording:
    """Run a scenario, once in each process, and return what it did."""
    with memory_directory() as where:
        disk, output = where / "disk", where / "output"
        disk.mkdir()
        output.mkdir()
        environment = os.environ | {"LD_PRELOAD": str(recorder()), "PYTHONPATH": str(SOURCES)}
        if name == "without-exchange":
            environment["POWERLOSS_NO_EXCHANGE"] = "1"
        command = [sys.executable, str(HERE / "scenarios.py"), name, str(disk), str(output)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        before, earlier = pickle.loads((output / "before").read_bytes())
        trace = build_trace(before, (output / "log").read_bytes())
        after = pickle.loads((output / "after").read_bytes())
    return Recording(name, "deep/run" if name == "first" else "run", trace, earlier, after)
