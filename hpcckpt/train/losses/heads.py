"""A loss, or a metric, for each head of a model whose outputs are a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from hpcckpt.errors import OptionError


def per_head(heads: Mapping[str, Any], weights: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return losses, or metrics, by the names of their heads, for Keras. Pure.

    In a configuration it is the key ``loss``, or the one entry of ``metrics``.

    Parameters
    ----------
    heads : mapping
        A loss, or metrics, for each head: of Keras, by name or as factories.
    weights : mapping of str to float, optional
        Weights of the losses of heads; 1 by default.

    Raises
    ------
    OptionError
        If a weight is for something that is not a loss, or for an unknown head.
    """
    result = dict(heads)
    for name, weight in (weights or {}).items():
        if not isinstance(result.get(name), keras.losses.Loss):
            known = ", ".join(heads)
            raise OptionError(f"per_head: weights.{name}: no loss that is written as a factory; heads are {known}")
        result[name] = WeightedLoss(result[name], weight)
    return result


@keras.saving.register_keras_serializable(package="hpcckpt")
class WeightedLoss(keras.losses.Loss):  # type: ignore[misc]  # Keras has no types
    """A loss times a number.

    Parameters
    ----------
    loss : keras.losses.Loss
        The loss.
    weight : float
        The number.
    **kwargs
        ``name`` and ``reduction``, as for every loss.
    """

    def __init__(self, loss: Any, weight: float = 1.0, name: str = "weighted_loss", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        if isinstance(weight, bool) or not weight >= 0:
            raise OptionError(f"WeightedLoss: weight: {weight!r} – a number from 0 on")
        self.loss, self.weight = loss, weight

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each row, weighted."""
        return self.weight * self.loss.call(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        loss = keras.saving.serialize_keras_object(self.loss)
        return {**super().get_config(), "loss": loss, "weight": self.weight}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WeightedLoss:
        """Return a loss like the one that gave `config`."""
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})
