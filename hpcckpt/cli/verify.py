"""``hpcckpt verify``: every byte against its checksum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import HpcckptError, NoRestorableStepError, StepNotFoundError
from hpcckpt.rundir import damage_records, discovery
from hpcckpt.rundir.discovery import StepInfo

if TYPE_CHECKING:
    from hpcckpt.tools.inspect import StepVerification

_SHOWN = 20


@click.command("verify")
@options.directory_argument
@options.step_argument
@click.option("--all", "is_all", is_flag=True, help="Every step of the run.")
@click.option("--values", "has_values", is_flag=True, help="Look for NaN and infinities too.")
@options.metric_option
@options.threads_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    step: str | None,
    metric: str | None,
    threads: int,
    *,
    is_all: bool,
    has_values: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Check every byte of a checkpoint against its checksums.

    STEP is a number, 'latest' (the default: the newest that can be restored, and every newer one that
    cannot; every step if none can) or 'best'. Damage is recorded in the run directory: 'hpcckpt list' shows
    it and restarts use another step, until the step is verified and found whole. Exits with 3 if anything is
    damaged, with 6 if one of several steps had to be left out, and with 5 if --values finds NaN or infinities
    in undamaged bytes.
    """
    from hpcckpt.tools.inspect import check_step

    steps = _chosen(directory, step, metric, is_all=is_all)
    total = sum(info.manifest.nbytes for info in steps if info.manifest) * (2 if has_values else 1)
    verifications: list[tuple[StepInfo, StepVerification]] = []
    skipped: list[tuple[StepInfo, str]] = []
    with byte_progress("verifying", total, is_quiet=is_quiet) as advance:
        for info in steps:
            try:
                verification = check_step(info.path, threads, advance, has_values_checked=has_values)
                if not info.is_recorded:  # bytes may be right and the step of no use: a symbolic link is not followed
                    verification = replace(verification, problem=verification.problem or info.problem)
                verifications.append((info, verification))
            except HpcckptError as error:
                if not is_all and len(steps) == 1:
                    raise
                skipped.append((info, str(error)))
    notes = [text for info, verification in verifications if (text := _remember(info, verification))]
    if is_json:
        output.write_json(_document(directory, verifications, skipped))
    else:
        _write_all(verifications, skipped, has_values=has_values)
    output.log("\n".join(notes), is_quiet=is_quiet or not notes)
    return _exit_code([verification for _, verification in verifications], has_skipped=bool(skipped))


def _chosen(directory: Path, step: str | None, metric: str | None, *, is_all: bool) -> Sequence[StepInfo]:
    if not is_all:
        try:
            chosen = options.find_silently(directory, step, metric)
        except NoRestorableStepError:  # of the latest: look whether one of them is whole again
            return discovery.scan(directory)
        return [chosen, *options.passed_over(directory, step, chosen)]
    if step is not None:
        raise click.UsageError("give a STEP or --all, not both")
    steps = discovery.scan(options.existing(directory))
    if not steps:
        raise StepNotFoundError(f"no checkpoint in {directory}{elsewhere.hint(directory)}")
    return steps


def _remember(info: StepInfo, verification: StepVerification) -> str:
    """Record damage that only reading all bytes shows, or remove its record; return what was done, in words."""
    if info.manifest is None or (info.problem and not info.is_recorded):
        return ""
    run, save_id = info.path.parent, info.manifest.save_id
    if verification.is_whole:
        was_recorded = damage_records.clear(run, info.step, save_id)
        return f"step {info.step} was recorded as damaged and is whole: the record is removed" if was_recorded else ""
    if verification.damage and not any(block.is_proven for block in verification.damage):
        return f"not recorded that step {info.step} is damaged: its data may be elsewhere"
    problem = _damage_text(info.step, verification).rstrip(":")
    blocks = "".join(f"; {block}" for block in verification.damage[:1])
    if damage_records.record(run, info.step, save_id, f"{problem}{blocks}", "hpcckpt verify"):
        return f"recorded in {run}: restarts do not use step {info.step} until it is verified and found whole"
    return f"not recorded, for {run} cannot be written: a restart finds the damage of step {info.step} itself"


def _exit_code(verifications: Sequence[StepVerification], *, has_skipped: bool) -> int:
    if not all(verification.is_whole for verification in verifications):
        return ExitCode.CORRUPT
    if has_skipped:
        return ExitCode.PARTLY_DONE
    return ExitCode.DIFFERENT if any(verification.not_finite for verification in verifications) else ExitCode.OK


def _document(
    directory: Path, verifications: Sequence[tuple[StepInfo, StepVerification]], skipped: Sequence[tuple[StepInfo, str]]
) -> dict[str, Any]:
    return {
        "directory": directory,
        "ok": all(verification.is_whole for _, verification in verifications) and not skipped,
        "skipped": [{"step": info.step, "path": info.path, "problem": problem} for info, problem in skipped],
        "steps": [
            {
                "step": info.step,
                "path": info.path,
                "ok": verification.is_whole,
                "problem": verification.problem,
                "tensors": verification.n_tensors,
                "files": verification.n_files,
                "nbytes": verification.nbytes,
                "seconds": round(verification.seconds, 3),
                "damage": verification.damage,
                "not_finite": verification.not_finite,
                "next": "" if verification.is_whole else options.next_move(info, _damaged(verifications)),
            }
            for info, verification in verifications
        ],
    }


def _write_all(
    verifications: Sequence[tuple[StepInfo, StepVerification]],
    skipped: Sequence[tuple[StepInfo, str]],
    *,
    has_values: bool,
) -> None:
    for info, verification in verifications:
        _write(info, verification, has_values=has_values)
        if not verification.is_whole:
            output.log(f"step {info.step} cannot be trusted; {options.next_move(info, _damaged(verifications))}")
    for info, problem in skipped:
        output.write_line(f"step {info.step}: {output.coloured('NOT CHECKED')}  {problem}")


def _damaged(verifications: Sequence[tuple[StepInfo, StepVerification]]) -> list[int]:
    return [info.step for info, verification in verifications if not verification.is_whole]


def _write(info: StepInfo, verification: StepVerification, *, has_values: bool) -> None:
    if not verification.is_whole:
        output.write_line(f"step {info.step}: {output.coloured('CORRUPT')}  {_damage_text(info.step, verification)}")
        for block in verification.damage[:_SHOWN]:
            output.write_line(f"  {block}")
        return
    speed = f"{nbytes_text(verification.nbytes / max(verification.seconds, 1e-9))}/s"
    counts = f"{count_text(verification.n_tensors, 'tensor')}, {count_text(verification.n_files, 'file')}"
    values = _values_text(verification) if has_values else "values not checked (--values)"
    output.write_line(
        f"step {info.step}: {output.coloured('OK')}  {counts}, {nbytes_text(verification.nbytes)} at {speed}, "
        f"crc32c verified, {values}"
    )
    for found in verification.not_finite[:_SHOWN]:
        output.write_line(f"  tensor {found.name!r}: {found.n_nan} NaN, {found.n_inf} infinite of {found.count}")


def _values_text(verification: StepVerification) -> str:
    if not verification.not_finite:
        return "no NaN or infinity"
    return f"NaN or infinities in {count_text(len(verification.not_finite), 'tensor')}"


def _damage_text(step: int, verification: StepVerification) -> str:
    if verification.problem:
        return verification.problem.removeprefix(f"step {step}: ")
    names = {block.tensor for block in verification.damage}
    more = f", the first {_SHOWN} are" if len(verification.damage) > _SHOWN else ""
    return f"{count_text(len(verification.damage), 'damaged block')} in {count_text(len(names), 'tensor')}{more}:"
