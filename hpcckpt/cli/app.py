"""The root of the command line: it turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcckpt._version import __version__
from hpcckpt.cli import failures, output, places
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.launcher import run_on_root
from hpcckpt.cli.lazy import LazyGroup, is_parallel
from hpcckpt.core.std_streams import flush_or_discard, open_closed_descriptors

EPILOG = (
    "Exit codes: 0 ok, 1 error, 2 usage, 3 corrupt, 4 nothing found, 5 differs or does not match, 6 partly done, "
    "7 no space, 8 busy, 75 checkpointed and wants to be requeued, 130 interrupted."
)


class Tool(LazyGroup):
    """The group of all verbs, run so that every way to end is an exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run a verb and exit; click's own entry point, which its test runner calls too."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra |= {"standalone_mode": False}
        open_closed_descriptors()
        never_fail_to_encode()

        def act() -> int:
            return guarded(lambda: super(Tool, self).main(words, prog_name or "hpcckpt", **extra), words)

        verb = next((word for word in words if not word.startswith("-")), "")
        code = act() if is_running_everywhere(verb) else guarded(lambda: run_on_root(act), words)
        flush_or_discard()  # or Python would exit with 120
        sys.exit(code)


def is_running_everywhere(verb: str) -> bool:
    """Return True if all ranks run this verb."""
    return bool(verb) and is_parallel(verb)


def guarded(act: Callable[[], Any], words: Sequence[str]) -> int:
    """Run `act` and return an exit code, however it ends."""
    try:
        result = act()
        output.flush_stdout()
    except BrokenPipeError:
        return ExitCode.ERROR
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else ExitCode.ERROR
    except BaseException as error:  # noqa: BLE001 - reported, not lost
        return reported(error, words)
    return result if isinstance(result, int) else ExitCode.OK


def reported(error: BaseException, words: Sequence[str]) -> int:
    """Report an error and return its exit code; stdout may be what failed."""
    report = failures.log_error(error)
    flush_or_discard()  # stdout may be what failed
    if "--json" in itertools.takewhile(lambda word: word != "--", words):  # behind -- are words of another program
        with contextlib.suppress(OSError):
            failures.write_json_error(report)
    return report.exit_code


def never_fail_to_encode() -> None:
    """Write what the locale has no letters for as escapes."""
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")


@click.group(cls=Tool, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="hpcckpt", message="%(prog)s %(version)s")
@places.option("--cmake-dir", places.cmake_dir, "Print where find_package(hpcckpt) finds it.")
@places.option("--include-dir", places.include_dir, "Print where the headers for plugins are.")
@places.option(
    "--tmci-include-dirs", places.tmci_include_dirs, "Print the header directories for TMCI's plugins, as a CMake list."
)
@places.option("--lib", places.library, "Print where the native library is.")
def tool() -> None:
    """Durable, elastic checkpoints for MPI-parallel training."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        tool.main(argv)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else ExitCode.ERROR
    return ExitCode.OK
