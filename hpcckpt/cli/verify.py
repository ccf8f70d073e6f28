"""``hpcckpt verify``: every byte against its checksum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt import damage, discovery
from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text
from hpcckpt.discovery import StepInfo
from hpcckpt.errors import HpcckptError, NoRestorableStepError, StepNotFoundError
from hpcckpt.units import nbytes_text

if TYPE_CHECKING:
    from hpcckpt.inspecting import Verdict

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
    from hpcckpt.inspecting import check_step

    steps = _chosen(directory, step, metric, is_all=is_all)
    total = sum(info.manifest.nbytes for info in steps if info.manifest) * (2 if has_values else 1)
    verdicts: list[tuple[StepInfo, Verdict]] = []
    skipped: list[tuple[StepInfo, str]] = []
    with byte_progress("verifying", total, is_quiet=is_quiet) as advance:
        for info in steps:
            try:
                verdict = check_step(info.path, threads, advance, has_values_checked=has_values)
                if not info.is_recorded:  # bytes may be right and the step of no use: a symbolic link is not followed
                    verdict = replace(verdict, problem=verdict.problem or info.problem)
                verdicts.append((info, verdict))
            except HpcckptError as error:
                if not is_all and len(steps) == 1:
                    raise
                skipped.append((info, str(error)))
    notes = [text for info, verdict in verdicts if (text := _remember(info, verdict))]
    if is_json:
        output.write_json(_document(directory, verdicts, skipped))
    else:
        _write_all(verdicts, skipped, has_values=has_values)
    output.say("\n".join(notes), is_quiet=is_quiet or not notes)
    return _exit_code([verdict for _, verdict in verdicts], has_skipped=bool(skipped))


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


def _remember(info: StepInfo, verdict: Verdict) -> str:
    """Record damage that only reading all bytes shows, or remove its record; return what was done, in words."""
    if info.manifest is None or (info.problem and not info.is_recorded):
        return ""
    run, save_id = info.path.parent, info.manifest.save_id
    if verdict.is_whole:
        was_recorded = damage.clear(run, info.step, save_id)
        return f"step {info.step} was recorded as damaged and is whole: the record is removed" if was_recorded else ""
    problem = _damage_text(info.step, verdict).rstrip(":")
    blocks = "".join(f"; {block}" for block in verdict.damage[:1])
    if damage.record(run, info.step, save_id, f"{problem}{blocks}", "hpcckpt verify"):
        return f"recorded in {run}: restarts do not use step {info.step} until it is verified and found whole"
    return f"not recorded, for {run} cannot be written: a restart finds the damage of step {info.step} itself"


def _exit_code(verdicts: Sequence[Verdict], *, has_skipped: bool) -> int:
    if not all(verdict.is_whole for verdict in verdicts):
        return ExitCode.CORRUPT
    if has_skipped:
        return ExitCode.PARTLY_DONE
    return ExitCode.DIFFERENT if any(verdict.not_finite for verdict in verdicts) else ExitCode.OK


def _document(
    directory: Path, verdicts: Sequence[tuple[StepInfo, Verdict]], skipped: Sequence[tuple[StepInfo, str]]
) -> dict[str, Any]:
    return {
        "directory": directory,
        "ok": all(verdict.is_whole for _, verdict in verdicts) and not skipped,
        "skipped": [{"step": info.step, "path": info.path, "problem": problem} for info, problem in skipped],
        "steps": [
            {
                "step": info.step,
                "path": info.path,
                "ok": verdict.is_whole,
                "problem": verdict.problem,
                "tensors": verdict.n_tensors,
                "files": verdict.n_files,
                "nbytes": verdict.nbytes,
                "seconds": round(verdict.seconds, 3),
                "damage": verdict.damage,
                "not_finite": verdict.not_finite,
                "next": "" if verdict.is_whole else options.next_move(info),
            }
            for info, verdict in verdicts
        ],
    }


def _write_all(
    verdicts: Sequence[tuple[StepInfo, Verdict]], skipped: Sequence[tuple[StepInfo, str]], *, has_values: bool
) -> None:
    for info, verdict in verdicts:
        _write(info, verdict, has_values=has_values)
    for info, problem in skipped:
        output.write_line(f"step {info.step}: {output.coloured('NOT CHECKED')}  {problem}")


def _write(info: StepInfo, verdict: Verdict, *, has_values: bool) -> None:
    if not verdict.is_whole:
        output.write_line(f"step {info.step}: {output.coloured('CORRUPT')}  {_damage_text(info.step, verdict)}")
        for block in verdict.damage[:_SHOWN]:
            output.write_line(f"  {block}")
        output.say(f"step {info.step} cannot be trusted; {options.next_move(info)}")
        return
    speed = f"{nbytes_text(verdict.nbytes / max(verdict.seconds, 1e-9))}/s"
    counts = f"{count_text(verdict.n_tensors, 'tensor')}, {count_text(verdict.n_files, 'file')}"
    values = _values_text(verdict) if has_values else "values not checked (--values)"
    output.write_line(
        f"step {info.step}: {output.coloured('OK')}  {counts}, {nbytes_text(verdict.nbytes)} at {speed}, "
        f"crc32c verified, {values}"
    )
    for found in verdict.not_finite[:_SHOWN]:
        output.write_line(f"  tensor {found.name!r}: {found.n_nan} NaN, {found.n_inf} infinite of {found.count}")


def _values_text(verdict: Verdict) -> str:
    if not verdict.not_finite:
        return "no NaN or infinity"
    return f"NaN or infinities in {count_text(len(verdict.not_finite), 'tensor')}"


def _damage_text(step: int, verdict: Verdict) -> str:
    if verdict.problem:
        return verdict.problem.removeprefix(f"step {step}: ")
    names = {block.tensor for block in verdict.damage}
    more = f", the first {_SHOWN} are" if len(verdict.damage) > _SHOWN else ""
    return f"{count_text(len(verdict.damage), 'damaged block')} in {count_text(len(names), 'tensor')}{more}:"
