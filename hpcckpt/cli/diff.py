"""``hpcckpt diff``: what differs between two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import FiniteRange, PathType
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import number_text, one_line
from hpcckpt.rundir.discovery import StepInfo

if TYPE_CHECKING:
    from hpcckpt.tools.diff import Comparison, ObjectChange, TensorChange


@click.command("diff")
@click.argument("places", type=PathType(str), nargs=-1, required=True, metavar="[DIRECTORY] A B")
@options.only_option
@click.option(
    "--rtol",
    type=FiniteRange(min=0.0),
    default=0.0,
    show_default=True,
    help="Do not count differences of floats up to this part of the larger one; with 0 every bit counts.",
)
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, help="How many tensors to show.")
@click.option("--no-objects", "is_tensors_only", is_flag=True, help="Compare tensors only, not counters and the like.")
@options.json_option
@options.quiet_option
def command(
    places: tuple[str, ...],
    patterns: tuple[str, ...],
    rtol: float,
    top: int,
    *,
    is_tensors_only: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Compare two checkpoints, tensor by tensor.

    'diff DIRECTORY A B' compares two steps of a run (numbers, 'latest' or 'best'); 'diff A B' compares
    two directories, each of a step, or of a run, of which the newest step is taken. They may have been
    saved with different numbers of ranks. Exits with 5 if anything differs.
    """
    from hpcckpt.restoring.segments import held_step
    from hpcckpt.tools.diff import compare, compare_objects

    before, after = _two_steps(places)
    manifests = options.readable(before), options.readable(after)
    total = sum(spec.nbytes for spec in manifests[0].tensors)
    progress = byte_progress("comparing", total, is_quiet=is_quiet)
    with held_step(before.path) as one, held_step(after.path) as other, progress as advance:
        found = compare(one, other, patterns, rtol, advance)
    objects = () if is_tensors_only or patterns else compare_objects(manifests[0].objects, manifests[1].objects, rtol)
    if is_json:
        output.write_json(_document(before, after, found, objects))
    else:
        _write(found, objects, top)
    return ExitCode.OK if found.is_same and not objects else ExitCode.DIFFERENT


def _two_steps(places: Sequence[str]) -> tuple[StepInfo, StepInfo]:
    if len(places) == 2:
        return options.find(Path(places[0]), None), options.find(Path(places[1]), None)
    if len(places) == 3:
        directory = Path(places[0])
        if Path(places[1]).is_dir():
            step = f"step-{places[2]:0>10}" if places[2].isdecimal() else "step-…"
            raise click.UsageError(f"two directories take no STEP: give {places[0]}/{step} {places[1]}/{step}")
        return options.find(directory, places[1]), options.find(directory, places[2])
    raise click.UsageError("give a run directory and two of its steps, or two directories")


def _by_size(change: TensorChange) -> tuple[float, str]:
    is_first = change.max_abs is None or math.isnan(change.max_abs)  # shapes, dtypes and NaN matter most
    return -math.inf if is_first else -(change.max_abs or 0.0), change.name


def _document(before: StepInfo, after: StepInfo, found: Comparison, objects: Sequence[ObjectChange]) -> dict[str, Any]:
    return {
        "same": found.is_same and not objects,
        "a": {"step": before.step, "path": before.path},
        "b": {"step": after.step, "path": after.path},
        "n_same": found.n_same,
        "changed": sorted(found.changed, key=_by_size),
        "added": found.added,
        "removed": found.removed,
        "objects": objects,
    }


def _write(found: Comparison, objects: Sequence[ObjectChange], top: int) -> None:
    n_shared = found.n_same + len(found.changed)
    output.write_line(f"changed {len(found.changed)}/{n_shared} tensors")
    ranked = sorted((change for change in found.changed if not _is_scalar(change)), key=_by_size)
    for change in ranked[:top]:
        output.write_line(one_line(f"  {_change_text(change)}"))
    if len(ranked) > top:
        output.write_line(f"  and {len(ranked) - top} more (--top {len(ranked)})")
    for change in filter(_is_scalar, found.changed):
        output.write_line(one_line(f"{change.name}: {change.before} -> {change.after}"))
    for sign, names in (("added", found.added), ("removed", found.removed)):
        for name in names:
            output.write_line(f"{sign} {name}")
    for each in objects:
        output.write_line(one_line(f"{each.name}: {each.before!r} -> {each.after!r}"))


def _is_scalar(change: TensorChange) -> bool:
    return change.what == "values" and change.n_elements == 1


def _change_text(change: TensorChange) -> str:
    if change.what != "values":
        return f"{change.name}  {change.what} {change.before} -> {change.after}"
    if change.max_abs is None and change.before:
        return (
            f"{change.name}  {change.n_changed} of {change.n_elements} values, first {change.before} -> {change.after}"
        )
    size = f"max |d| {number_text(change.max_abs)}  " if change.max_abs is not None else ""
    return f"{change.name}  {size}{change.n_changed} of {change.n_elements} elements"
