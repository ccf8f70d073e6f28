"""A checkpoint as one of Keras' own files, or as a SavedModel: Keras itself writes it from a model that was filled.

What stock Keras makes of them:

``weights.h5``  ``model.load_weights``; weights, and the optimizer of a compiled model.
``keras``       ``keras.models.load_model``; the architecture besides.
``h5``          both of these, in the layout of Keras 1 and 2; of a subclassed model Keras 2.15 writes the weights only.
``saved-model`` ``tf.saved_model.load``; with Keras 2.15 ``keras.models.load_model`` too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.errors import ForeignFormatError
from hpcckpt.keras.files.compile_config import resolve_metrics, written_compile_config
from hpcckpt.keras.files.import_model import not_read_back, silence
from hpcckpt.keras.files.match import tensor_leaves
from hpcckpt.keras.files.weights_file import build_model, fill
from hpcckpt.keras.model.layers import is_layer
from hpcckpt.restoring.reader import StepReader
from hpcckpt.state.tree import TensorLeaf


def as_model(model: Any) -> Any:
    """Return a Keras model: itself, or what its source gives (see `weights_file.build_model`), compiled.

    Raises
    ------
    ConfigError
        If it cannot be built.
    ForeignFormatError
        If it is no model.
    """
    if isinstance(model, str | os.PathLike):
        with silence():
            return build_model(os.fspath(model), is_compiled=True)
    if not is_layer(model):
        raise ForeignFormatError(f"a {type(model).__name__} is not a Keras model")
    return model


def write_model(
    path: Path, file_format: str, model: Any, reader: StepReader, names: Sequence[str], *, with_optimizer: bool
) -> WrittenNames:
    """Fill a model with a checkpoint and have Keras write it; say what Keras finds in the file. Independent.

    The model keeps what it was filled with.

    Parameters
    ----------
    path : pathlib.Path
        The file, or for a SavedModel the directory, to write; Keras goes by how its name ends.
    file_format : str
        ``weights.h5``, ``keras``, ``h5`` or ``saved-model``.
    model : keras.Model
        A built model.
    reader : StepReader
        The checkpoint.
    names : sequence of str
        Tensors of it that may be used.
    with_optimizer : bool
        Whether the optimizer goes into the file, if model and checkpoint have one.

    Raises
    ------
    StateMismatchError
        If the model does not fit the checkpoint; names what differs.
    ForeignFormatError
        If Keras cannot write such a model in this format.
    """
    may_have_optimizer = file_format != "saved-model" or _is_keras_2(model)
    with filled(model, reader, names, with_optimizer=with_optimizer and may_have_optimizer) as used, silence():
        try:
            resolve_metrics(model)
            _WRITERS[file_format](model, str(path))
        except (ValueError, NotImplementedError, TypeError) as error:
            raise ForeignFormatError(f"Keras cannot write this model as {file_format}: {error}") from error
        lost = _lost(path, file_format, model, used)
    return WrittenNames(sorted(used.keys() - lost), sorted(lost))


class WrittenNames(NamedTuple):
    """Names of tensors that are in a file, and of those that Keras' own reader does not find there."""

    names: list[str]
    lost: list[str]


def _lost(path: Path, file_format: str, model: Any, used: Mapping[str, TensorLeaf]) -> set[str]:
    """Return the names of what Keras' own reader does not find in the file that it wrote.

    ``load_weights`` is asked.  It passes over what ``load_model`` takes from the words about the training in a
    ``.keras`` file (the learning rate, in Keras 2.15) and over the optimizer in an ``.h5`` file.
    """
    if file_format == "saved-model":
        return set()
    asked = used if file_format != "h5" else {name: leaf for name, leaf in used.items() if not _is_of_optimizer(name)}
    lost = not_read_back(path, f".{file_format}", model, asked)
    return {name for name in lost if not (file_format == "keras" and name.endswith("optimizer/learning_rate"))}


def _is_of_optimizer(name: str) -> bool:
    return any(part.endswith("optimizer") for part in name.split("/")[:-1])


@contextlib.contextmanager
def filled(
    model: Any, reader: StepReader, names: Sequence[str], *, with_optimizer: bool
) -> Iterator[dict[str, TensorLeaf]]:
    """Fill a model with a checkpoint; give what was filled, by its names in the checkpoint.

    While the block runs the model has no optimizer, unless that was filled too.

    Raises
    ------
    StateMismatchError
        If the model does not fit the checkpoint; names what differs.
    """
    optimizer = getattr(model, "optimizer", None)
    with silence():
        found = fill(model, reader, names, with_optimizer=with_optimizer and optimizer is not None)
    own = set() if optimizer is None else {id(leaf.source) for leaf in tensor_leaves(optimizer).values()}
    is_aside = optimizer is not None and not any(id(leaf.source) in own for leaf in found.values())
    if is_aside:
        model.optimizer = None
    try:
        yield found
    finally:
        if is_aside:
            model.optimizer = optimizer


def _is_keras_2(model: Any) -> bool:
    return hasattr(model, "_is_graph_network")


def _write_weights(model: Any, path: str) -> None:
    model.save_weights(path)


def _write_keras(model: Any, path: str) -> None:
    model.save(path)


def _write_h5(model: Any, path: str) -> None:
    has_optimizer = getattr(model, "optimizer", None) is not None
    if not _is_keras_2(model):
        with written_compile_config(model):
            model.save(path, include_optimizer=has_optimizer)
    elif model._is_graph_network or type(model).__name__ == "Sequential":
        model.save(path, include_optimizer=has_optimizer, save_format="h5")
    else:
        model.save_weights(path, save_format="h5")


def _write_saved_model(model: Any, path: str) -> None:
    if _is_keras_2(model):
        model.save(path, save_format="tf", include_optimizer=model.optimizer is not None)
    else:
        model.export(path, verbose=False)


_WRITERS = {"weights.h5": _write_weights, "keras": _write_keras, "h5": _write_h5, "saved-model": _write_saved_model}
