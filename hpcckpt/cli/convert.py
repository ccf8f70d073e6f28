"""``hpcckpt convert``: checkpoints to other formats, and from them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.text import count_text
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import StepExistsError
from hpcckpt.format import layout
from hpcckpt.rundir import discovery

if TYPE_CHECKING:
    from hpcckpt.tools.convert.result import Converted

NAMES = ("hpcckpt", "npz", "safetensors", "pt", "tf", "weights.h5", "keras", "h5", "saved-model", "hdf5")
READ_WITH_MODEL = ("tf", "weights.h5", "keras", "h5")
_format = click.Choice(NAMES)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a conversion; `wanted` is passed on to the export or import."""

    source: Path
    target: Path
    source_format: str | None
    target_format: str | None
    step: str | None
    metric: str | None
    model: str | None
    threads: int
    wanted: Mapping[str, Any]
    is_quiet: bool


@click.command("convert")
@click.argument("source", metavar="SRC", type=PathType())
@click.argument("target", metavar="DST", type=PathType())
@click.option("--from", "source_format", type=_format, help="What SRC is; by default what is in it says.")
@click.option("--to", "target_format", type=_format, help="What DST becomes; by default what its name says.")
@click.option("--step", metavar="STEP", help="The step to take (a number, latest, best), or the number to save as.")
@options.only_option
@click.option("--no-optimizer", "is_without_optimizer", is_flag=True, help="Leave the optimizer's tensors out.")
@click.option("--model", metavar="MODEL", help="For Keras' formats: model.json, model.keras, or module:function.")
@click.option("--force", "is_forced", is_flag=True, help="Replace DST, or its step, if it exists.")
@options.metric_option
@options.threads_option
@options.json_option
@options.quiet_option
def command(
    source: Path,
    target: Path,
    source_format: str | None,
    target_format: str | None,
    step: str | None,
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
    """Convert a checkpoint to another format, or from one.

    SRC or DST is an hpcckpt run directory; the other one is a file of another program: npz, safetensors, PyTorch's pt,
    Keras' weights.h5, keras and h5, a TensorFlow checkpoint (the prefix of its files), or, as DST only, the directory
    of a SavedModel, or hdf5, a plain file with a dataset per tensor. Both may be such files. The table shows what was
    left out, and why.

    Keras' formats, as DST, and the objects of a TensorFlow checkpoint need a --model, unless the checkpoint holds its
    architecture. No code is run that a file brings along, SRC or MODEL; module:function is your own code, and is run.
    """
    _see_no_gpu()
    wanted = {"only": patterns or None, "optimizer": not is_without_optimizer, "overwrite": is_forced}
    asked = Asked(source, target, source_format, target_format, step, metric, model, threads, wanted, is_quiet)
    is_ours, becomes_ours = _formats(asked)
    if not becomes_ours:
        options.refuse_stdout(target)
    if metric is not None and not is_ours:
        raise click.UsageError("--metric chooses a step of a run directory, and SRC is none")
    with output.stdout_for_json(is_json=is_json):
        if is_ours:
            done = _export(asked)
        elif becomes_ours:
            options.run_to_write(target)
            done = _import(asked, _number(step))
        else:
            done = _both(asked, _number(step))
    _write_result(done, is_json=is_json, is_quiet=is_quiet)
    return ExitCode.OK


def _see_no_gpu() -> None:
    """Use no GPU, which a job on this node may need, and silence TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def _formats(asked: Asked) -> tuple[bool, bool]:
    """Return for source and target whether they are run directories; at most one is."""
    from hpcckpt.tools.convert.detect import source_format
    from hpcckpt.tools.convert.formats import OWN, format_of_name

    with elsewhere.pointing_below(asked.source):
        is_ours = (asked.source_format or source_format(asked.source)) == OWN
    says_nothing = asked.target_format is None and format_of_name(asked.target) is None
    becomes_ours = asked.target_format == OWN or (says_nothing and not is_ours)
    if is_ours and becomes_ours:
        raise click.UsageError("both are run directories: 'hpcckpt reshard' rewrites a checkpoint")
    return is_ours, becomes_ours


def _number(step: str | None) -> int | None:
    if step is None:
        return None
    if not (step.isdecimal() and len(step) < discovery.MAX_DIGITS and int(step) <= layout.MAX_STEP):
        shown = step if len(step) < discovery.MAX_DIGITS else f"{step[: discovery.MAX_DIGITS]}…"
        raise click.UsageError(f"--step {shown}: what is saved needs a number, at most 10**18")
    return int(step)


def _export(asked: Asked) -> Converted:
    from hpcckpt.tools.convert.export import export_checkpoint

    info = options.find(asked.source, asked.step, asked.metric)
    total = sum(spec.nbytes for spec in options.chosen_tensors(options.readable(info), asked.wanted["only"] or ()))
    words: dict[str, Any] = {"model": asked.model, "threads": asked.threads, **asked.wanted}
    with byte_progress("writing", total, is_quiet=asked.is_quiet) as advance:
        return export_checkpoint(info.path, asked.target, asked.target_format, progress=advance, **words)


def _import(asked: Asked, step: int | None) -> Converted:
    from hpcckpt.tools.convert.import_ import import_checkpoint

    words: dict[str, Any] = {"fmt": asked.source_format, "model": asked.model, **asked.wanted}
    with byte_progress("reading", _nbytes(asked.source), is_quiet=asked.is_quiet) as advance:
        try:
            return import_checkpoint(asked.source, asked.target, step, progress=advance, **words)
        except StepExistsError as error:
            raise StepExistsError(
                f"{asked.target} has this step already: pass --force to replace it, or --step N to save another one"
            ) from error


def _nbytes(source: Path) -> int:
    """Return how large the source is, about: what a bar goes by."""
    paths = [source] if source.is_file() else list(source.parent.glob(f"{source.name}.*"))
    return sum(path.stat().st_size for path in paths if path.is_file())


def _both(asked: Asked, step: int | None) -> Converted:
    """Convert between two foreign formats, by way of a checkpoint that is gone afterwards."""
    from hpcckpt.rundir.atomic_files import check_free
    from hpcckpt.tools.convert.detect import source_format
    from hpcckpt.tools.convert.export import export_checkpoint
    from hpcckpt.tools.convert.formats import target_format

    to = target_format(asked.target, asked.target_format)
    kind = asked.source_format or source_format(asked.source)
    is_overwriting = asked.wanted["overwrite"]
    check_free(asked.target, is_overwriting=is_overwriting, is_for_directory=to.name == "saved-model")
    to_read = asked.model if kind in READ_WITH_MODEL else None
    to_write = asked.model if to.is_model or to.name == "tf" else None
    with tempfile.TemporaryDirectory(prefix=".tmp-convert-", dir=asked.target.parent) as room:
        first = _import(replace(asked, target=Path(room), source_format=kind, model=to_read), step)
        words: dict[str, Any] = {"model": to_write, "overwrite": is_overwriting, "threads": asked.threads}
        second = export_checkpoint(first.path, asked.target, to.name, **words)
    return _joined(first, second)


def _joined(first: Converted, second: Converted) -> Converted:
    """Return what two conversions one after the other did. Pure."""
    return replace(
        second,
        source=first.source,
        source_format=first.source_format,
        left_out=(*first.left_out, *second.left_out),
        remarks=(*first.remarks, *second.remarks),
    )


def _write_result(done: Converted, *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        output.write_json({**asdict(done), "tensors": done.tensors})
        return
    for remark in done.remarks:
        output.log(remark, is_quiet=is_quiet)
    output.write_table(_COLUMNS, _rows(done))
    size = f"{count_text(done.tensors, 'tensor')}, {nbytes_text(done.nbytes)}"
    output.log(f"wrote {done.path} ({done.format}, {size}) from {done.source} (step {done.step})", is_quiet=is_quiet)


_COLUMNS = (output.Column("PART"), output.Column("TENSORS", is_number=True), output.Column("OUTCOME"))


def _rows(done: Converted) -> list[Sequence[str]]:
    parts = (("weights", done.weights), ("optimizer", done.optimizer), ("other", done.other))
    rows: list[Sequence[str]] = [(part, str(count), "written") for part, count in parts if count]
    for left in done.left_out:
        shown = ", ".join(left.names[:2]) + (", …" if len(left.names) > 2 else "")
        rows.append(("left out", str(len(left.names)), f"{left.reason}: {shown}"))
    return rows
