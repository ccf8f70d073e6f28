"""Whose checkpoints stand in a directory that a configuration names: those of one run, which is written down there.

``DIR/run-directory.json``  the run whose checkpoints are in ``DIR/cycle-1``, ``DIR/cycle-2``, …; it may be moved
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.atomic import atomic_path
from hpcckpt.discovery import step_numbers
from hpcckpt.errors import CorruptError, from_os_error
from hpcckpt.train.problems import ConfigError, Problem
from hpcckpt.train.run_directory import RunDirectory
from hpcckpt.train.run_state import RunState

OWNER = "run-directory.json"
_REMEDY = "give each run a directory of its own"


def check(state: RunState) -> None:
    """Refuse directories with checkpoints that are not this run's. Root only.

    Raises
    ------
    ConfigError
        Naming each of them.
    """
    problems = list(_problems(state))
    if problems:
        raise ConfigError.of(problems)


def claim(state: RunState) -> None:
    """Write down whose checkpoints stand in the directories that a run names. Root only.

    Raises
    ------
    OptionError
        If another run has just done so.
    """
    for root in dict.fromkeys(cycle.checkpoint.directory for cycle in state.wanted):
        if root is not None:
            _claim(Path(root), _real(state.directory.path))


def _problems(state: RunState) -> Iterator[Problem]:
    run = state.directory.path
    if steps := step_numbers(run):  # ours are in the directories of cycles
        yield Problem("run directory", f"{run} holds checkpoints of another program, up to step {max(steps)}", _REMEDY)
    for cycle in state.wanted:
        root, where = cycle.checkpoint.directory, f"[{cycle.index}].checkpoint.directory"
        owner = None if root is None else _owner(Path(root))
        path = state.directory.cycle(cycle.index, root)
        if owner is not None and owner != _real(state.directory.path) and os.path.isdir(owner):
            yield Problem(where, f"{root} is for the checkpoints of the run in {owner}", _REMEDY)
        elif _is_strange(state, cycle.index, path):
            yield Problem(where, f"{path} holds checkpoints that are not of this run", _REMEDY)


def _is_strange(state: RunState, index: int, path: Path) -> bool:
    """Say whether checkpoints stand where a run that is there has put none."""
    if state.before is None or (state.has_trained(index) and state.path(index) == path):
        return False
    return bool(step_numbers(path) or step_numbers(path / "final"))


def _owner(root: Path) -> str | None:
    """Return the run directory that is written down in a directory; ``None`` if none is."""
    document = RunDirectory(root).read(OWNER)
    if document is None:
        return None
    owner = document.get("run_directory") if isinstance(document, dict) else None
    if not isinstance(owner, str):
        raise CorruptError(f"{root / OWNER} names no run directory; mend it, or choose another directory")
    return owner


def _claim(root: Path, run: str) -> None:
    owner = _owner(root)
    if owner == run:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, "make directory of checkpoints") from error
    with atomic_path(root / OWNER, is_overwriting=owner is not None) as temporary:
        temporary.write_text(json.dumps({"run_directory": run}) + "\n", encoding="utf-8")


def _real(path: Path) -> str:
    return os.path.realpath(path)
