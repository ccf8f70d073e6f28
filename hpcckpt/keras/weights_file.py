"""A checkpoint as Keras' own ``.weights.h5``, which ``model.load_weights`` reads.

Keras lays such a file out by the model's Python attributes and the order of its layers, which no
checkpoint knows; so a model is needed, and Keras itself writes the file.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt.errors import ConfigError, Problem, StateMismatchError, list_problems
from hpcckpt.keras.layers import is_layer
from hpcckpt.keras.state import MODEL, leaves
from hpcckpt.loading import StepReader
from hpcckpt.snapshot import TensorLeaf

SUFFIX = ".weights.h5"


def load_model(source: str) -> Any:
    """Build a model from ``model.json`` (its architecture), ``model.keras``, or ``module:function`` that returns it.

    Raises
    ------
    ConfigError
        If that is not what `source` is, or building fails.
    """
    try:
        model = _build(source)
    except Exception as error:
        raise ConfigError(f"model {source!r} cannot be built: {type(error).__name__}: {error}") from error
    if not is_layer(model):
        raise ConfigError(f"model {source!r} gives a {type(model).__name__}, not a Keras model")
    return model


def _build(source: str) -> Any:
    from keras import models

    if source.endswith(".json"):
        return models.model_from_json(Path(source).read_text(encoding="utf-8"))
    if source.endswith(".keras"):
        return models.load_model(source, compile=False)
    module, separator, function = source.partition(":")
    if not separator:
        raise ConfigError("it is none of model.json, model.keras, module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module), function)()


def weights_of(model: Any) -> dict[str, TensorLeaf]:
    """Return the weights of a model by their names within it, without its optimizer."""
    head = f"{MODEL}/"
    found = {leaf.declaration.spec.name: leaf for leaf in leaves(model, "") or () if isinstance(leaf, TensorLeaf)}
    return {name[len(head) :]: leaf for name, leaf in found.items() if name.startswith(head)}


def find_prefix(wanted: Sequence[str], stored: Sequence[str]) -> str:
    """Return what stands before a model's names in a checkpoint: ``model`` in ``model/conv2d/kernel``. Pure.

    Raises
    ------
    StateMismatchError
        If the checkpoint holds no such model, or several; says what is missing.
    """
    there = set(stored)
    ends = [(name, one) for name in stored for one in wanted if f"/{name}".endswith(f"/{one}")]
    candidates = sorted({name[: -len(one)].rstrip("/") for name, one in ends})
    whole = [prefix for prefix in candidates if all(_join(prefix, one) in there for one in wanted)]
    if MODEL in whole or len(whole) == 1:
        return MODEL if MODEL in whole else whole[0]
    if whole:
        raise StateMismatchError(f"the model fits {', '.join(map(repr, whole))}; choose one with --only '{whole[0]}/*'")
    best = max(candidates, key=lambda prefix: sum(_join(prefix, one) in there for one in wanted), default=MODEL)
    missing = [Problem(_join(best, one), "is not in the checkpoint") for one in wanted if _join(best, one) not in there]
    raise StateMismatchError(f"the model does not fit the checkpoint: {list_problems(missing, 10)}")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def fill(model: Any, reader: StepReader, names: Sequence[str]) -> list[str]:
    """Put weights of a checkpoint into a model; return the names that were used.

    Raises
    ------
    StateMismatchError
        If names, shapes or dtypes differ; names every one.
    """
    weights = weights_of(model)
    prefix = find_prefix(list(weights), names)
    stored = {_join(prefix, name): leaf for name, leaf in weights.items()}
    problems = [problem for name, leaf in stored.items() if (problem := _mismatch(name, leaf, reader))]
    problems += [Problem(name, "is not in the model") for name in _extra(prefix, names) if name not in stored]
    if problems:
        raise StateMismatchError(f"the model does not fit the checkpoint: {list_problems(problems, 10)}")
    for name, leaf in stored.items():
        is_per_rank = reader.specs[name].kind == "per-rank"
        leaf.assign(reader.load_rank(name, 0) if is_per_rank else reader.load(name))
    return sorted(stored)


def _extra(prefix: str, names: Sequence[str]) -> list[str]:
    """Return the names below `prefix`, but for optimizers, which stand there if the model is not called ``model``."""
    below = [name for name in names if prefix and name.startswith(f"{prefix}/")]
    return [name for name in below if not name[len(prefix) + 1 :].partition("/")[0].endswith("optimizer")]


def _mismatch(name: str, leaf: TensorLeaf, reader: StepReader) -> Problem | None:
    there, here = reader.specs[name], leaf.declaration.spec
    if (there.shape, there.dtype) == (here.shape, here.dtype):
        return None
    texts = [f"{spec.dtype} {list(spec.shape)}" for spec in (there, here)]
    return Problem(name, f"is {texts[0]} in the checkpoint, {texts[1]} in the model")


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
    model = load_model(model_source)
    model.optimizer = None
    used = fill(model, reader, names)
    model.save_weights(str(path))
    return used
