"""``hpcckpt supervise``: what a batch script does around its one step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.parameter_types import FiniteRange, PathType
from hpcckpt.collective.communicator import launched_rank, launched_size
from hpcckpt.core.std_streams import flush_or_discard


@click.command("supervise", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- LAUNCHER... COMMAND...")
@click.option("--run", type=PathType(file_okay=False), envvar="HPCCKPT_RUN", metavar="DIR",
              help="The run directory: its newest checkpoint is named first, its list shown last.")  # fmt: skip
@click.option("--max-restarts", type=click.IntRange(min=0), envvar="HPCCKPT_MAX_RESTARTS", default=20,
              show_default=True, help="How often the job is put into the queue again.")  # fmt: skip
@click.option("--lead", "lead_s", type=FiniteRange(min=0.0, min_open=True), metavar="SECONDS",
              envvar="HPCCKPT_LEAD", help="Ask the step to stop so long before the end of the job; where the "
              "scheduler sends a signal itself, it need not be given.")  # fmt: skip
@click.option("--chain", default="", envvar="HPCCKPT_CHAIN", metavar="NAME",
              help="This job is one of a chain: the next one resumes, not this one again.")  # fmt: skip
@options.dry_run_option
@options.json_option
def command(
    words: tuple[str, ...],
    run: Path | None,
    max_restarts: int,
    lead_s: float | None,
    chain: str,
    *,
    is_dry_run: bool,
    is_json: bool,
) -> int:
    """Run a batch job's step, and requeue the job.

    To be the last line of a batch script: exec hpcckpt supervise --run RUN -- srun hpcckpt train -c FILE --run RUN.
    It prints what the job is, how long it has, and the checkpoint that it resumes from; forwards to the ranks the
    signals that ask the job to stop (USR1, USR2, TERM); and lists the run's checkpoints at the end.

    If the step exits with 75 (checkpointed, please requeue) the job is put into the queue again, unless this happened
    too often, or people have halted the run. With 0 it is done; any other code is a failure, and nothing is started
    again. Its own exit code is that of the step. --dry-run works without any scheduler.
    """
    if launched_rank() is not None and (launched_size() or 0) > 1:
        raise click.UsageError("a launcher has started this on several ranks, but supervise starts the launcher itself")
    from hpcckpt.jobs.schedulers import detect
    from hpcckpt.jobs.supervisor import SuperviseSettings, dry_run, supervise

    settings = SuperviseSettings(words, run, max_restarts, lead_s, chain, shows_tables=not is_json)
    act = dry_run if is_dry_run else supervise
    report = act(settings, detect(os.environ), _log)
    if is_json and is_dry_run:
        output.write_json(report.document)
    elif is_json:
        _write(report.document)
    return report.code


def _write(document: Mapping[str, Any]) -> None:
    """Write what became of the job, if it can be written: its exit code does not depend on that."""
    try:
        output.write_json(document)
        output.flush_stdout()
    except OSError as error:
        flush_or_discard()
        _log(f"the report cannot be written: {error}")


def _log(text: str) -> None:
    output.log(f"hpcckpt: {text}")
