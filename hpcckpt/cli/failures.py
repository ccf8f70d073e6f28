"""What the command line says of an error, and the code it exits with."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass

import click

from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import say
from hpcckpt.errors import HpcckptError, from_os_error
from hpcckpt.streams import write_message


class Declined(click.ClickException):
    """The user answered no."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error as the command line reports it."""

    kind: str
    message: str
    exit_code: int
    hint: str = ""


def complaint_of(error: BaseException) -> Complaint:
    """Say of any exception what the user should see."""
    if isinstance(error, HpcckptError):
        return Complaint(error.kind, str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Complaint("interrupted", "interrupted", ExitCode.INTERRUPTED)
    if isinstance(error, click.UsageError):
        return Complaint("usage", error.format_message(), ExitCode.USAGE, _usage_hint(error))
    if isinstance(error, Declined):
        return Complaint("declined", error.format_message(), ExitCode.ERROR)
    if isinstance(error, click.ClickException):
        return Complaint("error", error.format_message(), error.exit_code)
    if isinstance(error, OSError):
        return complaint_of(from_os_error(error))
    text, origin = f"{type(error).__name__}: {error}", foreign_origin(error)
    if origin:
        return Complaint(
            "third-party", f"{text}; it was raised in {origin}, which is not part of hpcckpt", ExitCode.ERROR
        )
    return Complaint("internal", f"{text}; this is a bug in hpcckpt, please report it", ExitCode.ERROR)


def foreign_origin(error: BaseException) -> str:
    """Return the module and line of a plugin or user's program where an error was raised; "" if hpcckpt raised it.

    Frames of libraries that hpcckpt uses say nothing about whose fault it is: the one that called them counts.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package == "hpcckpt":
            return ""
        if package and package not in sys.stdlib_module_names and package not in _LIBRARIES:
            return f"{module} ({frame.f_code.co_filename}, line {line})"
    return ""


_LIBRARIES = frozenset(
    {"click", "h5py", "horovod", "keras", "matplotlib", "ml_dtypes", "mpi4py", "numpy", "rich", "tensorflow", "torch"}
)
"""Libraries that hpcckpt uses; an error in them may be its fault."""


def _usage_hint(error: click.UsageError) -> str:
    return f"try '{error.ctx.command_path} --help'" if error.ctx is not None else ""


def tell(error: BaseException) -> Complaint:
    """Write an error to stderr, and return it as the command line reports it."""
    complaint = complaint_of(error)
    if complaint.kind in {"internal", "third-party"}:
        write_message("".join(traceback.format_exception(error)))
    say(f"hpcckpt: error: {complaint.message}")
    if complaint.hint:
        say(complaint.hint)
    return complaint


def tell_programs(complaint: Complaint) -> None:
    """Write an error to stdout, as ``--json`` asks."""
    click.echo(json.dumps({"error": {"kind": complaint.kind, "message": complaint.message}}, indent=2))
