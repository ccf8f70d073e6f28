"""``hpcckpt tensors``: what tensors a checkpoint holds; with options, their values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.tensor_tree import as_json, tree_lines, tree_of
from hpcckpt.cli.text import count_text, number_text, one_line, shape_text
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import OptionError
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir.discovery import StepInfo

if TYPE_CHECKING:
    from hpcckpt.tools.inspect import TensorStatistics

_COLUMNS = (Column("NAME"), Column("DTYPE"), Column("SHAPE"), Column("SIZE", is_number=True), Column("KIND"))
_STATISTICS = ("MIN", "MAX", "MEAN", "STD", "NAN", "INF")


@click.command("tensors")
@options.directory_argument
@options.step_argument
@options.only_option
@click.option(
    "--stats", "has_stats", is_flag=True, help="Read the values too: range, mean, deviation, NaN and infinities."
)
@click.option("--tree", "is_tree", is_flag=True, help="Show names as a tree, with the sum of each branch.")
@click.option("-d", "--data", "data", metavar="NAME", help="Print one tensor or object, or NAME#RANK.")
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
    is_tree: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """List the tensors of a checkpoint.

    STEP is a number, 'latest' (the default) or 'best'. Only the manifest is read, unless values are
    asked for with --stats or --data.
    """
    if is_tree and (has_stats or data is not None):
        raise OptionError("--tree shows no values: leave it out, or --stats and --data")
    if data is not None and (has_stats or patterns):
        raise OptionError("--data prints the values of NAME alone: leave it out, or --stats and --only")
    info = options.find(directory, step, metric)
    manifest = options.readable(info)
    if data is not None:
        _print_values(info, manifest, data, is_json=is_json)
        return ExitCode.OK
    specs = options.chosen_tensors(manifest, patterns)
    if has_stats:
        _print_statistics(info, specs, is_json=is_json, is_quiet=is_quiet)
    elif is_tree:
        _print_tree(info, specs, is_json=is_json)
    elif is_json:
        keys = ("name", "dtype", "shape", "nbytes", "kind")
        tensors = [{key: getattr(spec, key) for key in keys} for spec in specs]
        output.write_json({"step": info.step, "path": info.path, "tensors": tensors})
    else:
        rows = [[spec.name, spec.dtype, shape_text(spec.shape), nbytes_text(spec.nbytes), spec.kind] for spec in specs]
        output.write_table(_COLUMNS, rows)
        total = nbytes_text(sum(spec.nbytes for spec in specs))
        output.log(f"{count_text(len(specs), 'tensor')}, {total}", is_quiet=is_quiet)
    return ExitCode.OK


def _print_tree(info: StepInfo, specs: Sequence[TensorSpec], *, is_json: bool) -> None:
    tree = tree_of(specs, info.path.name)
    if is_json:
        output.write_json({"step": info.step, "path": info.path, "tree": as_json(tree)})
        return
    for line in tree_lines(tree):
        output.write_line(line)


def _print_statistics(info: StepInfo, specs: Sequence[TensorSpec], *, is_json: bool, is_quiet: bool) -> None:
    from hpcckpt.restoring.reader import open_step
    from hpcckpt.restoring.segments import stored_arrays
    from hpcckpt.tools.inspect import statistics

    reader = open_step(info.path)
    wanted = stored_arrays(reader, [spec.name for spec in specs])
    with byte_progress("reading", sum(source.nbytes for source in wanted), is_quiet=is_quiet) as advance:
        found = list(statistics(reader, wanted, advance))
    if is_json:
        output.write_json({"step": info.step, "path": info.path, "statistics": found})
        return
    columns = [Column("NAME"), Column("COUNT", is_number=True), *(Column(name, is_number=True) for name in _STATISTICS)]
    output.write_table(columns, [_statistics_cells(each) for each in found])


def _statistics_cells(found: TensorStatistics) -> list[str]:
    values = (found.minimum, found.maximum, found.mean, found.std)
    return [found.name, str(found.count), *map(number_text, values), str(found.n_nan), str(found.n_inf)]


def _print_values(info: StepInfo, manifest: Manifest, name: str, *, is_json: bool) -> None:
    found = _values(info, manifest, name)
    if is_json:
        values = {key: _as_list(value) if hasattr(value, "dtype") else value for key, value in found.items()}
        output.write_json({"step": info.step, "path": info.path, "values": values})
        return
    for key, value in found.items():
        if hasattr(value, "dtype"):
            output.write_line(f"{key} {value.dtype} {shape_text(value.shape)}")
        else:
            output.write_line(one_line(key))
        output.write_line(str(value) if hasattr(value, "dtype") else json.dumps(value, ensure_ascii=False))


def _values(info: StepInfo, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the arrays and JSON values that a name means, by name: a tensor, one rank's part of it, or an object."""
    from hpcckpt.restoring.checkpoint_info import is_rank_json, split_rank_name
    from hpcckpt.restoring.reader import load, open_step, rank_name
    from hpcckpt.state.arrays import json_value

    specs = {spec.name: spec for spec in manifest.tensors}
    tensor, rank = split_rank_name(name, specs)
    objects = [(group, key, value) for group, values in manifest.objects.items() for key, value in values.items()]
    named = {key: value for group, key, value in objects if name in {key, f"{group}/{key}"}}  # the latter: as in diff
    if tensor not in specs and named:
        return named
    if rank is not None and rank >= manifest.n_ranks:
        raise OptionError(f"{name!r}: this checkpoint was saved by {count_text(manifest.n_ranks, 'rank')}")
    tensor = options.chosen_tensors(manifest, (tensor,))[0].name
    if rank is not None:
        found = {rank_name(tensor, rank): open_step(info.path).load_rank(tensor, rank)}
    else:
        found = load(info.path, tensor)
    if is_rank_json(specs[tensor]):
        return {key: json_value(array, key) for key, array in found.items()}
    return found


def _as_list(array: Any) -> Any:
    """Return an array as JSON values; what JSON has no numbers for becomes text."""
    if array.dtype.kind in "biuf":
        return array.tolist()
    if array.dtype.kind == "V" and array.dtype.name[:2] in {"bf", "fl"}:  # bfloat16 and float8
        return array.astype("float32").tolist()
    return array.astype(str).tolist()
