"""What the command line says of an error, and the code it exits with."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass

import click

from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import log
from hpcckpt.core.std_streams import write_message
from hpcckpt.errors import HpcckptError, from_os_error


class Declined(click.ClickException):
    """The user answered no."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as the command line reports it."""

    kind: str
    message: str
    exit_code: int
    hint: str = ""


def describe_error(error: BaseException) -> ErrorReport:
    """Say of any exception what the user should see."""
    if isinstance(error, HpcckptError):
        return ErrorReport(error.kind, str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ErrorReport("interrupted", "interrupted", ExitCode.INTERRUPTED)
    if isinstance(error, click.UsageError):
        hint = f"try '{error.ctx.command_path} --help'" if error.ctx is not None else ""
        return ErrorReport("usage", error.format_message(), ExitCode.USAGE, hint)
    if isinstance(error, Declined):
        return ErrorReport("declined", error.format_message(), ExitCode.ERROR)
    if isinstance(error, click.ClickException):
        return ErrorReport("error", error.format_message(), error.exit_code)
    if isinstance(error, OSError):
        return describe_error(from_os_error(error))
    text, origin = f"{type(error).__name__}: {error}", foreign_origin(error)
    if origin:
        return ErrorReport(
            "third-party", f"{text}; it was raised in {origin}, which is not part of hpcckpt", ExitCode.ERROR
        )
    return ErrorReport("internal", f"{text}; this is a bug in hpcckpt, please report it", ExitCode.ERROR)


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


def log_error(error: BaseException) -> ErrorReport:
    """Write an error to stderr, and return it as the command line reports it."""
    report = describe_error(error)
    if report.kind in {"internal", "third-party"}:
        write_message("".join(traceback.format_exception(error)))
    log(f"hpcckpt: error: {report.message}")
    if report.hint:
        log(report.hint)
    return report


def write_json_error(report: ErrorReport) -> None:
    """Write an error to stdout, as ``--json`` asks."""
    click.echo(json.dumps({"error": {"kind": report.kind, "message": report.message}}, indent=2))
