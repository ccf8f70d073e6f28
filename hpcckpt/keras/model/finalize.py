"""What layers derive from their weights once and then compute with: the mean and variance of `Normalization`.

Keras derives it when a layer is adapted, and when Keras' own files are loaded (``finalize_state``); so whatever else
gives weights new values has to call `finalize` afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcckpt.keras.model.layers import named_layers, own_weights


def finalize(model: Any, *, is_changed: bool = False) -> None:
    """Let the layers of a model derive what they compute with from weights that were restored. Independent.

    Parameters
    ----------
    model : keras.Model
        The model.
    is_changed : bool
        Whether layers have changed in other ways, so that the model has to compile its steps again in any case.
    """
    finalize_layers([model, *(layer for _, layer in named_layers(model))], is_changed=is_changed)


def finalize_layers(layers: Sequence[Any], *, is_changed: bool = False) -> None:
    """Let layers derive what they compute with, and models among them compile their steps again. Independent."""
    derived = [layer for layer in layers if _derives(layer)]
    for layer in derived:
        layer.finalize_state()
    for layer in layers if derived or is_changed else ():
        _compile_again(layer)


def _derives(layer: Any) -> bool:
    """Return True for a layer with weights and a ``finalize_state``; in Keras 2.15 the base class has an empty one."""
    maker = next((cls for cls in type(layer).__mro__ if "finalize_state" in vars(cls)), None)
    return maker is not None and maker.__name__ != "Layer" and bool(own_weights(layer))


def _compile_again(model: Any) -> None:
    """Make a model compile its steps again: what layers derived is a constant in them. Independent."""
    for kind in ("train", "test", "predict"):
        name = f"{kind}_function"
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
            setattr(model, name, getattr(model, f"make_{name}")() or getattr(model, name))
