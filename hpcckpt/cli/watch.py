"""``hpcckpt watch``: a run in progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import FiniteRange
from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.rundir.discovery import Manifests


@click.command("watch")
@options.directory_argument
@click.option("--every", "every_s", type=FiniteRange(min=0.1, max=3600), default=2.0, show_default=True,
              metavar="SECONDS", help="How often to look.")  # fmt: skip
@click.option("--once", "is_once", is_flag=True, help="Show the run as it is now, and end.")
@click.option("--until-end", "is_until_end", is_flag=True, help="End when the job has ended, with 1 if it died.")
@options.json_option
def command(directory: Path, every_s: float, *, is_once: bool, is_until_end: bool, is_json: bool) -> int:
    """Show a run in progress.

    Its last saves, its speed, when the next save is due, the metrics, who writes. On a terminal one view is kept up to
    date; elsewhere a line is printed for each thing that happens, with --json one JSON document a line for each look.
    A directory that does not exist yet is waited for, unless --once is given. Ctrl-C ends this
    command, with exit code 130, and does not affect the job: the command only reads.
    """
    if is_once or directory.exists():
        options.existing_run(directory)
    looks = _looks(directory, every_s, is_once=is_once)
    show = _live if output.is_fancy(sys.stdout) else _print_news
    try:
        if is_once:
            _show_once(next(looks), is_json=is_json)
            return ExitCode.OK
        return (_print_json if is_json else show)(looks, is_until_end=is_until_end)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _looks(directory: Path, every_s: float, *, is_once: bool) -> Iterator[Any]:
    """Look at the run again and again, and wait for one that has saved nothing yet."""
    from hpcckpt.tools.report.read_history import read_run_history

    manifests: dict[Path, Manifests] = {}
    is_waiting = False
    while True:
        try:
            yield read_run_history(directory, manifests=manifests)
        except (StepNotFoundError, OSError):  # not there yet, or moved away, or a file system that does not answer
            if is_once:
                raise
            if not is_waiting:
                is_waiting = True
                what = "nothing is saved there yet" if directory.is_dir() else "does not exist yet"
                output.log(f"{directory}: {what}; waiting")
        time.sleep(every_s)


def _frame(history: Any) -> Any:
    from hpcckpt.preemption.walltime import find_job_end
    from hpcckpt.tools.report.watch_view import frame_of

    try:
        found = find_job_end().end if _is_in_job(history) else None
    except OptionError:
        found = None
    return frame_of(history, time.time(), found.at if found else None)


def _is_in_job(history: Any) -> bool:
    """Return True if this command runs within the job that it watches, so the environment describes that job."""
    from hpcckpt.rundir.journal import this_job

    own = this_job()["job"]
    return bool(own) and bool(history.jobs) and history.jobs[-1].job == own


def _show_once(history: Any, *, is_json: bool) -> None:
    from hpcckpt.tools.report.watch_view import lines_of

    frame = _frame(history)
    if is_json:
        _print_frame(frame)
    else:
        output.write_fields(lines_of(frame))


def _print_frame(frame: Any) -> None:
    """Print a JSON document on one line."""
    click.echo(json.dumps(output.plain(frame)))


def _is_over(frame: Any, *, is_until_end: bool) -> bool:
    return is_until_end and frame.state not in {"running", "unknown"}


def _end(frame: Any) -> int:
    """Report how the job ended, and return the exit code."""
    output.log(frame.state_words)
    return ExitCode.ERROR if frame.state == "died" else ExitCode.OK


def _print_json(looks: Iterator[Any], *, is_until_end: bool) -> int:
    for history in looks:
        frame = _frame(history)
        _print_frame(frame)
        output.flush_stdout()
        if _is_over(frame, is_until_end=is_until_end):
            return _end(frame)
    return ExitCode.OK


def _print_news(looks: Iterator[Any], *, is_until_end: bool) -> int:
    from hpcckpt.tools.report.watch_view import news

    before = None
    for history in looks:
        frame = _frame(history)
        if before is None:
            _show_once(history, is_json=False)
        else:
            for line in news(before, history):
                output.write_line(line)
        output.flush_stdout()
        before = history
        if _is_over(frame, is_until_end=is_until_end):
            return _end(frame)
    return ExitCode.OK


def _live(looks: Iterator[Any], *, is_until_end: bool) -> int:
    from rich.console import Console
    from rich.live import Live

    from hpcckpt.tools.report.watch_view import panel_of

    with Live(console=Console(markup=False, emoji=False), auto_refresh=False) as live:
        for history in looks:
            frame = _frame(history)
            live.update(panel_of(frame), refresh=True)
            if _is_over(frame, is_until_end=is_until_end):
                return _end(frame)
    return ExitCode.OK
