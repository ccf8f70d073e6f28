#!/usr/bin/env python3
"""Run the functional tests, each from its own empty directory, and count.

    run.py [NAME...] [--directory DIR] [--timeout SECONDS]

A functional test is an executable script.  It has passed if it ends with code 0, has printed the line below, and has
left nothing behind in the directory that it was called from.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PASSED = "*********** Passed ***********"
HERE = Path(__file__).resolve().parent
TAIL_LINES = 40
QUIET = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script went: ``problem`` is empty if it has passed."""

    name: str
    seconds: float
    problem: str
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table, and return the exit code."""
    asked = _parser().parse_args(arguments)
    scripts = chosen(asked.directory, asked.names)
    if not scripts:
        print(f"no such functional test in {asked.directory}", file=sys.stderr)
        return 2
    width = max(len(script.name) for script in scripts)
    outcomes = []
    for script in scripts:
        outcome = run(script, asked.timeout)
        outcomes.append(outcome)
        print(f"{outcome.name:<{width}}  {outcome.seconds:6.1f} s  {outcome.problem or 'passed'}", flush=True)
        if outcome.problem:
            print(_tail(outcome.output), file=sys.stderr, flush=True)
    n_failed = sum(bool(outcome.problem) for outcome in outcomes)
    print(f"{len(outcomes) - n_failed} passed, {n_failed} failed")
    return 1 if n_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the functional tests, each from a directory of its own.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which, with or without their ending; default: all")
    parser.add_argument("--directory", type=Path, default=HERE, help="where they are")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="default: %(default)s")
    return parser


def scripts_in(directory: Path) -> list[Path]:
    """Return the functional tests of a directory, by name; what pytest collects is none."""
    found = [path for path in directory.resolve().iterdir() if path.suffix in {".py", ".sh"} and path.is_file()]
    return sorted(path for path in found if not path.name.startswith(("test_", "_", "conftest", "run.py")))


def chosen(directory: Path, names: Sequence[str]) -> list[Path]:
    """Return the tests that are asked for, all of them if none is; nothing if one of them is not there."""
    scripts = scripts_in(directory)
    if not names:
        return scripts
    found = [script for name in names for script in scripts if name in {script.name, script.stem}]
    return found if len(found) == len(names) else []


def run(script: Path, timeout_s: float) -> Outcome:
    """Run one script and judge it."""
    began = time.monotonic()
    if not os.access(script, os.X_OK):
        return Outcome(script.name, 0.0, f"FAILED: not executable: chmod +x {script}", "")
    with tempfile.TemporaryDirectory(prefix="hpcckpt-functional-") as directory:
        code, output = _run_in(Path(directory), script, timeout_s)
        left = sorted(path.name for path in Path(directory).iterdir())
    return Outcome(script.name, time.monotonic() - began, _problem(code, output, left, timeout_s), output)


def _run_in(directory: Path, script: Path, timeout_s: float) -> tuple[int | None, str]:
    """Return a script's exit code, ``None`` if it ran out of time, and what it said."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            [script], cwd=directory, env=QUIET | os.environ, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        said.seek(0)
        return code, said.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what a script has left running, and the script itself if it still runs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _problem(code: int | None, output: str, left: list[str], timeout_s: float) -> str:
    if code is None:
        return f"FAILED: not done after {timeout_s:g} s"
    if code != 0:
        return f"FAILED: exit code {code}"
    if PASSED not in output.splitlines():
        return f"FAILED: did not print {PASSED!r}"
    if left:
        return f"FAILED: left behind where it was called from: {', '.join(left)}"
    return ""


def _tail(output: str) -> str:
    lines = output.splitlines()
    return "\n".join(f"    | {line}" for line in ([] if len(lines) <= TAIL_LINES else ["…"]) + lines[-TAIL_LINES:])


if __name__ == "__main__":
    sys.exit(main())
