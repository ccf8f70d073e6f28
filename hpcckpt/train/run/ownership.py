"""The owner of a directory of checkpoints that a configuration names: one run, which is recorded there.

``DIR/run-directory.json``  the run whose checkpoints are in ``DIR/cycle-1``, ``DIR/cycle-2``, …; it may be moved
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.errors import CorruptError, from_os_error
from hpcckpt.rundir.atomic_files import atomic_path
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError
from hpcckpt.train.run.run_directory import TrainingDirectory
from hpcckpt.train.run.run_state import RunState

OWNER = "run-directory.json"
_REMEDY = "give each run its own directory"


def check(state: RunState) -> None:
    """Raise if a directory has checkpoints of another run. Root only.

    Raises
    ------
    TrainConfigError
        Naming each of them.
    """
    problems = list(_problems(state))
    if problems:
        raise TrainConfigError.of(problems)


def claim(state: RunState) -> None:
    """Record this run as owner of the checkpoints in the directories that it names. Root only.

    Raises
    ------
    OptionError
        If another run has just done this.
    """
    for root in dict.fromkeys(cycle.checkpoint.directory for cycle in state.wanted):
        if root is not None:
            _claim(Path(root), _real(state.directory.path))


def _problems(state: RunState) -> Iterator[ConfigProblem]:
    run = state.directory.path
    if steps := step_numbers(run):  # ours are in the directories of cycles
        yield ConfigProblem(
            "run directory", f"{run} holds checkpoints of another program, up to step {max(steps)}", _REMEDY
        )
    for cycle in state.wanted:
        root, where = cycle.checkpoint.directory, f"[{cycle.index}].checkpoint.directory"
        owner = None if root is None else _owner(Path(root))
        path = state.directory.cycle(cycle.index, root)
        if owner is not None and owner != _real(state.directory.path) and os.path.isdir(owner):
            yield ConfigProblem(where, f"{root} is for the checkpoints of the run in {owner}", _REMEDY)
        elif _is_strange(state, cycle.index, path):
            yield ConfigProblem(where, f"{path} holds checkpoints that are not of this run", _REMEDY)


def _is_strange(state: RunState, index: int, path: Path) -> bool:
    """Return True if a directory has checkpoints that this run has not saved."""
    if state.before is None or (state.has_trained(index) and state.path(index) == path):
        return False
    return bool(step_numbers(path) or step_numbers(path / "final"))


def _owner(root: Path) -> str | None:
    """Return the run directory recorded in a directory; ``None`` if there is none."""
    document = TrainingDirectory(root).read(OWNER)
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
    with atomic_path(root / OWNER, is_overwriting=owner is not None, follows_links=False) as temporary:
        temporary.write_text(json.dumps({"run_directory": run}) + "\n", encoding="utf-8")


def _real(path: Path) -> str:
    return os.path.realpath(path)
