"""A checkpoint put into a Keras model, and as Keras' own ``.weights.h5``, which ``model.load_weights`` reads.

Keras lays such a file out by the model's Python attributes and the order of its layers, which no
checkpoint knows; so a model is needed, and Keras itself writes the file.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcckpt.errors import ConfigError, HpcckptError, StateMismatchError, list_problems
from hpcckpt.keras.files.match import compare
from hpcckpt.keras.files.model_config import is_model_file, read_config
from hpcckpt.keras.files.safe_config import know_own, refuse_code
from hpcckpt.keras.model.layer_state import finish
from hpcckpt.keras.model.layers import is_layer
from hpcckpt.restoring.reader import StepReader
from hpcckpt.state.tree import TensorLeaf


def build_model(source: str, *, is_compiled: bool = False) -> Any:
    """Build a model from ``model.json`` (its architecture), ``model.keras``, or ``module:function`` that returns it.

    With `is_compiled` a ``.keras`` or ``.h5`` file gives its optimizer too.

    Raises
    ------
    ConfigError
        If that is not what `source` is, or building fails, or would run code that a file brings along or names.
    CorruptError, ForeignFormatError
        If a file is damaged, or not what its name says.
    """
    try:
        model = _build(source, is_compiled=is_compiled)
    except HpcckptError as error:
        raise type(error)(f"model {source!r} cannot be built: {error}") from error
    except Exception as error:
        raise ConfigError(f"model {source!r} cannot be built: {type(error).__name__}: {error}") from error
    if not is_layer(model):
        raise ConfigError(f"model {source!r} gives a {type(model).__name__}, not a Keras model")
    return model


def _build(source: str, *, is_compiled: bool) -> Any:
    from keras import models

    if is_model_file(source):
        config = read_config(Path(source))
        know_own(config)
        refuse_code(config)
    if source.endswith(".json"):
        return models.model_from_json(Path(source).read_text(encoding="utf-8"))
    if source.endswith((".keras", ".h5", ".hdf5")):
        return models.load_model(source, compile=is_compiled)
    module, separator, function = source.partition(":")
    if not separator:
        raise ConfigError("it is none of model.json, model.keras, module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module), function)()


def fill(
    model: Any, reader: StepReader, names: Sequence[str], *, with_optimizer: bool = False
) -> dict[str, TensorLeaf]:
    """Put weights of a checkpoint into a model; return the leaves that were filled, by their names in the checkpoint.

    Parameters
    ----------
    model : keras.Model
        A built model. Random states of its layers that the checkpoint has not stay as they are.
    reader : StepReader
        The checkpoint.
    names : sequence of str
        Tensors of the checkpoint that may be used.
    with_optimizer : bool
        Fill the model's optimizer too, if there is one in the checkpoint.

    Raises
    ------
    StateMismatchError
        If names, shapes or dtypes differ; names every one.
    """
    fit = compare(model, reader.specs, names, with_optimizer=with_optimizer)
    if fit.problems:
        hint = "; or leave the optimizer out (--no-optimizer)" if with_optimizer else ""
        raise StateMismatchError(f"the model does not fit the checkpoint: {list_problems([*fit.problems], 10)}{hint}")
    assign(model, fit.leaves, reader)
    return dict(fit.leaves)


def assign(model: Any, leaves: Mapping[str, TensorLeaf], reader: StepReader) -> None:
    """Give variables of a model the values that a checkpoint has; of what each rank has for itself, rank 0's."""
    for name, leaf in leaves.items():
        is_per_rank = reader.specs[name].kind == "per-rank"
        leaf.assign(reader.load_rank(name, 0) if is_per_rank else reader.load(name))
    finish(model, leaves.values())


def write_weights(path: Path, reader: StepReader, names: Sequence[str], model_source: str) -> list[str]:
    """Write the weights of a model as ``.weights.h5``; return the names that went into it. Independent.

    The optimizer of a compiled model is left out: the file has weights only.

    Raises
    ------
    ConfigError
        If the model cannot be built.
    StateMismatchError
        If it does not fit the checkpoint.
    """
    model = build_model(model_source)
    model.optimizer = None
    used = fill(model, reader, names)
    model.save_weights(str(path))
    return sorted(used)
