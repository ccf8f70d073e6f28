"""``hpcckpt info``: one checkpoint, from its manifest."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.text import count_text, number_text, time_text
from hpcckpt.core.units import nbytes_text
from hpcckpt.format.manifest import Manifest
from hpcckpt.restoring.checkpoint_info import tensor_nbytes
from hpcckpt.rundir import pins
from hpcckpt.rundir.journal import epoch_of


@click.command("info")
@options.directory_argument
@options.step_argument
@options.metric_option
@options.json_option
def command(directory: Path, step: str | None, metric: str | None, *, is_json: bool) -> int:
    """Show what one checkpoint is and where it comes from.

    STEP is a number, 'latest' (the default) or 'best'; DIRECTORY may also be that of one step.
    Only the manifest is read, so this is quick whatever the size.
    """
    info = options.find(directory, step, metric)
    manifest = options.readable(info)
    is_pinned = info.step in pins.pins(info.path.parent)
    if is_json:
        output.write_json(document(info.path, manifest, is_pinned=is_pinned, problem=info.problem))
    else:
        output.write_fields(_fields(info.path, manifest, is_pinned=is_pinned, problem=info.problem))
    return ExitCode.OK


def document(path: Path, manifest: Manifest, *, is_pinned: bool, problem: str) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "step": manifest.step,
        "epoch": epoch_of(manifest.objects),
        "path": path,
        "save_id": manifest.save_id,
        "run_id": manifest.run_id,
        "parent": manifest.parent,
        "created": manifest.created,
        "ranks": manifest.n_ranks,
        "backend": manifest.backend,
        "level": manifest.level,
        "nbytes": manifest.nbytes,
        "tensor_nbytes": tensor_nbytes(manifest),
        "block_bytes": manifest.block_bytes,
        "pinned": is_pinned,
        "damage": problem,
        "metrics": manifest.metrics,
        "objects": manifest.objects,
        "environment": manifest.environment,
        "tensors": dict(sorted(Counter(spec.kind for spec in manifest.tensors).items())),
        "files": [{"path": file.path, "nbytes": file.nbytes} for file in manifest.files],
    }


def _fields(path: Path, manifest: Manifest, *, is_pinned: bool, problem: str) -> list[tuple[str, str]]:
    epoch = epoch_of(manifest.objects)
    kinds = Counter(spec.kind for spec in manifest.tensors)
    files = f"{count_text(len(manifest.files), 'file')}, {nbytes_text(manifest.nbytes)}"
    fields = [
        ("step", f"{manifest.step}{' (pinned)' if is_pinned else ''}"),
        *([("damage", problem)] if problem else []),
        *([("epoch", str(epoch))] if epoch is not None else []),
        ("path", str(path)),
        ("created", time_text(manifest.created)),
        ("ranks", str(manifest.n_ranks)),
        ("backend", f"{manifest.backend}, {files}"),
        ("tensors", f"{len(manifest.tensors)} ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})"),
        ("level", _LEVELS.get(manifest.level, manifest.level)),
        ("metrics", ", ".join(f"{name} {number_text(value)}" for name, value in manifest.metrics.items()) or "-"),
        ("save", f"{manifest.save_id}, after {manifest.parent or 'none'}, run {manifest.run_id}"),
        ("made with", ", ".join(f"{name} {version}" for name, version in manifest.environment.items())),
    ]
    return fields + [("object", line) for line in _object_lines(manifest)]


_LEVELS = {
    "exact": "exact: a resumed run ends with the same bits",
    "state": "state: all that was saved comes back, but a resumed run may end with other bits",
    "weights": "weights: only weights come back",
}


def _object_lines(manifest: Manifest) -> list[str]:
    """Return the small JSON values, one a line, long ones cut."""
    lines = []
    for origin, values in manifest.objects.items():
        pairs = values.items() if isinstance(values, dict) else [(None, values)]
        lines += [f"{origin if name is None else name}: {_short(value)}" for name, value in pairs]
    return lines


def _short(value: Any, limit: int = 100) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
