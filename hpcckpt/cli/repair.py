"""``hpcckpt repair``: a new manifest where the old one is lost or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import StepExistsError, StepNotFoundError
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.rundir.lock import RunLock

if TYPE_CHECKING:
    from hpcckpt.tools.repair import RepairFinding

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was repaired, or would be, and what cannot be."""

    directory: Path
    findings: Sequence[RepairFinding]
    is_dry_run: bool = False

    @property
    def repaired(self) -> list[RepairFinding]:
        return [each for each in self.findings if each.is_good and each.is_changed]

    @property
    def failed(self) -> list[RepairFinding]:
        return [each for each in self.findings if not each.is_good]


@click.command("repair")
@options.directory_argument
@click.argument("step", required=False, type=click.IntRange(min=0))
@options.dry_run_option
@options.yes_option
@options.threads_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    step: int | None,
    threads: int,
    *,
    is_dry_run: bool,
    is_yes: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Rebuild lost or damaged manifests from the data files.

    STEP is a number; without it every step that lacks a valid manifest is repaired. A manifest is rebuilt only from
    one complete set of files of one save, after every byte was compared with its checksum; what only the manifest had
    (objects, metrics, environment) is gone. DIRECTORY may also be one that was moved aside (.bad-*, .aside-*):
    if it is whole, it gets its name back, if that is free. Exits with 3 if nothing can be repaired, with 4 if there
    is no step, with 6 if only a part can, and with 8 while a job is writing.
    """
    from hpcckpt.tools.repair import find_damaged

    with elsewhere.pointing_below(directory):
        paths = find_damaged(options.existing(directory), step)
        if not paths and not discovery.step_numbers(directory):
            raise StepNotFoundError(f"no checkpoint in {directory}")
    if is_dry_run or not paths:
        done = _Outcome(directory, _examined(paths, threads, is_quiet=is_quiet), is_dry_run)
    else:
        if not is_yes:
            output.log("".join(f"  {path.name}\n" for path in paths) + "objects, metrics and environment are not kept")
            options.ask(f"Repair {count_text(len(paths), 'checkpoint')}?")
        done = _act(directory, paths, threads, is_quiet=is_quiet)
    _write_result(done, is_json=is_json, is_quiet=is_quiet)
    return _exit_code(done)


def _examined(paths: Sequence[Path], threads: int, *, is_quiet: bool) -> list[RepairFinding]:
    from hpcckpt.rundir.leftovers import tree_nbytes
    from hpcckpt.tools.repair import examine

    total = sum(tree_nbytes(path / layout.DATA) for path in paths)
    with byte_progress("verifying", total, is_quiet=is_quiet) as advance:
        return [examine(path, threads, advance) for path in paths]


def _act(directory: Path, paths: Sequence[Path], threads: int, *, is_quiet: bool) -> _Outcome:
    """Verify and publish under the lock: what was looked at before may have changed while the user thought."""
    from hpcckpt.tools.repair import publish

    with ExitStack() as locks:
        for run in sorted({path.parent for path in paths}):
            locks.enter_context(RunLock.take(run))
        findings = _examined([path for path in paths if path.exists()], threads, is_quiet=is_quiet)
        for number, finding in enumerate(findings):
            if not (finding.is_good and finding.is_changed):
                continue
            try:
                findings[number] = replace(finding, path=publish(finding))
            except StepExistsError as error:
                findings[number] = replace(finding, problems=(str(error),))
    return _Outcome(directory, findings)


def _exit_code(done: _Outcome) -> int:
    if not done.failed:
        return ExitCode.OK
    return ExitCode.PARTLY_DONE if done.repaired else ExitCode.CORRUPT


# -- telling ---------------------------------------------------------------------------------------


def _write_result(done: _Outcome, *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        output.write_json(_document(done))
        return
    for finding in done.repaired:
        _write_repaired(finding, is_dry_run=done.is_dry_run)
    for finding in done.failed:
        _write_failed(finding)
    if not done.repaired and not done.failed:
        output.log(f"nothing to repair in {done.directory}: the manifests are valid", is_quiet=is_quiet)
    elif any(finding.is_rebuilt for finding in done.repaired):
        output.log(
            "objects, metrics and environment were in the manifest alone and are lost: restore such a step with "
            "strict=False, and set the epoch yourself",
            is_quiet=is_quiet,
        )


def _write_repaired(finding: RepairFinding, *, is_dry_run: bool) -> None:
    manifest = finding.manifest
    assert manifest is not None
    verb = "would repair" if is_dry_run else "repaired"
    counts = f"{count_text(len(manifest.tensors), 'tensor')}, {count_text(len(manifest.files), 'file')}"
    output.write_line(
        f"{verb} {finding.path.name}: step {manifest.step}, {counts}, {nbytes_text(manifest.nbytes)}, crc32c verified"
    )
    for name in finding.left_alone:
        output.write_line(f"  left alone: {name}")


def _write_failed(finding: RepairFinding) -> None:
    output.write_line(f"{finding.path.name}: {output.coloured('CORRUPT')}  cannot be repaired:")
    for text in [*finding.problems, *map(str, finding.damage[:_SHOWN])]:
        output.write_line(f"  {text}")
    if len(finding.damage) > _SHOWN:
        output.write_line(f"  and {len(finding.damage) - _SHOWN} more damaged blocks")


def _document(done: _Outcome) -> dict[str, Any]:
    return {
        "directory": done.directory,
        "dry_run": done.is_dry_run,
        "repaired": [_repaired_document(finding) for finding in done.repaired],
        "failed": [
            {"path": finding.path, "problems": finding.problems, "damage": finding.damage} for finding in done.failed
        ],
    }


def _repaired_document(finding: RepairFinding) -> dict[str, Any]:
    from hpcckpt.tools.repair import LOST

    manifest = finding.manifest
    assert manifest is not None
    return {
        "step": manifest.step,
        "path": finding.path,
        "save_id": manifest.save_id,
        "ranks": manifest.n_ranks,
        "tensors": len(manifest.tensors),
        "files": len(manifest.files),
        "nbytes": manifest.nbytes,
        "lost": LOST if finding.is_rebuilt else (),
        "left_alone": finding.left_alone,
    }
