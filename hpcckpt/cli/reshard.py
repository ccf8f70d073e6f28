"""``hpcckpt reshard``: the same checkpoint in another number of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text
from hpcckpt.core.units import nbytes_text

if TYPE_CHECKING:
    from hpcckpt.restoring.reader import StepReader
    from hpcckpt.tools.reshard import ReshardPlan


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """What was written, or would be; its fields are the keys of ``--json``."""

    step: int
    source: Path
    path: Path
    dry_run: bool
    ranks_before: int
    ranks: int
    tensors: int
    nbytes: int
    dropped: tuple[str, ...]
    of_rank_0: tuple[str, ...]
    save_id: str | None


@click.command("reshard")
@options.directory_argument
@options.step_argument
@click.option("--files", "n_files", type=click.IntRange(1, 100_000), required=True, metavar="M", help="How many files.")
@click.option("-o", "--out", type=PathType(file_okay=False), metavar="DIR", help="The run directory for the new step.")
@click.option("--in-place", "is_in_place", is_flag=True, help="Replace the step by the new one, atomically.")
@click.option(
    "--drop-per-rank", "is_dropping", is_flag=True, help="Leave out what each rank had for itself if M is another."
)
@options.metric_option
@options.threads_option
@options.dry_run_option
@options.yes_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    step: str | None,
    n_files: int,
    out: Path | None,
    metric: str | None,
    threads: int,
    *,
    is_in_place: bool,
    is_dropping: bool,
    is_dry_run: bool,
    is_yes: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Rewrite a checkpoint as another number of ranks would.

    STEP is a number, 'latest' (the default) or 'best'. Tensors, objects, metrics and lineage stay the same, the save
    gets a new identity. Values that each rank had for itself (random states, positions) stay with the number of
    ranks that saved them. Every byte is verified; exits with 3 if one is not what was saved, with 8 while a
    job writes there.
    """
    if (out is None) == (not is_in_place):
        raise click.UsageError("say where the new step goes: --out DIR or --in-place")
    from hpcckpt.restoring.segments import held_step
    from hpcckpt.tools.reshard import plan_reshard

    info = options.find(directory, step, metric)
    options.readable(info)
    target = info.path.parent if out is None else options.run_to_write(out)
    with held_step(info.path, threads) as reader:
        plan = plan_reshard(reader, n_files, is_dropping=is_dropping)
        if is_in_place and not (is_dry_run or is_yes):
            options.ask(f"Replace step {info.step} ({count_text(reader.manifest.n_ranks, 'rank')}) in {target}?")
        save_id = None if is_dry_run else _write(reader, plan, target, is_in_place=is_in_place, is_quiet=is_quiet)
    path = target / info.path.name
    before, n_tensors = reader.manifest.n_ranks, len(plan.tensors)
    done = ReshardResult(
        info.step,
        info.path,
        path,
        is_dry_run,
        before,
        n_files,
        n_tensors,
        plan.nbytes,
        plan.dropped,
        plan.of_root,
        save_id,
    )
    _write_result(done, is_json=is_json, is_quiet=is_quiet)
    return ExitCode.OK


def _write(reader: StepReader, plan: ReshardPlan, target: Path, *, is_in_place: bool, is_quiet: bool) -> str:
    from hpcckpt.rundir.discovery import read_manifest
    from hpcckpt.tools.reshard import reshard

    with byte_progress("rewriting", plan.nbytes, is_quiet=is_quiet) as advance:
        path = reshard(reader, plan, target, is_replacing=is_in_place, progress=advance)
    return read_manifest(path).save_id


def _write_result(done: ReshardResult, *, is_json: bool, is_quiet: bool) -> None:
    if done.dropped:
        output.log(
            f"left out, as they belong to the ranks that saved them: {', '.join(done.dropped)}", is_quiet=is_quiet
        )
    if done.of_rank_0:
        output.log(f"each rank has what rank 0 had of: {', '.join(done.of_rank_0)}", is_quiet=is_quiet)
    if is_json:
        output.write_json(done)
        return
    verb = "would write" if done.dry_run else "wrote"
    output.write_line(
        f"{verb} {done.path} ({count_text(done.tensors, 'tensor')}, {nbytes_text(done.nbytes)}, "
        f"ranks {done.ranks_before} -> {done.ranks})"
    )
