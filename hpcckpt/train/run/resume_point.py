"""Where a run starts or resumes, decided on root before anything is built.

Steps::

    1. find which cycles have checkpoints, and which are complete
    2. raise if checkpoints are not this run's
    3. find the requested step: the newest, the best, a number; or the beginning
    4. compare the configurations of the cycles up to there
    5. move aside, never delete, what would conflict: newer steps, later cycles, last weights of a cycle that is trained
       further, or all of a run that starts again
    6. record the owner of checkpoints in directories that the configuration names
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt.errors import HpcckptError, OptionError, StepNotFoundError
from hpcckpt.rundir.discovery import find_step
from hpcckpt.train.config.config_diff import Difference, check, differences
from hpcckpt.train.config.cycles import Cycle
from hpcckpt.train.run import move_aside, ownership
from hpcckpt.train.run.run_directory import CONFIG, TrainingDirectory
from hpcckpt.train.run.run_state import RunState, best_by, read_final

MODES = ("auto", "latest", "best", "never")
_RESUMING = {"latest", "best", "step"}
"""Modes that need a checkpoint."""
REQUEST = "HPCCKPT_REQUEST"
"""The variable with the id of what the user has submitted, which stays the same when a job is requeued."""
ATTEMPT = "HPCCKPT_ATTEMPT"
"""The variable with the id of this start of the job, which is another one whenever the job is started again."""
_STEP = re.compile(r"(?:([1-9][0-9]*):)?([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where the user wants a run to begin.

    Attributes
    ----------
    mode : str
        ``auto``, ``latest``, ``best``, ``never`` or ``step``.
    cycle : int or None
        Number of the cycle of the step, from 1, if that was said.
    step : int
        The step.
    """

    mode: str
    cycle: int | None = None
    step: int = 0

    def __str__(self) -> str:
        if self.mode != "step":
            return self.mode
        return str(self.step) if self.cycle is None else f"{self.cycle}:{self.step}"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run starts or resumes.

    Attributes
    ----------
    is_new : bool
        Whether there was nothing to resume from.
    n_complete : int
        Cycles that are complete, and are not trained again.
    changes : tuple of Difference
        The allowed differences from the run's configuration.
    aside : tuple of str
        What was moved aside.
    """

    is_new: bool = True
    n_complete: int = 0
    changes: tuple[Difference, ...] = ()
    aside: tuple[str, ...] = ()


def parse(resume: str | int) -> Wanted:
    """Return where the user wants a run to begin. Pure.

    Raises
    ------
    OptionError
        If it is none of ``auto``, ``latest``, ``best``, ``never``, ``STEP``, ``CYCLE:STEP``.
    """
    if isinstance(resume, str) and resume in MODES:
        return Wanted(resume)
    found = None if isinstance(resume, bool) else _STEP.fullmatch(str(resume))
    if found is None:
        raise OptionError(f"resume: {resume!r} – one of {', '.join(MODES)}, a step such as 500, or 2:500 of cycle 2")
    return Wanted("step", int(found[1]) if found[1] else None, int(found[2]))


def once(wanted: Wanted, directory: TrainingDirectory, environ: Mapping[str, str] = os.environ) -> Wanted:
    """Return where this job begins: a job that was requeued after it had gone back resumes the newest step. Root only.

    A job that has not come so far is not recorded in the run directory, so it still goes back. So does the same command
    given twice within one start of a job: the user has asked for it again.

    Raises
    ------
    CorruptError
        If what is recorded of earlier jobs cannot be read.
    """
    request = environ.get(REQUEST)
    if not request or wanted.mode in {"auto", "latest"}:
        return wanted
    own, attempt = {"request": request, "resume": str(wanted)}, environ.get(ATTEMPT)
    done = [job for job in directory.jobs() if isinstance(job, dict) and own.items() <= job.items()]
    is_done = any(attempt is None or job.get("attempt") != attempt for job in done)
    newest = "auto" if wanted.mode == "never" else "latest"  # a new run may have no checkpoint yet
    return Wanted(newest) if is_done else wanted


def begin(
    directory: TrainingDirectory,
    cycles: Sequence[Cycle],
    document: list[dict[str, Any]],
    wanted: Wanted,
    *,
    overwrite: bool = False,
    source: str = "",
) -> ResumePoint:
    """Find where a run starts or resumes, and move conflicting files aside. Root only.

    Raises
    ------
    ConfigError
        If the run directory has a run with another configuration, or a directory holds another run's checkpoints.
    StepNotFoundError
        If there is no such step to resume from.
    OptionError
        If the run is to start again, and there is one already; or if its checkpoints have no recorded configuration.
    """
    state = RunState(directory, cycles)  # step 1
    ownership.check(state)  # step 2
    if wanted.mode == "never" or not state.has_run:
        start = _start_again(state, wanted, overwrite=overwrite)
    else:
        start = _resume(state, document, wanted, source)
    ownership.claim(state)  # step 6
    return start


def is_complete(
    directory: TrainingDirectory, cycles: Sequence[Cycle], document: list[dict[str, Any]], wanted: Wanted
) -> bool:
    """Return True if `begin` would find nothing left to train, by this very configuration. Root only.

    Nothing is built or changed for this, so a restarted job that is done can end before TensorFlow is imported.

    Raises
    ------
    HpcckptError
        If the run directory cannot be read.
    """
    if wanted.mode not in {"auto", "latest"}:
        return False
    state = RunState(directory, cycles)
    if state.before is None or not state.begun or any(differences(state.before, document)):
        return False
    return _n_complete(state, state.begun[-1]) == len(cycles)


def check_there(directory: TrainingDirectory, wanted: Wanted) -> None:
    """Raise if a run is to resume and its directory does not exist, before one is made. Root only.

    Raises
    ------
    StepNotFoundError
        If there is none.
    """
    if wanted.mode in _RESUMING and not directory.path.is_dir():
        raise _no_run(directory, wanted)


def _no_run(directory: TrainingDirectory, wanted: Wanted) -> StepNotFoundError:
    return StepNotFoundError(f"resume={str(wanted)!r}: {directory.path} holds no run; use 'auto' to begin one")


def _resume(state: RunState, document: list[dict[str, Any]], wanted: Wanted, source: str) -> ResumePoint:
    """Go on with a run."""
    if state.before is None:
        raise OptionError(
            f"{state.path(state.begun[0])} holds checkpoints, and {state.directory.path} has no {CONFIG} that says of "
            "what; choose another directory, or move them aside with resume='never' and overwrite"
        )
    index, step = _place(state, wanted)  # step 3
    n_begun = index + 1 if state.cycles[index].has_begun else index
    changes = check(state.before, document, n_begun, state.epochs_at(index, step), source)  # step 4
    aside = _clear(state, index, step, changes)  # step 5
    return ResumePoint(False, _n_complete(state, index), tuple(changes), tuple(map(str, aside)))


def _clear(state: RunState, index: int, step: int | None, changes: Sequence[Difference]) -> list[Path]:
    """Move aside what comes after the resume point; after the newest step, what marks the cycle as complete."""
    if step is not None:
        return move_aside.go_back(state, index, step)
    is_reopened = any(change.keys[:2] == (index, "train_loop") for change in changes)
    return move_aside.reopen(state, index) if is_reopened else []


def _start_again(state: RunState, wanted: Wanted, *, overwrite: bool) -> ResumePoint:
    """Start from the beginning."""
    if not state.has_run:
        if wanted.mode in _RESUMING:
            raise _no_run(state.directory, wanted)
        return ResumePoint()
    if not overwrite:
        raise OptionError(
            f"resume='never': there is a run already in {state}; resume with 'auto', choose another run directory, or "
            "move this run aside with overwrite"
        )
    return ResumePoint(aside=tuple(map(str, move_aside.move_run(state))))


def _n_complete(state: RunState, index: int) -> int:
    """Return how many cycles are complete: those before the last that has begun; that one too, if it is at its end.

    It counts for those before that another one went on from them, whatever is left of them in the directory.
    """
    is_complete = state.cycles[index].has_begun and read_final(state.final(index)) is not None
    return index + 1 if is_complete else index


# -- 2: the place ----------------------------------------------------------------------------------


def _place(state: RunState, wanted: Wanted) -> tuple[int, int | None]:
    """Return the cycle to resume, and the step if it is not the newest."""
    begun = state.begun
    if not begun and wanted.mode in _RESUMING:
        raise StepNotFoundError(f"resume={str(wanted)!r}: no checkpoint can be restored in {state}")
    if wanted.mode == "best":
        return _best(state)
    if wanted.mode == "step":
        return _step(state, wanted)
    return (begun[-1] if begun else 0), None


def _best(state: RunState) -> tuple[int, int]:
    """Return the best step of the newest cycle that has a best one: metrics of two cycles cannot be compared."""
    failure: HpcckptError | None = None
    for index in reversed([index for index in state.begun if state.cycles[index].steps]):
        try:
            return index, find_step(state.path(index), "best", best_by(state.monitor(index))).step
        except StepNotFoundError as error:
            failure = failure or error
    raise StepNotFoundError(f"resume='best': {failure or f'no checkpoint in {state}'}")


def _step(state: RunState, wanted: Wanted) -> tuple[int, int]:
    found = [
        index
        for index, cycle in enumerate(state.cycles)
        if wanted.step in cycle.steps and wanted.cycle in {None, index + 1}
    ]
    if len(found) == 1:
        return found[0], wanted.step
    if found:
        names = " or ".join(f"{index + 1}:{wanted.step}" for index in found)
        raise OptionError(f"resume={str(wanted)!r}: several cycles have this step; say {names}")
    there = [f"{index + 1}:{step}" for index, cycle in enumerate(state.cycles) for step in cycle.steps[-4:]]
    raise StepNotFoundError(
        f"resume={str(wanted)!r}: {state.directory.path} has no such step that can be restored; newest of each cycle: "
        f"{', '.join(there) or 'none'}"
    )
