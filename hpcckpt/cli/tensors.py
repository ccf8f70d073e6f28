"""``hpcckpt tensors``: what tensors a checkpoint holds; with options, their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text, number_text, shape_text
from hpcckpt.discovery import StepInfo
from hpcckpt.tensors import TensorSpec
from hpcckpt.units import nbytes_text

if TYPE_CHECKING:
    from hpcckpt.inspecting import Statistics

_COLUMNS = (Column("NAME"), Column("DTYPE"), Column("SHAPE"), Column("SIZE", is_number=True), Column("KIND"))
_STATISTICS = ("MIN", "MAX", "MEAN", "STD", "NAN", "INF")


@click.command("tensors")
@options.directory_argument
@options.step_argument
@options.only_option
@click.option(
    "--stats", "has_stats", is_flag=True, help="Read the values too: range, mean, deviation, NaN and infinities."
)
@click.option("-d", "--data", "data", metavar="NAME", help="Print the values of one tensor instead.")
@options.metric_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    step: str | None,
    patterns: tuple[str, ...],
    data: str | None,
    metric: str | None,
    *,
    has_stats: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """List the tensors of a checkpoint.

    STEP is a number, 'latest' (the default) or 'best'. Only the manifest is read, unless values are
    asked for with --stats or --data.
    """
    info = options.find(directory, step, metric)
    specs = options.chosen_tensors(options.readable(info), (data,) if data else patterns)
    if data:
        _print_values(info, specs[0].name, is_json=is_json)
    elif has_stats:
        _print_statistics(info, specs, is_json=is_json, is_quiet=is_quiet)
    elif is_json:
        output.write_json({"step": info.step, "path": info.path, "tensors": [_document(spec) for spec in specs]})
    else:
        output.write_table(_COLUMNS, [_cells(spec) for spec in specs])
        _say_total(specs, is_quiet=is_quiet)
    return ExitCode.OK


def _document(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape, "nbytes": spec.nbytes, "kind": spec.kind}


def _cells(spec: TensorSpec) -> list[str]:
    return [spec.name, spec.dtype, shape_text(spec.shape), nbytes_text(spec.nbytes), spec.kind]


def _say_total(specs: Sequence[TensorSpec], *, is_quiet: bool) -> None:
    total = nbytes_text(sum(spec.nbytes for spec in specs))
    output.say(f"{count_text(len(specs), 'tensor')}, {total}", is_quiet=is_quiet)


def _print_statistics(info: StepInfo, specs: Sequence[TensorSpec], *, is_json: bool, is_quiet: bool) -> None:
    from hpcckpt.inspecting import statistics
    from hpcckpt.loading import open_step
    from hpcckpt.streaming import sources

    reader = open_step(info.path)
    wanted = sources(reader, [spec.name for spec in specs])
    with byte_progress("reading", sum(source.nbytes for source in wanted), is_quiet=is_quiet) as advance:
        found = list(statistics(reader, wanted, advance))
    if is_json:
        output.write_json({"step": info.step, "path": info.path, "statistics": found})
        return
    columns = [Column("NAME"), Column("COUNT", is_number=True), *(Column(name, is_number=True) for name in _STATISTICS)]
    output.write_table(columns, [_statistics_cells(each) for each in found])


def _statistics_cells(found: Statistics) -> list[str]:
    values = (found.minimum, found.maximum, found.mean, found.std)
    return [found.name, str(found.count), *map(number_text, values), str(found.n_nan), str(found.n_inf)]


def _print_values(info: StepInfo, name: str, *, is_json: bool) -> None:
    from hpcckpt.loading import load

    arrays = load(info.path, name)
    if is_json:
        values = {key: _as_list(array) for key, array in arrays.items()}
        output.write_json({"step": info.step, "path": info.path, "values": values})
        return
    for key, array in arrays.items():
        output.write_line(f"{key} {array.dtype} {shape_text(array.shape)}")
        output.write_line(array.tobytes().decode("utf-8", "replace") if _is_text(name, array) else str(array))


def _is_text(name: str, array: Any) -> bool:
    """Say whether this is a rank's JSON value, which is stored as its bytes."""
    return name.endswith("/json") and str(array.dtype) == "uint8"


def _as_list(array: Any) -> Any:
    """Return an array as JSON values; what JSON has no numbers for becomes text."""
    if array.dtype.kind in "biuf":
        return array.tolist()
    if array.dtype.kind == "V" and array.dtype.name[:2] in {"bf", "fl"}:  # bfloat16 and float8
        return array.astype("float32").tolist()
    return array.astype(str).tolist()
