"""Accumulated values of metrics within an epoch, so that a resumed epoch reports figures of the whole epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tree import Array


def take(model: Any) -> Array:
    """Return the variables of a model's metrics, packed. Independent."""
    return pack({name: np.asarray(variable) for name, variable in _variables(model).items()})


def give_back(model: Any, packed: Array) -> list[str]:
    """Set the metrics to what `take` took; return descriptions of mismatches. Independent."""
    saved, _ = unpack(packed)
    variables = _variables(model)
    if _shapes(saved) != _shapes({name: np.asarray(variable) for name, variable in variables.items()}):
        why = (
            "Keras makes them with the first batch only (run_eagerly)" if _is_built_late(model) else "they have changed"
        )
        return [f"the values of the metrics of the current epoch start from zero: {why}"]
    for name, variable in variables.items():
        variable.assign(saved[name])
    return []


def build(model: Any, iterator: Any) -> None:
    """Have Keras make the variables of the metrics, which it does with its first step only; no step runs.

    Keras 2.15 makes them while it compiles the training step, which it would do anyway; Keras 3 from the shapes.
    """
    if hasattr(model, "_symbolic_build"):
        with contextlib.suppress(Exception):  # cannot be built from shapes alone: they start from zero, with a warning
            model._symbolic_build(data_batch=iterator.element_spec)
        return
    compiled = getattr(model.train_function, "get_concrete_function", None)
    if compiled is not None and _is_built_late(model):
        compiled(iterator)


def _is_built_late(model: Any) -> bool:
    """Return True if this Keras 2.15 has not made its metrics yet."""
    return any(
        not getattr(getattr(model, name, None), "_built", True) for name in ("compiled_loss", "compiled_metrics")
    )


def _variables(model: Any) -> dict[str, Any]:
    found = {}
    for number, metric in enumerate(model.metrics):
        for position, variable in enumerate(metric.variables):
            found[f"{number}/{position}"] = variable
    return found


def _shapes(values: Mapping[str, Array]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (value.shape, value.dtype.name) for name, value in values.items()}
