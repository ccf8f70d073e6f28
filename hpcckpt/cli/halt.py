"""``hpcckpt halt``: ask a running job to save and to stop, or cancel that."""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.errors import CorruptError, HpcckptError, OptionError, StepNotFoundError
from hpcckpt.format import layout


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was asked for; its fields are the keys of ``--json``."""

    directory: str
    file: str
    asked: str | None
    after_step: int | None
    at: float | None
    cancelled: bool
    before: str | None
    writing: str
    newest_step: int | None
    listening: bool


@click.command("halt")
@options.directory_argument
@click.option("--after-step", type=click.IntRange(0, layout.MAX_STEP), metavar="N", help="Stop after step N.")
@click.option(
    "--at", "moment", metavar="TIME", help="Stop at 18:30, 2026-12-01T08:00, in +90m, or at seconds since 1970."
)
@click.option("--cancel", "is_cancelling", is_flag=True, help="Cancel the request.")
@options.json_option
@options.quiet_option
def command(
    directory: Path, after_step: int | None, moment: str | None, *, is_cancelling: bool, is_json: bool, is_quiet: bool
) -> int:
    """Ask a running job to save and to stop.

    It writes a file HALT into the run directory. The job looks for it every few seconds, saves, exits with 75, and
    renames the file. Without an option it stops after the next batch. Only a job that watches for the file stops:
    hpcckpt train, Keras callbacks with save_before_preemption=, preemption.watch. If no job is known to watch, the file
    is written nevertheless, and the exit code is 6.
    """
    from hpcckpt.preemption.halt import explain_no_directory

    if not directory.is_dir():
        raise StepNotFoundError(explain_no_directory(directory))
    options.existing_run(directory)
    if sum((after_step is not None, moment is not None, is_cancelling)) > 1:
        raise click.UsageError("--after-step, --at and --cancel exclude one another")
    before = _present_request(directory)
    if is_cancelling:
        done = _cancel(directory, before)
    else:
        done = _ask(directory, before, after_step, None if moment is None else read_moment(moment, time.time()))
    if is_json:
        output.write_json(asdict(done))
    else:
        _write_result(done, is_quiet=is_quiet)
    return ExitCode.OK if done.cancelled or done.listening else ExitCode.PARTLY_DONE


def read_moment(text: str, now: float) -> float:
    """Return the moment that ``--at`` means, as seconds since 1970. Pure.

    Raises
    ------
    OptionError
        If it is not understood, or past.
    """
    from hpcckpt.core.durations import LATEST_S, coming_s, duration_s, moment_text

    text = text.strip()
    if text.startswith("+"):
        at = now + duration_s(text[1:])
        if at >= LATEST_S:  # the job could not read it
            raise OptionError(f"--at: {text!r} is after the year 2999")
        return at
    clock = _clock(text)
    if clock is not None:
        here = datetime.fromtimestamp(now)  # noqa: DTZ006 - a local clock, which may be changed before that time
        then = here.replace(hour=clock[0], minute=clock[1], second=0, microsecond=0)
        return at if (at := coming_s(then.isoformat(), now)) > now else (then + timedelta(days=1)).timestamp()
    at = coming_s(text, now)
    if at <= now:
        raise OptionError(f"--at: {moment_text(at)} is past; leave it out to stop now")
    return at


def _clock(text: str) -> tuple[int, int] | None:
    hours, _, minutes = text.partition(":")
    is_clock = all(part.isascii() and part.isdigit() and len(part) == 2 for part in (hours, minutes))
    return (int(hours), int(minutes)) if is_clock and int(hours) < 24 and int(minutes) < 60 else None


def _places(directory: Path) -> list[Path]:
    """Return where a request may be: the run directory, and those of its cycles, to which it is copied."""
    from hpcckpt.tools.report.run_dirs import cycles_of

    return [directory, *(part.path for part in cycles_of(directory))]


def _present_request(directory: Path) -> str | None:
    """Return the present request; None if there is none."""
    from hpcckpt.preemption.halt import read_halt

    for place in _places(directory):
        try:
            found = read_halt(place)
        except (OptionError, CorruptError):
            return "something that is not understood"
        if found is not None:
            return str(found) or "now"
    return None


def _cancel(directory: Path, before: str | None) -> _Outcome:
    from hpcckpt.preemption.halt import remove_halt

    if not sum(remove_halt(place) for place in _places(directory)):  # all of them, not only the first
        raise StepNotFoundError(f"{directory}: no job is asked to stop, or it has stopped already")
    return _outcome(directory, before, cancelled=True)


def _ask(directory: Path, before: str | None, after_step: int | None, at: float | None) -> _Outcome:
    from hpcckpt.preemption.halt import Halt, remove_halt, write_halt

    for place in _places(directory)[1:]:
        remove_halt(place)  # an older request that was handed on: the new one counts
    halt = Halt(after_step, at)
    write_halt(directory, halt, remark=f"{_who()}, {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}: hpcckpt halt")
    return _outcome(directory, before, asked=str(halt) or "now", after_step=after_step, at=at)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container without a user of this number
        name = "somebody"
    return "".join(letter if letter.isprintable() else "?" for letter in f"{name}@{socket.gethostname()}")


def _outcome(
    directory: Path,
    before: str | None,
    *,
    asked: str | None = None,
    after_step: int | None = None,
    at: float | None = None,
    cancelled: bool = False,
) -> _Outcome:
    from hpcckpt.cli.summary import holder_of
    from hpcckpt.rundir import discovery

    places = _places(directory)
    holders = [holder for place in places if (holder := holder_of(place))]
    newest = [step for place in places for step in discovery.step_numbers(place)[-1:]]
    file = str(directory / layout.HALT)
    writing, step = "".join(holders[-1:]), newest[-1] if newest else None
    is_watching = any(holder_of(place) and _is_listening(place) for place in places)
    return _Outcome(str(directory), file, asked, after_step, at, cancelled, before, writing, step, is_watching)


def _is_listening(place: Path) -> bool:
    """Return True if the last job of a run recorded in the journal that it checks for HALT."""
    from hpcckpt.rundir.journal import read_journal

    is_listening = False
    try:
        for entry in read_journal(place):
            if entry["event"] in {"start", "listening"}:
                is_listening = entry.get("halt") is True
    except HpcckptError:
        return False
    return is_listening


def _write_result(done: _Outcome, *, is_quiet: bool) -> None:
    if done.cancelled:
        output.write_line(f"{done.file}: the request to stop is cancelled: {done.before}")
        return
    output.write_line(f"{done.file}: {_sentence(done)}")
    if done.before is not None:
        output.log(f"it replaces: {done.before}", is_quiet=is_quiet)
    if done.after_step is not None and done.newest_step is not None and done.newest_step >= done.after_step:
        who = "the job" if done.writing else "a job that looks for HALT"
        output.log(f"step {done.newest_step} exists already: {who} stops at once", is_quiet=is_quiet)
    if not done.writing:
        output.log(
            "no job is writing here now: the next one that looks for HALT will save and stop, unless you --cancel",
            is_quiet=is_quiet,
        )
    elif not done.listening:
        output.log(
            "this job is not known to look for HALT (see --help): it continues, and the next one that looks for it "
            "will save and stop, unless you --cancel",
            is_quiet=is_quiet,
        )


def _sentence(done: _Outcome) -> str:
    who = f" ({done.writing})" if done.writing else ""
    if done.after_step is not None:
        return f"the job{who} is asked to save and stop after step {done.after_step}"
    if done.at is not None:
        when = datetime.fromtimestamp(done.at).astimezone()
        return f"the job{who} is asked to save and stop at {when:%Y-%m-%d %H:%M:%S %z}"
    return f"the job{who} is asked to save and stop now"
