"""``hpcckpt list``: the checkpoints of a run, one a line."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import click

from hpcckpt.backends.registry import find_backend
from hpcckpt.cli import elsewhere, options, output, runs_below, summary
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column
from hpcckpt.cli.summary import RunSummary, StepSummary, iso_of
from hpcckpt.cli.text import count_text, labelled, metric_text, time_text, zone_text
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import BackendNotFoundError, HpcckptError, OptionError, StepNotFoundError
from hpcckpt.rundir.leftovers import Usage


@click.command("list")
@options.directory_argument
@click.option("--sort", "order", type=click.Choice(["step", "time", "metric"]), default="step", show_default=True,
              help="Order of the lines.")  # fmt: skip
@click.option("--valid-only", "is_valid_only", is_flag=True, help="Only checkpoints that can be restored.")
@click.option("--runs", "is_of_runs", is_flag=True, help="One line for each run in DIRECTORY and below it.")
@options.metric_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    order: str,
    metric: str | None,
    *,
    is_valid_only: bool,
    is_of_runs: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """List the checkpoints of a run.

    VALID is whether a checkpoint can be restored: its manifest is whole and its files are there; ? if its backend is
    not installed here.
    Their bytes are checked by 'hpcckpt verify'. The step marked * is the one a restart would use.
    Other directories that take space are named below the table, with what removes them, and the size of all.
    --runs gives an overview of many runs instead: how many steps each has, and the one a restart would use.
    """
    if is_of_runs:
        if metric is not None or is_valid_only or order != "step":
            raise click.UsageError("--runs shows no single steps: leave --sort, --valid-only and --metric out")
        runs_below.show(directory, is_json=is_json, is_quiet=is_quiet)
        return ExitCode.OK
    run = summary.summarize(options.existing_run(directory), options.read_metric(metric))
    rows = [row for row in run.checkpoints if row.valid or not is_valid_only]
    if not rows:
        what = "restorable checkpoint" if is_valid_only else "checkpoint"
        used = "".join(f"; {line}" for line in (*_last_failure(directory), *usage_lines(run.other)))
        raise StepNotFoundError(f"no {what} in {directory}{elsewhere.hint(directory)}{used}")
    known = sorted({name for row in run.checkpoints for name in row.metrics})
    if metric is not None and run.metric not in known:
        there = f"its metrics are: {', '.join(known)}" if known else "none has metrics"
        raise OptionError(f"--metric: no step of {directory} has {run.metric!r}; {there}")
    run = replace(run, checkpoints=tuple(sorted(rows, key=lambda row: _sort_key(row, order, run.metric))))
    if is_json:
        output.write_json(run)
    else:
        _write(run)
        output.log("\n".join(_closing_lines(run)), is_quiet=is_quiet)
    return ExitCode.OK


def _sort_key(row: StepSummary, order: str, metric: str | None) -> tuple[float, str, float]:
    value = row.metrics.get(metric or "", float("inf"))
    return (value if order == "metric" else 0.0, row.created if order == "time" else "", summary.order_of(row))


def _write(run: RunSummary) -> None:
    columns = [
        Column("STEP", is_number=True),
        Column("EPOCH", is_number=True),
        Column(f"TIME ({zone_text()})"),
        Column("SIZE", is_number=True),
        Column("RANKS", is_number=True),
        *([Column(run.metric.upper(), is_number=True)] if run.metric else []),
        Column("VALID"),
        Column("TAGS"),
    ]
    missing = _missing_backends(run)
    output.write_table(columns, [_cells(row, run.metric, missing) for row in run.checkpoints])


def _missing_backends(run: RunSummary) -> dict[str, str]:
    """Return why backends of valid steps are not found here, by name."""
    missing = {}
    for name in sorted({row.backend for row in run.checkpoints if row.valid and row.backend}):
        try:
            find_backend(name)
        except BackendNotFoundError as error:
            missing[name] = str(error)
    return missing


def _cells(row: StepSummary, metric: str | None, missing: Container[str]) -> list[str]:
    return [
        _text(row.step),
        _text(row.epoch),
        time_text(row.created, has_zone=False),
        nbytes_text(row.nbytes),
        _text(row.ranks),
        *([metric_text(row.metrics.get(metric))] if metric else []),
        "?" if row.valid and row.backend in missing else "yes" if row.valid else "-" if "saving" in row.tags else "NO",
        ", ".join(row.tags) + (" *" if "latest" in row.tags else ""),
    ]


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _closing_lines(run: RunSummary) -> Sequence[str]:
    problems = [labelled(row.step, row.problem) for row in run.checkpoints if row.problem]
    problems += [f"? {cause}" for cause in _missing_backends(run).values()]
    counts = {
        "valid": sum(row.valid for row in run.checkpoints),
        "damaged": sum("damaged" in row.tags for row in run.checkpoints),
        "incomplete": sum("incomplete" in row.tags for row in run.checkpoints),
        "being saved": sum("saving" in row.tags for row in run.checkpoints),
    }
    total = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    used, size = usage_lines(run.other), f"{nbytes_text(run.nbytes)} in total"
    if run.resume_step is None:
        advice = f"; '{command_line('verify', run.directory, '--all')}' checks them again" if counts["damaged"] else ""
        return [*problems, *used, f"{total}, {size}; there is nothing to resume from{advice}"]
    return [*problems, *used, f"{total}, {size}; a restart would use step {run.resume_step}"]


def _last_failure(directory: Path) -> list[str]:
    """Return what the journal says of the last save, if it failed."""
    from hpcckpt.rundir.journal import read_journal

    try:
        saves = [entry for entry in read_journal(directory) if entry["event"] in {"saved", "failed"}]
    except HpcckptError:
        return []
    if not saves or saves[-1]["event"] != "failed":
        return []
    which = f", of step {saves[-1]['step']}," if "step" in saves[-1] else ""
    return [f"the last save{which} failed: {saves[-1].get('message')}"]


def usage_lines(other: Sequence[Usage]) -> list[str]:
    """Return what else is in the run directory, a line for each kind. Pure."""
    return [
        f"besides: {count_text(each.count, 'directory', 'directories')} {each.words}, {nbytes_text(each.nbytes)}, "
        f"since {time_text(iso_of(each.oldest))}; removed by: {each.removed_by}"
        for each in other
    ]
