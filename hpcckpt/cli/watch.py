"""``hpcckpt watch``: a run as it goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.discovery import Manifests
from hpcckpt.errors import OptionError, StepNotFoundError


@click.command("watch")
@options.directory_argument
@click.option("--every", "every_s", type=click.FloatRange(min=0.1, max=3600), default=2.0, show_default=True,
              metavar="SECONDS", help="How often to look.")  # fmt: skip
@click.option("--once", "is_once", is_flag=True, help="Show the run as it is now, and end.")
@click.option("--until-end", "is_until_end", is_flag=True, help="End when the job has ended, with 1 if it died.")
@options.json_option
def command(directory: Path, every_s: float, *, is_once: bool, is_until_end: bool, is_json: bool) -> int:
    """Show a run as it goes on.

    Its last saves, its speed, when the next save is due, the metrics, who writes. On a terminal one view is kept up to
    date; elsewhere a line is printed for each thing that happens, with --json one JSON document a line for each look.
    A directory that does not exist yet is waited for, unless --once is given. Ctrl-C ends this
    command, with exit code 130, and does not affect the job: the command only reads.
    """
    if is_once or directory.exists():
        options.existing(directory)
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
    from hpcckpt.reporting.reading import read_story

    manifests: dict[Path, Manifests] = {}
    is_waiting = False
    while True:
        try:
            yield read_story(directory, manifests=manifests)
        except (StepNotFoundError, OSError):  # not there yet, or moved away, or a file system that does not answer
            if is_once:
                raise
            if not is_waiting:
                is_waiting = True
                what = "nothing is saved there yet" if directory.is_dir() else "does not exist yet"
                output.say(f"{directory}: {what}; waiting")
        time.sleep(every_s)


def _frame(story: Any) -> Any:
    from hpcckpt.preemption.walltime import find_job_end
    from hpcckpt.reporting.frames import frame_of

    try:
        found = find_job_end().end if _is_in_job(story) else None
    except OptionError:
        found = None
    return frame_of(story, time.time(), found.at if found else None)


def _is_in_job(story: Any) -> bool:
    """Say whether this command runs within the job that it watches: only then the environment tells of that job."""
    from hpcckpt.journal import this_job

    own = this_job()["job"]
    return bool(own) and bool(story.jobs) and story.jobs[-1].job == own


def _show_once(story: Any, *, is_json: bool) -> None:
    from hpcckpt.reporting.frames import lines_of

    frame = _frame(story)
    if is_json:
        output.write_json(asdict(frame))
    else:
        output.write_fields(lines_of(frame))


def _is_over(frame: Any, *, is_until_end: bool) -> bool:
    return is_until_end and frame.state not in {"running", "unknown"}


def _end(frame: Any) -> int:
    """Report how the job ended, and return the exit code."""
    output.say(frame.state_words)
    return ExitCode.ERROR if frame.state == "died" else ExitCode.OK


def _print_json(looks: Iterator[Any], *, is_until_end: bool) -> int:
    for story in looks:
        frame = _frame(story)
        click.echo(json.dumps(output.plain(frame)))
        output.flush_stdout()
        if _is_over(frame, is_until_end=is_until_end):
            return _end(frame)
    return ExitCode.OK


def _print_news(looks: Iterator[Any], *, is_until_end: bool) -> int:
    from hpcckpt.reporting.frames import news

    before = None
    for story in looks:
        frame = _frame(story)
        if before is None:
            _show_once(story, is_json=False)
        else:
            for line in news(before, story):
                output.write_line(line)
        output.flush_stdout()
        before = story
        if _is_over(frame, is_until_end=is_until_end):
            return _end(frame)
    return ExitCode.OK


def _live(looks: Iterator[Any], *, is_until_end: bool) -> int:
    from rich.console import Console
    from rich.live import Live

    from hpcckpt.reporting.frames import panel_of

    with Live(console=Console(markup=False, emoji=False), auto_refresh=False) as live:
        for story in looks:
            frame = _frame(story)
            live.update(panel_of(frame), refresh=True)
            if _is_over(frame, is_until_end=is_until_end):
                return _end(frame)
    return ExitCode.OK
