"""``hpcckpt restore``: a checkpoint as one file for other programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text, one_line
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.core.units import nbytes_text
from hpcckpt.rundir.discovery import StepInfo

if TYPE_CHECKING:
    from hpcckpt.restoring.reader import StepReader

FORMATS = ("npz", "safetensors", "hdf5", "weights.h5")
_SUFFIXES = {
    ".weights.h5": "weights.h5", ".npz": "npz", ".safetensors": "safetensors", ".h5": "hdf5", ".hdf5": "hdf5",
}  # fmt: skip
"""How names of files end, and the format that this means; the first that fits counts."""

_NO_MODEL = (
    "Keras lays .weights.h5 out by the model's Python attributes, which a checkpoint does not know: add "
    "--model model.json (from model.to_json()), --model model.keras, or --model package.module:function that builds "
    "the model; or write --to safetensors, which needs no model"
)


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """What was written; its fields are the keys of ``--json``."""

    path: Path
    format: str
    step: int
    ranks: int
    tensors: int
    nbytes: int
    widened: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@click.command("restore")
@options.directory_argument
@options.step_argument
@click.option("-o", "--out", type=PathType(), required=True, metavar="FILE", help="The file to write.")
@click.option("--to", "wanted_format", type=click.Choice(FORMATS), help="Its format; by default what its name says.")
@options.only_option
@click.option("--no-optimizer", "is_without_optimizer", is_flag=True, help="Leave the optimizer's tensors out.")
@click.option("--model", metavar="MODEL", help="For .weights.h5: model.json, model.keras, or module:function.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite FILE if it exists.")
@options.metric_option
@options.threads_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    step: str | None,
    out: Path,
    wanted_format: str | None,
    patterns: tuple[str, ...],
    model: str | None,
    metric: str | None,
    threads: int,
    *,
    is_without_optimizer: bool,
    is_forced: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Write a checkpoint as one file for other programs.

    The file is .npz, .safetensors, .h5 (plain HDF5), or Keras' .weights.h5. STEP is a number, 'latest' (the default) or
    'best'. Every byte is verified on the way; FILE is there whole or not at all, and is never
    overwritten without --force. What each rank had for itself is written as NAME#RANK.

    This needs neither MPI nor TensorFlow, but for .weights.h5, which needs Keras and a --model.
    """
    from hpcckpt.restoring.segments import held_step
    from hpcckpt.rundir.atomic_files import atomic_path
    from hpcckpt.tools.convert.result import is_of_optimizer

    options.file_to_write(out, is_overwriting=is_forced)
    file_format = _format_of(out, wanted_format, model)
    info = options.find(directory, step, metric)
    specs = options.chosen_tensors(options.readable(info), patterns)
    specs = [spec for spec in specs if not (is_without_optimizer and is_of_optimizer(spec.name))]
    with (
        output.stdout_for_json(is_json=is_json),
        held_step(info.path, threads) as reader,
        atomic_path(out, is_overwriting=is_forced) as temporary,
    ):
        written = _write(temporary, out, file_format, reader, specs, model, is_quiet=is_quiet)
    if patterns:
        written = replace(written, left_out=())  # tensors were chosen by name
    _write_result(written, info, is_json=is_json, is_quiet=is_quiet)
    return ExitCode.OK


def _format_of(out: Path, wanted: str | None, model: str | None) -> str:
    found = wanted or next((name for suffix, name in _SUFFIXES.items() if out.name.endswith(suffix)), None)
    if found is None:
        raise click.UsageError(f"cannot tell the format from {out.name!r}; pass --to {' or --to '.join(FORMATS)}")
    if found == "weights.h5" and not out.name.endswith(".weights.h5"):
        raise click.UsageError(f"{out.name!r}: Keras reads such a file only if its name ends in .weights.h5")
    if found == "weights.h5" and model is None:
        raise click.UsageError(_NO_MODEL)
    if found != "weights.h5" and model is not None:
        raise click.UsageError(f"--model is for .weights.h5, not for {found}")
    return found


def _write(
    temporary: Path,
    out: Path,
    file_format: str,
    reader: StepReader,
    specs: Sequence[TensorSpec],
    model: str | None,
    *,
    is_quiet: bool,
) -> RestoredFile:
    from hpcckpt.restoring.segments import stored_arrays
    from hpcckpt.tools.convert import write_hdf5, write_npz, write_safetensors

    names = [spec.name for spec in specs]
    if file_format == "weights.h5":
        names = _write_weights(temporary, reader, names, model or "")
        return _written(out, file_format, reader, names, sum(reader.specs[name].nbytes for name in names))
    wanted = stored_arrays(reader, names)
    total = sum(source.nbytes for source in wanted)
    with byte_progress("writing", total, is_quiet=is_quiet) as advance:
        writers = {"hdf5": write_hdf5.write_hdf5, "npz": write_npz.write_npz}
        writers.get(file_format, write_safetensors.write_safetensors)(temporary, reader, wanted, advance)
    widened = [source.name for source in wanted if file_format != "safetensors" and write_npz.is_widened(source)]
    return _written(out, file_format, reader, [each.name for each in wanted], total, widened)


def _written(
    out: Path, file_format: str, reader: StepReader, names: Sequence[str], nbytes: int, widened: Sequence[str] = ()
) -> RestoredFile:
    from hpcckpt.tools.convert.export import values_left_out

    manifest = reader.manifest
    left = values_left_out(manifest, file_format, names)
    left_out = tuple(name for each in left for name in each.names)
    return RestoredFile(out, file_format, manifest.step, manifest.n_ranks, len(names), nbytes, tuple(widened), left_out)


def _write_weights(temporary: Path, reader: StepReader, names: Sequence[str], model: str) -> list[str]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # a converter takes no GPU away from a job on this node
    from hpcckpt.keras.files.weights_file import write_weights

    return write_weights(temporary, reader, names, model)


def _write_result(written: RestoredFile, info: StepInfo, *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        output.write_json(written)
        return
    if written.widened:
        shown = _some(written.widened)
        output.log(f"as float32, because .{written.format} has no narrower type for them: {shown}", is_quiet=is_quiet)
    if written.left_out:
        count = count_text(len(written.left_out), "value that is not a tensor", "values that are not tensors")
        holds = "" if written.format == "hdf5" else "; --to hdf5 holds them"
        text = f"left out: {count}: {_some(written.left_out)} ('hpcckpt info' shows them{holds})"
        output.log(text, is_quiet=is_quiet)
    size = f"{count_text(written.tensors, 'tensor')}, {nbytes_text(written.nbytes)}"
    output.log(f"wrote {written.path} ({size}) from step {info.step} (ranks {written.ranks} -> 1)", is_quiet=is_quiet)


def _some(names: Sequence[str]) -> str:
    return one_line(", ".join(names[:3])) + (", …" if len(names) > 3 else "")
