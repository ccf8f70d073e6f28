"""A checkpoint as PyTorch's ``.pt``: a dict of tensors that nests as the state did, read with ``weights_only=True``.

``{"model/conv.weight": …, "optimizer/state/0/exp_avg": …}`` becomes ``{"model": {"conv.weight": …}, "optimizer":
{"state": {0: {"exp_avg": …}}}}``: keys of one dict that are all whole numbers become such, as PyTorch's optimizers
have them.  JSON values of the state keep their places; the note is under ``"hpcckpt"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpcckpt.core.results import Progress
from hpcckpt.errors import ConfigError, OptionError, Problem, list_problems
from hpcckpt.format.note import KEY, note_of
from hpcckpt.restoring.reader import Array, StepReader
from hpcckpt.restoring.segments import StoredArray, read_array
from hpcckpt.state.tree import as_bytes
from hpcckpt.tools.convert.places import Places


def import_torch() -> Any:
    """Return PyTorch.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"PyTorch reads and writes .pt files: pip install torch ({error})") from error
    return torch


def write_torch(
    path: Path,
    reader: StepReader,
    wanted: Sequence[StoredArray],
    objects: Mapping[str, Any],
    progress: Progress | None = None,
) -> None:
    """Write arrays and JSON values; all of them are in memory at once. Independent.

    Raises
    ------
    ConfigError
        If PyTorch is not installed.
    OptionError
        If arrays have dtypes that PyTorch does not know, or no place beside others, or the name of hpcckpt's own entry;
        names all.
    """
    torch = import_torch()
    problems = [
        Problem(each.name, f"has no PyTorch dtype ({each.spec.dtype})")
        for each in wanted
        if not _torch_dtype(torch, each.spec.dtype)
    ]
    problems += _places().take_all(each.name for each in wanted)
    if problems:
        raise OptionError(f"these cannot be in a .pt file: {list_problems(problems, 5)}; leave them out with --only")
    values: dict[str, Any] = place_values(objects, [each.name for each in wanted])[0]
    for source in wanted:
        values[source.name] = _tensor(torch, read_array(reader, source), source.spec.dtype)
        if progress:
            progress(source.nbytes)
    note = note_of(reader.manifest, wanted)
    user = dict(reader.manifest.objects.get("user", {}))
    values[KEY] = asdict(replace(note, objects={"user": user}))
    with path.open("xb") as file:  # an open file, for PyTorch would write the temporary name into it
        torch.save(nested(values), file)


def _torch_dtype(torch: Any, token: str) -> Any:
    found = getattr(torch, token, None)
    return found if isinstance(found, torch.dtype) else None


def _tensor(torch: Any, array: Array, token: str) -> Any:
    """Return a tensor that shares the array's memory."""
    dtype = _torch_dtype(torch, token)
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype)
    return torch.from_numpy(as_bytes(array)).view(dtype).reshape(array.shape)


def place_values(objects: Mapping[str, Any], tensors: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON values of the state to write beside these tensors, and the names of those without room. Pure."""
    places = _places()
    places.take_all(tensors)
    return places.room_for(objects)


def _places() -> Places:
    """Return the places of a file that has hpcckpt's own entry. Pure."""
    places = Places(lambda name: tuple(name.split("/")))
    places.take(KEY, "hpcckpt's own entry")
    return places


def nested(values: Mapping[str, Any]) -> dict[Any, Any]:
    """Return a dict of dicts, from names whose parts are joined with '/', and of which none is below another. Pure."""
    tree: dict[Any, Any] = {}
    for name, value in values.items():
        *parts, last = name.split("/")
        place = tree
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return {key: _numbered(value) for key, value in tree.items()}


def _numbered(value: Any) -> Any:
    """Return a dict with its keys as integers if all of them are digits."""
    if not isinstance(value, dict):
        return value
    is_counted = bool(value) and all(isinstance(key, str) and key.isdecimal() and str(int(key)) == key for key in value)
    return {int(key) if is_counted else key: _numbered(item) for key, item in value.items()}
