"""Contents of Keras' HDF5 files, by h5py alone: neither Keras nor TensorFlow is needed, and no code is run.

``weights``  the layout of Keras 1 and 2 (``model.save_weights("x.h5")``): a group for each layer, named weights
``model``    the same below ``model_weights``, with architecture and optimizer beside it (``model.save("x.h5")``)
``vars``     ``.weights.h5`` of Keras 2.15 and 3: weights are numbered, so the names are those of the file
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import ITEMSIZE
from hpcckpt.errors import CorruptError, ForeignFormatError, HpcckptError
from hpcckpt.format.note import KEY, decode
from hpcckpt.keras.files.note import import_h5py
from hpcckpt.keras.model.naming import Namer, slot_path, stem
from hpcckpt.restoring.reader import Array
from hpcckpt.tools.convert.contents import Contents, refuse_claim, with_note

Layout = Literal["weights", "model", "vars"]
_LEARNING_RATE = "optimizer/learning_rate"
_ALWAYS_FINE = 1 << 26
_MOST_IN_CHUNK = 4


def layout_of(path: Path) -> Layout | None:
    """Return how an HDF5 file is laid out; ``None`` if it is none of Keras'. Independent.

    Raises
    ------
    ConfigError
        If h5py is not installed.
    CorruptError
        If it is damaged.
    """
    with _open(path) as file:
        if "model_weights" in file:
            return "model"
        if "layer_names" in file.attrs:
            return "weights"
        is_numbered = any(_is_numbered(file, name) for name in file)
        return "vars" if is_numbered else None


def check_hdf5(path: Path) -> None:
    """Raise if an HDF5 file is not what it seems. Independent.

    Links to other files and data that lie in them would bring into a checkpoint what else is on this machine, and
    datasets of which nothing is stored would take as much memory as they say.

    Raises
    ------
    ForeignFormatError, CorruptError
        Naming the first such thing.
    """
    with _open(path) as file:
        _check(file, str(path))


def check_keras(path: Path) -> None:
    """Raise if the weights in a ``.keras`` file are not what they seem, see `check_hdf5`. Independent."""
    h5py = import_h5py()
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(_WEIGHTS)
            refuse_claim(f"{path}: {_WEIGHTS}", member.file_size, member.compress_size)
            with archive.open(_WEIGHTS) as packed, h5py.File(packed, "r") as file:
                _check(file, f"{path}: {_WEIGHTS}")
    except (zipfile.BadZipFile, KeyError, OSError, RuntimeError, EOFError, zlib.error) as error:
        raise CorruptError(f"{path} is damaged: {error}") from error


_WEIGHTS = "model.weights.h5"


def _check(file: Any, where: str) -> None:
    h5py = import_h5py()
    todo, seen = [(file, "")], set()
    while todo:
        group, path = todo.pop()
        for name in group:
            place = f"{path}/{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ForeignFormatError(f"{where} is refused: {place} is a link, not data")
            thing = group[name]
            if isinstance(thing, h5py.Dataset):
                _check_dataset(thing, f"{where}: {place}")
            elif isinstance(thing, h5py.Group) and thing.id not in seen:
                seen.add(thing.id)
                todo.append((thing, place))


def _check_dataset(dataset: Any, where: str) -> None:
    if dataset.external or dataset.is_virtual:
        raise ForeignFormatError(f"{where} is refused: its data lie in another file")
    width, nbytes = dataset.dtype.itemsize, dataset.nbytes if dataset.size else 0
    refuse_claim(where, nbytes, dataset.id.get_storage_size())
    chunk = math.prod(dataset.chunks or ()) * width if nbytes else 0
    if chunk > max(_MOST_IN_CHUNK * nbytes, _ALWAYS_FINE):  # HDF5 unpacks a whole chunk for any value in it
        raise CorruptError(
            f"{where} is refused: it has {nbytes} bytes, in chunks of {chunk}, which take that much memory; write it "
            "again with smaller chunks (h5repack)"
        )


def _is_numbered(file: Any, name: str) -> bool:
    return name in {"vars", "layers", "_layer_checkpoint_dependencies"} or f"{name}/vars" in file


def read_hdf5(path: Path, progress: Progress | None = None) -> Contents:
    """Return the arrays of a file, read into memory. Independent.

    Raises
    ------
    ConfigError
        If h5py is not installed.
    CorruptError
        If it is damaged.
    ForeignFormatError
        If it is laid out in a way that Keras does not.
    """
    layout = layout_of(path)
    if layout is None:
        raise ForeignFormatError(f"{path} is an HDF5 file, but not one of Keras'")
    check_hdf5(path)
    with _open(path) as file:
        note = file.attrs.get(KEY)
        found = _numbered(file) if layout == "vars" else _named(file, layout)
        tensors: dict[str, Array] = {}
        claimed, stored = 0, path.stat().st_size
        for name, dataset in found:
            if name in tensors:
                raise ForeignFormatError(f"{path}: two weights would be called {name}; give the model (--model)")
            claimed += dataset.nbytes
            refuse_claim(f"{path}: {name}", claimed, stored)  # one dataset may have many names
            tensors[name] = dataset if isinstance(dataset, np.ndarray) else _array(dataset)
            if progress:
                progress(tensors[name].nbytes)
    return with_note(Contents(tensors), decode(note) if isinstance(note, str | bytes) else None)


class _open:  # noqa: N801 - reads as the function that it is used as
    """An open HDF5 file that raises hpcckpt's errors."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Any:
        h5py = import_h5py()
        try:
            self._file = h5py.File(self._path, "r")
        except OSError as error:
            raise CorruptError(f"{self._path} is damaged, or no HDF5 file: {error}") from error
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._file.close()
        kinds = KeyError | OSError | RuntimeError | ValueError | TypeError | AttributeError
        if isinstance(error, kinds) and not isinstance(error, HpcckptError):
            raise CorruptError(f"{self._path} is damaged: {error}") from error


def _array(dataset: Any) -> Array:
    """Return the values of a dataset; types that HDF5 lacks (bfloat16) by the attribute that Keras 3 adds."""
    values: Array = np.asarray(dataset[()])
    token = dataset.attrs.get("dtype")
    token = token.decode() if isinstance(token, bytes) else token
    if values.dtype.kind == "V" and token in ITEMSIZE:
        return values.view(numpy_dtype(token))
    return values


# -- .weights.h5 -----------------------------------------------------------------------------------


def _numbered(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield what Keras' numbered layout holds, but for metrics: ``model/layers/dense/vars/0``."""
    found: list[tuple[str, Any]] = []
    file.visititems(lambda name, thing: found.append((name, thing)) if hasattr(thing, "dtype") else None)
    for name, dataset in found:
        if not name.startswith("metrics/"):
            yield (name if name.startswith("optimizer/") else f"model/{name}"), dataset


# -- .h5 -------------------------------------------------------------------------------------------


def _named(file: Any, layout: Layout) -> Iterator[tuple[str, Any]]:
    """Yield what the layout of Keras 1 and 2 holds, as a checkpoint of the model would name it."""
    weights = file["model_weights"] if layout == "model" else file
    classes = _layer_classes(file)
    namer, paths = Namer(), {}
    for layer in [*_names(weights, "layer_names"), "top_level_model_weights"]:
        if layer not in weights:
            continue
        ours = namer.take(stem(layer, classes.get(layer, layer)))
        for name in _names(weights[layer], "weight_names"):
            own = name.partition(":")[0]
            inner = f"/{own}".rpartition(f"/{layer}/")[2] if f"/{layer}/" in f"/{own}" else own
            paths[own] = inner if layer == "top_level_model_weights" else f"{ours}/{inner}"
            yield f"model/{paths[own]}", weights[layer][name]
    yield from _optimizer(file, paths)


def _names(group: Any, attribute: str) -> list[str]:
    """Return the names that an attribute lists; long lists are cut into several attributes."""
    pieces = (
        [attribute]
        if attribute in group.attrs
        else sorted((name for name in group.attrs if name.startswith(attribute)), key=lambda name: (len(name), name))
    )
    names = [name for piece in pieces for name in group.attrs[piece]]
    return [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in names]


def _layer_classes(file: Any) -> dict[str, str]:
    """Return the classes of the top layers by their names, as far as the file says."""
    config = _json(file.attrs.get("model_config")).get("config")
    layers = config.get("layers") if isinstance(config, Mapping) else config
    found: dict[str, str] = {}
    for layer in layers if isinstance(layers, list) else []:
        inner = layer.get("config", {}) if isinstance(layer, Mapping) else {}
        name = layer.get("name", inner.get("name")) if isinstance(inner, Mapping) else None
        if isinstance(name, str) and isinstance(layer.get("class_name"), str):
            found[name] = layer["class_name"]
    return found


def _optimizer(file: Any, paths: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    if "optimizer_weights" not in file:
        return
    flat = {own.replace("/", "_"): own for own in paths}
    group, seen = file["optimizer_weights"], set()
    for name in _names(group, "weight_names"):
        slot, _, weight = slot_path(name, flat).partition("/")
        ours = f"optimizer/{slot}/{paths.get(weight, weight)}" if weight else f"optimizer/{slot}"
        seen.add(ours)
        yield ours, group[name]
    rate = _learning_rate(file)
    if rate is not None and _LEARNING_RATE not in seen:
        yield _LEARNING_RATE, rate


def _learning_rate(file: Any) -> Array | None:
    """Return the learning rate, which Keras 2.15 keeps among the words about the training."""
    optimizer = _json(file.attrs.get("training_config")).get("optimizer_config")
    config = optimizer.get("config") if isinstance(optimizer, Mapping) else None
    rate = config.get("learning_rate") if isinstance(config, Mapping) else None
    return np.asarray(rate, np.float32) if isinstance(rate, float) else None


def _json(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str | bytes) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def optimizer_values(path: Path) -> list[Array]:
    """Return the optimizer's variables in the order in which Keras keeps them; none if there are none. Independent."""
    with _open(path) as file:
        if "optimizer_weights" not in file:
            return []
        group = file["optimizer_weights"]
        return [_array(group[name]) for name in _names(group, "weight_names")]
