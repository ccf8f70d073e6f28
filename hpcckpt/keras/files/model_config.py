"""The model config in a Keras file, read without Keras, so that nothing in it is run before it is checked."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from hpcckpt.core.files import read_bounded
from hpcckpt.errors import CorruptError, ForeignFormatError, HpcckptError

MAX_CONFIG_BYTES = 1 << 28
_CONFIG = "config.json"
_HDF5_SUFFIXES = (".h5", ".hdf5")
_IN_HDF5 = ("model_config", "training_config")


def is_model_file(path: str) -> bool:
    """Return True if a path is, by its name, a file of Keras' that holds an architecture. Pure."""
    return path.endswith((".json", ".keras", *_HDF5_SUFFIXES))


def read_config(path: Path) -> Any:
    """Return all that such a file says of its model and how it was compiled, as JSON. Independent.

    Raises
    ------
    ForeignFormatError
        If it is another kind of file than its name says: Keras would go by what is in it.
    CorruptError
        If it is damaged.
    """
    try:
        if path.name.endswith(".json"):
            return json.loads(read_bounded(str(path), MAX_CONFIG_BYTES))
        return _of_hdf5(path) if path.name.endswith(_HDF5_SUFFIXES) else _of_zip(path)
    except HpcckptError:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, OSError, RuntimeError, zlib.error) as error:
        raise CorruptError(f"{path} is damaged, or not what its name says: {error}") from error


def _of_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo(_CONFIG).file_size > MAX_CONFIG_BYTES:
            raise CorruptError(f"{path}: {_CONFIG} is larger than {MAX_CONFIG_BYTES} bytes")
        return json.loads(archive.read(_CONFIG))


def _of_hdf5(path: Path) -> Any:
    import h5py

    if not path.is_file():
        raise ForeignFormatError(f"{path} is not a file: Keras would take a directory of this name for a SavedModel")
    with h5py.File(path, "r") as file:
        if _IN_HDF5[0] not in file.attrs:
            raise ForeignFormatError(
                f"{path} holds no architecture, only weights: build the model and call model.load_weights, or give "
                "model.json or module:function"
            )
        return {name: json.loads(file.attrs[name]) for name in _IN_HDF5 if name in file.attrs}
