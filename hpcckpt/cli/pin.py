"""``hpcckpt pin`` and ``hpcckpt unpin``: what retention may not touch."""

from __future__ import annotations

from pathlib import Path

import click

from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.text import readers_text
from hpcckpt.rundir import pins


@click.command("pin")
@options.directory_argument
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
@options.metric_option
@options.json_option
@options.quiet_option
def pin(directory: Path, steps: tuple[str, ...], metric: str | None, *, is_json: bool, is_quiet: bool) -> int:
    """Keep checkpoints for ever, whatever retention says.

    Each STEP is a number, 'latest' or 'best'.
    """
    options.existing_run(directory)
    chosen = list(dict.fromkeys(options.find(directory, step, metric).step for step in steps))
    for step in chosen:
        pins.pin_save(directory, step)
    _write_result(directory, "pinned", chosen, is_json=is_json, is_quiet=is_quiet)
    return ExitCode.OK


@click.command("unpin")
@options.directory_argument
@click.argument("steps", nargs=-1, required=True, metavar="STEP...", type=click.IntRange(min=0))
@options.json_option
@options.quiet_option
def unpin(directory: Path, steps: tuple[int, ...], *, is_json: bool, is_quiet: bool) -> int:
    """Leave pinned checkpoints to retention again.

    Exits with 4 if one of them was not pinned.
    """
    options.existing_run(directory)
    taken = [step for step in steps if pins.unpin(directory, step)]
    _write_result(directory, "unpinned", taken, is_json=is_json, is_quiet=is_quiet)
    absent = [str(step) for step in steps if step not in taken]
    if absent:
        output.log(f"not pinned: {', '.join(absent)}{elsewhere.hint(directory)}", is_quiet=is_quiet)
        if files := pins.pins_of_readers(directory, steps):
            output.log(readers_text(files), is_quiet=is_quiet)
    return ExitCode.NOTHING_FOUND if absent else ExitCode.OK


def _write_result(directory: Path, verb: str, steps: list[int], *, is_json: bool, is_quiet: bool) -> None:
    pinned = sorted(pins.pins(directory))
    if is_json:
        output.write_json({"directory": directory, verb: steps, "pins": pinned})
        return
    now = ", ".join(map(str, pinned)) or "none"
    output.log(f"{verb} {', '.join(map(str, steps)) or 'nothing'}; pinned now: {now}", is_quiet=is_quiet)
