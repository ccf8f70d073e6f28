"""``hpcckpt list DIRECTORY --runs``: the runs below a directory, one a line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.cli import options, output, summary
from hpcckpt.cli.output import Column
from hpcckpt.cli.text import count_text, time_text, zone_text
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import HpcckptError, StepNotFoundError
from hpcckpt.rundir import discovery, journal
from hpcckpt.tools.report import run_dirs

MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run; its fields are the keys of ``--json``."""

    directory: str
    n_steps: int
    resume_step: int | None
    created: str
    nbytes: int
    writing: str
    problem: str


def show(directory: Path, *, is_json: bool, is_quiet: bool) -> None:
    """Write the runs of a directory.

    Raises
    ------
    StepNotFoundError
        If there is none.
    """
    runs = [line_of(path) for path in find_runs(options.existing(directory, "a directory that holds runs"))]
    if not runs:
        raise StepNotFoundError(f"no run in {directory}, nor in {MAX_DEPTH} levels of directories below it")
    if is_json:
        output.write_json({"directory": directory, "runs": runs})
        return
    columns = [
        Column("RUN"),
        Column("STEPS", is_number=True),
        Column("RESTART", is_number=True),
        Column(f"SAVED ({zone_text()})"),
        Column("SIZE", is_number=True),
        Column("STATE"),
    ]
    output.write_table(columns, [_cells(run) for run in runs])
    total = nbytes_text(sum(run.nbytes for run in runs))
    output.log("\n".join([*_problems(runs), f"{count_text(len(runs), 'run')}, {total} in total"]), is_quiet=is_quiet)


def find_runs(directory: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Yield the directories that hold steps or a journal, the directory itself first, then by name. Independent."""
    try:
        is_run = (directory / journal.NAME).is_file() or bool(discovery.step_numbers(directory))
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except (HpcckptError, OSError):  # a directory that is not readable, or was removed meanwhile
        return
    if is_run:
        yield directory
        return
    cycles = [part.path for part in run_dirs.cycles_of(directory)]
    for path in dict.fromkeys([*cycles, *(directory / name for name in names)]):
        if depth > 0 and run_dirs.is_own_directory(path):
            yield from find_runs(path, depth - 1)


def line_of(directory: Path) -> RunLine:
    """Return what is shown of a run. Independent."""
    try:
        run = summary.summarize(directory, None)
    except (HpcckptError, OSError) as error:
        return RunLine(str(directory), 0, None, "", 0, "", str(error))
    steps = [row for row in run.checkpoints if row.committed]
    created = next((row.created for row in steps if row.step == run.resume_step), "")
    problem = "nothing to resume from" if steps and run.resume_step is None else ""
    return RunLine(
        str(directory), len(steps), run.resume_step, created, run.nbytes, summary.holder_of(directory), problem
    )


def _cells(run: RunLine) -> list[str]:
    state = "problem" if run.problem else "running" if run.writing else "-"
    when = time_text(run.created, has_zone=False) if run.created else "-"
    step = "-" if run.resume_step is None else str(run.resume_step)
    return [run.directory, str(run.n_steps), step, when, nbytes_text(run.nbytes), state]


def _problems(runs: Sequence[RunLine]) -> Iterator[str]:
    for run in runs:
        if run.problem:
            yield f"{run.directory}: {run.problem}; see '{command_line('list', run.directory)}'"
