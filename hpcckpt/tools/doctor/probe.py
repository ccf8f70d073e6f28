"""Asking without importing: package metadata, binaries, and short child processes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

_LAUNCHER = (
    "OMPI_APP_CTX", "OMPI_COMM", "OMPI_FILE_LOCATION", "OMPI_FIRST_RANKS", "OMPI_MCA_ess", "OMPI_MCA_orte_",
    "OMPI_MCA_pmix", "OMPI_NUM_APP", "OMPI_UNIVERSE", "PMI", "SLURM_", "PALS_", "ALPS_",
    "MPI_LOCAL", "HYDRA_", "I_MPI_HYDRA",
)  # fmt: skip
"""What launchers set for each process; other settings for MPI, of a site's modules or of users, are kept."""
_RULE = re.compile(r"^-{20,}$", re.MULTILINE)
TIMEOUT_S = 30.0


def version_of(*distributions: str) -> tuple[str, str] | None:
    """Return name and version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def version_key(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to compare it with others."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def package_folder(name: str) -> Path | None:
    """Return where a top-level package lies, without importing it."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))


def ask_python(code: str) -> dict[str, Any]:
    """Run code in another Python process, outside any MPI job; return the JSON it prints, or ``{"error": …}``."""
    return _read(run([sys.executable, "-c", code]))


def _read(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON of the last line that a process printed, or what it complained of. Pure."""
    try:
        found = json.loads(answer.stdout.strip().splitlines()[-1]) if answer.returncode == 0 else None
    except (ValueError, IndexError):
        found = None
    if isinstance(found, dict):
        return found
    return {"error": _complaint(answer.stderr)}


def _complaint(text: str) -> str:
    """Return what a process complained of: Python ends with the cause, Open MPI begins with it between rules. Pure."""
    between_rules = _RULE.split(text)[1:2]
    if between_rules and "Traceback (most recent call last)" not in text:
        return shorten(" ".join(between_rules[0].split()), 250)
    return (text.strip().splitlines() or ["no answer"])[-1]


class Question:
    """Code that runs in another Python process while this one does other things; made by `asking`.

    Parameters
    ----------
    process : subprocess.Popen
        The other process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self, deadline: float) -> dict[str, Any]:
        """Return the JSON that it prints until a time of the monotonic clock, or ``{"error": …}``. Independent."""
        try:
            out, err = self._process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return {"error": "no answer in time"}
        return _read(subprocess.CompletedProcess([], self._process.returncode, out, err))


@contextlib.contextmanager
def asking(code: str) -> Iterator[Question]:
    """Run code in another Python process, outside any MPI job, which ends with the block. Independent."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        yield Question(process)
    finally:
        process.kill()
        process.communicate()


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that should be short, with nothing of a launcher in its environment; never raise."""
    try:
        return subprocess.run(
            command, env=_environment(), capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {TIMEOUT_S:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}


def linked_libraries(binary: Path, pattern: str) -> list[str]:
    """Return the shared libraries that an ELF file names and whose names match a pattern."""
    try:
        content = binary.read_bytes()
    except OSError:
        return []
    names = re.findall(rb"\0(lib[A-Za-z0-9_+-]{1,60}\.so[.\d]{0,12})(?=\0)", content)
    return sorted({text for name in names if re.search(pattern, text := name.decode())})
