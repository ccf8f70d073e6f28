"""A checkpoint as one plain HDF5 file: a dataset for each tensor and each value, in groups by the parts of its name.

Numbers, truth values and text are scalar datasets; other JSON is text with the attribute ``json``.  The note is an
attribute of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import Extent, itemsize
from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.format.manifest import Manifest
from hpcckpt.format.note import KEY, encode, note_of
from hpcckpt.keras.files.note import MAX_ATTRIBUTE_BYTES, import_h5py
from hpcckpt.restoring.checkpoint_info import is_rank_json
from hpcckpt.restoring.reader import StepReader
from hpcckpt.restoring.segments import PIECE_BYTES, StoredArray, read_array, split
from hpcckpt.tools.convert.places import Places
from hpcckpt.tools.convert.write_npz import is_widened, npy_dtype


def write_hdf5(
    path: Path,
    reader: StepReader,
    wanted: Sequence[StoredArray],
    progress: Progress | None = None,
) -> None:
    """Write arrays piece by piece, and the JSON values that have room beside them (see `place_values`). Independent.

    bfloat16 and float8, which HDF5 readers do not know, become float32: every value stays as it is.

    Raises
    ------
    ConfigError
        If h5py is not installed.
    OptionError
        If HDF5 has no type for an array, or no place for its name beside another; names all.
    """
    h5py = import_h5py()
    problems = [
        Problem(each.name, f"has no HDF5 type ({each.spec.dtype})") for each in wanted if not _has_type(h5py, each)
    ]
    problems += Places(_parts_of).take_all(each.name for each in wanted)
    objects = place_values(reader.manifest, [each.name for each in wanted])[0]
    if problems:
        raise OptionError(f"these cannot be in an HDF5 file: {list_problems(problems, 5)}; leave them out with --only")
    with h5py.File(path, "x") as file:
        file.attrs[KEY] = encode(
            note_of(reader.manifest, wanted, [each for each in wanted if is_widened(each)]), MAX_ATTRIBUTE_BYTES
        )
        for source in wanted:
            _write_array(file, reader, source)
            if progress:
                progress(source.nbytes)
        for name, value in objects.items():
            _write_value(file, name, value)


def place_values(manifest: Manifest, tensors: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON values to write beside these tensors, and the names of those that find no room. Pure.

    The state and ``objects`` may have the same names, a file has each once.
    """
    places = Places(_parts_of)
    places.take_all(tensors)
    values, left_out = places.room_for(manifest.objects.get("state", {}))
    objects, more = places.room_for(manifest.objects.get("user", {}))
    return values | objects, left_out + more


def _parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a name, as HDF5 reads it. Pure."""
    return tuple(part for part in name.split("/") if part not in {"", "."})


def _has_type(h5py: Any, source: StoredArray) -> bool:
    try:
        h5py.h5t.py_create(npy_dtype(source), logical=True)
    except TypeError:
        return False
    return True


def _write_array(file: Any, reader: StepReader, source: StoredArray) -> None:
    if is_rank_json(source.spec):
        _write_value(file, source.name, read_array(reader, source).tobytes().decode(errors="replace"), is_json=True)
        return
    dataset = file.create_dataset(source.name, source.shape, npy_dtype(source))
    if source.rank is not None:
        dataset[...] = read_array(reader, source).astype(dataset.dtype, copy=False)
        return
    for box in split(Extent.whole(source.shape), itemsize(source.spec.dtype), PIECE_BYTES):
        if box.n_elements:
            place = tuple(slice(start, start + length) for start, length in zip(box.offset, box.shape, strict=True))
            dataset[place] = reader.load(source.name, box).astype(dataset.dtype, copy=False)


def _write_value(file: Any, name: str, value: Any, *, is_json: bool = False) -> None:
    is_scalar = (
        isinstance(value, bool | float)
        or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
        or (isinstance(value, str) and "\0" not in value)  # which HDF5 takes for the end
    )
    dataset = file.create_dataset(name, data=value if is_scalar else json.dumps(value))
    if is_json or not is_scalar:
        dataset.attrs["json"] = True
