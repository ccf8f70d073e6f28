"""Arguments and options that several verbs share, and what they mean."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from hpcckpt.cli import elsewhere, output
from hpcckpt.cli.failures import Declined
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.options import Best, parse_best
from hpcckpt.core.std_streams import write_message
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import CorruptError, HpcckptError, OptionError, StepNotFoundError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import discovery

_SHOWN = 5


def complete_steps(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the steps of the run directory that was given, for completion in a shell."""
    try:
        numbers = discovery.step_numbers(ctx.params.get("directory") or ".")
    except (OSError, HpcckptError):
        numbers = []
    return [word for word in ("latest", "best", *map(str, numbers)) if word.startswith(incomplete)]


directory_argument = click.argument("directory", type=PathType())
step_argument = click.argument("step", required=False, shell_complete=complete_steps)
json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
quiet_option = click.option("-q", "--quiet", "is_quiet", is_flag=True, help="No messages and no progress bar.")
yes_option = click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option(
    "-n", "--dry-run", "is_dry_run", is_flag=True, help="Show what would be done; do nothing."
)
only_option = click.option(
    "--only",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Only tensors with such names: 'model/*'. May be repeated.",
)
metric_option = click.option(
    "--metric", metavar="NAME", help="What 'best' means: val_loss, max:reward. By default val_loss, else loss."
)
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Threads that read."
)


def existing(directory: Path, what: str = "the directory of a run, or of one of its steps") -> Path:
    """Return a directory that exists; `what` is what to give instead.

    Raises
    ------
    StepNotFoundError
        If it does not, or is something else.
    """
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise StepNotFoundError(f"{directory} {problem}: give {what}")
    return directory


def existing_run(directory: Path) -> Path:
    """Return a directory that exists and is not that of one step.

    Raises
    ------
    StepNotFoundError
        If it does not exist, or is something else, or a step.
    """
    whole = existing(directory, "the directory of a run").resolve()
    is_step = layout.parse_step(whole.name) is not None and (whole / layout.DATA).is_dir()
    if is_step or (whole / layout.MANIFEST).is_file():
        raise StepNotFoundError(f"{directory} is the directory of one step: give that of the run, {whole.parent}")
    return directory


def run_to_write(directory: Path) -> Path:
    """Return a directory that is that of a run, or will be.

    Raises
    ------
    StepNotFoundError
        If it is that of a step, whose path would mean another checkpoint when something is written into it.
    """
    return existing_run(directory) if directory.is_dir() else directory


def file_to_write(path: Path, *, is_overwriting: bool = True) -> None:
    """Raise if a file cannot be written, before anything is done that takes long or writes another one.

    Raises
    ------
    UsageError
        If it means the standard output.
    OptionError
        If it exists and may not be overwritten, is no file, or its directory does not exist.
    """
    from hpcckpt.rundir.atomic_files import check_free

    refuse_stdout(path)
    check_free(path, is_overwriting=is_overwriting)


def refuse_stdout(path: Path) -> None:
    """Raise if a file that is written by seeking means the standard output.

    Raises
    ------
    UsageError
        If it does.
    """
    if str(path) == "-":
        raise click.UsageError("'-': this is not written to the standard output; give the name of a file")


def read_metric(text: str | None, option: str = "--metric") -> Best | None:
    """Return what ``--metric``, or another option of its form, means.

    Raises
    ------
    OptionError
        If it names no metric, or no steps.
    """
    try:
        best = parse_best(text)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from None
    if best is not None and best.count < 1:
        raise OptionError(f"{option}: {text!r}: the number of steps, after the last colon, must be at least 1")
    return best


def find(directory: Path, step: str | None, metric: str | None = None) -> discovery.StepInfo:
    """Return the step that the arguments name, a number, ``latest`` or ``best``; warn of newer damaged steps."""
    info = find_silently(directory, step, metric)
    newer = passed_over(directory, step, info)
    for other in newer[-_SHOWN:]:
        problem = other.problem.removeprefix(f"step {other.step}: ")
        output.log(f"hpcckpt: warning: step {other.step} is passed over for step {info.step}: {problem}")
    if len(newer) > _SHOWN:
        output.log(f"hpcckpt: warning: and {len(newer) - _SHOWN} more; see '{command_line('list', directory)}'")
    return info


def find_silently(directory: Path, step: str | None, metric: str | None = None) -> discovery.StepInfo:
    """Return the same step without warnings, for verbs that report the newer damaged steps themselves."""
    with elsewhere.pointing_below(directory):
        return discovery.find_step(existing(directory), step, read_metric(metric))


def passed_over(directory: Path, step: str | None, chosen: discovery.StepInfo) -> Sequence[discovery.StepInfo]:
    """Return the newer steps that cannot be restored, if the newest was asked for."""
    return discovery.passed_over(directory, chosen.step) if step in {None, "latest"} else ()


def readable(info: discovery.StepInfo) -> Manifest:
    """Return the manifest of a step that can be read, even if a record says that it is damaged.

    Raises
    ------
    CorruptError
        Or another error that says what keeps it from being restored, and what to use instead.
    """
    if info.manifest is not None and (info.is_restorable or info.is_recorded):
        return info.manifest
    manifest = discovery.read_manifest(info.path)  # raises the error that the summary only reports
    discovery.check_files(info.path, manifest)
    raise CorruptError(f"{info.problem}; {next_move(info)}")


def chosen_tensors(manifest: Manifest, patterns: Sequence[str]) -> list[TensorSpec]:
    """Return the tensors that ``--only`` names, all without it, sorted by name.

    Raises
    ------
    OptionError
        If a pattern matches nothing.
    """
    by_name = {spec.name: spec for spec in manifest.tensors}
    matched: set[str] = set()
    for pattern in patterns:
        found = {name for name in by_name if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not found:
            tops = ", ".join(sorted({name.partition("/")[0] for name in by_name})[:8])
            raise OptionError(f"{pattern!r} matches no tensor; the names begin with: {tops or 'there are none'}")
        matched |= found
    return [by_name[name] for name in sorted(matched if patterns else by_name)]


def ask(question: str) -> None:
    """Ask before something is destroyed.

    Raises
    ------
    Declined
        If the answer is no.
    UsageError
        If no answer can be read.
    """
    no_answer = click.UsageError(
        "no answer can be read from standard input: pass --yes, or --dry-run to see what would be done"
    )
    if sys.stdin is None or sys.stderr is None:  # the caller closed them
        raise no_answer
    try:
        is_agreed = click.confirm(question, err=True)
    except click.Abort as error:
        write_message("")  # the prompt's line has no end
        if isinstance(error.__cause__ or error.__context__, EOFError):
            raise no_answer from None
        raise
    if not sys.stdin.isatty():  # an answer from a pipe is not shown, and does not end the line either
        write_message("")
    if not is_agreed:
        raise Declined("nothing was changed")


def next_move(info: discovery.StepInfo, damaged: Collection[int] = ()) -> str:
    """Say which step to use instead of a damaged one; others that were found `damaged` may not be recorded."""
    there = discovery.scan(info.path.parent)
    others = [other.step for other in there if other.is_restorable and other.step not in {info.step, *damaged}]
    if not others:
        return "no other step there can be restored"
    older = [step for step in others if step < info.step] or others
    return f"use step {older[-1]} instead; check it first: {command_line('verify', info.path.parent, older[-1])}"
