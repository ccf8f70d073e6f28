"""Moves files aside for a run that goes back or starts again: nothing is ever deleted. Root only."""

from __future__ import annotations

import os
from pathlib import Path

from hpcckpt import native, tiers
from hpcckpt.core import files
from hpcckpt.errors import from_os_error
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.train.run.run_directory import CONFIG, ENVIRONMENT, LOG, METRICS
from hpcckpt.train.run.run_state import RunState


def go_back(state: RunState, index: int, step: int) -> list[Path]:
    """Move aside everything after a step of a cycle: newer steps, its last weights, later cycles. Root only.

    The newest goes first: if this is interrupted, the run can still resume from its newest step. Steps that are on
    scratch only are ignored from then on.
    """
    moved: list[Path] = []
    for later in range(len(state.cycles) - 1, index, -1):
        moved += _move_aside(state.path(later))
    moved += _move_aside(state.final(index))
    path = state.path(index)
    tiers.disown(path)
    newer = [number for number in step_numbers(path) if number > step]
    if newer:
        with RunLock.take(path), Workspace.at(path).commit_mutex:
            moved += [_step_aside(path, number) for number in reversed(newer)]
    return moved


def reopen(state: RunState, index: int) -> list[Path]:
    """Move the last weights of a cycle aside: it is not complete then, whatever becomes of its training. Root only."""
    return _move_aside(state.final(index))


def move_run(state: RunState) -> list[Path]:
    """Move aside all that there is of a run. Root only."""
    moved: list[Path] = []
    for index in reversed(range(len(state.cycles))):
        moved += _move_aside(state.path(index))
    documents = state.directory.move_aside([CONFIG, ENVIRONMENT, LOG, METRICS])
    return [*moved, *([documents] if documents is not None else [])]


def _move_aside(path: Path) -> list[Path]:
    """Give a directory another name beside it, if it is there."""
    if not os.path.lexists(path):
        return []
    return [_rename(path, path.with_name(f".aside-{path.name}-{layout.new_nonce()}"))]


def _step_aside(directory: Path, step: int) -> Path:
    return _rename(directory / layout.step_dirname(step), directory / layout.aside_dirname(step, layout.new_nonce()))


def _rename(path: Path, target: Path) -> Path:
    try:
        files.rename(path, target)
        native.fsync_dir(str(path.parent))
    except OSError as error:
        raise from_os_error(error, "move aside") from error
    return target
