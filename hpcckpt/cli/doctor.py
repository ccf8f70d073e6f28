"""``hpcckpt doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.text import count_text

if TYPE_CHECKING:
    from hpcckpt.diagnosis.finding import Finding


@click.command("doctor")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@options.json_option
@options.quiet_option
def command(directory: Path | None, *, is_json: bool, is_quiet: bool) -> int:
    """Look for what is wrong, and say what to do about it.

    It looks at this installation, and with DIRECTORY, where checkpoints are or would be written, at that
    too: file system, space, quota, lock, leftovers. Exits with 1 if it finds a problem: something that
    will make saving or restoring fail. -q shows only what needs attention.
    """
    found = list(_findings(directory))
    n_problems = sum(finding.level == "problem" for finding in found)
    n_warnings = sum(finding.level == "warning" for finding in found)
    if is_json:
        output.write_json({"ok": n_problems == 0, "findings": found})
    else:
        _write([finding for finding in found if not is_quiet or finding.level in {"warning", "problem"}])
        output.say(f"{count_text(n_problems, 'problem')}, {count_text(n_warnings, 'warning')}", is_quiet=is_quiet)
    return ExitCode.ERROR if n_problems else ExitCode.OK


def _findings(directory: Path | None) -> Iterator[Finding]:
    from hpcckpt import mounts
    from hpcckpt.diagnosis import backends, hardware, mpi, quota, software, storage

    yield from software.findings()
    yield from mpi.findings()
    yield from hardware.findings()
    yield from backends.findings()
    if directory is not None:
        yield from storage.findings(directory)
        mount = mounts.mount_of(directory)
        yield from quota.findings(mount) if mount else ()


def _write(found: list[Finding]) -> None:
    width = max((len(finding.topic) for finding in found), default=0)
    for finding in found:
        verdict = output.coloured(finding.level) + " " * (7 - len(finding.level))
        output.write_line(f"{verdict}  {finding.topic.ljust(width)}  {finding.message}")
        if finding.remedy:
            output.write_line(f"{'':9}{'':{width}}  -> {finding.remedy}")
