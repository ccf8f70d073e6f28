"""One network with one head."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.errors import OptionError
from hpcckpt.train.models.configured import (
    Network,
    base_config,
    check_counts,
    check_share,
    known,
    parts_from_config,
    pooled,
)
from hpcckpt.train.models.networks import SmallConvNet

layers = keras.layers


@known
class OneHeadNet(Network):
    """A network of ``base_model``, which returns features, and a dense ``head``.

    The outputs are logits: give the loss ``from_logits=True``.

    Parameters
    ----------
    num_outputs : int
        Number of outputs: one for each class.
    base_model : keras.Model, optional
        Any model: one of Keras' applications without its top, one of `networks`, one of yours. If it returns images or
        sequences of features, not vectors, the mean over all positions is taken. By default a `SmallConvNet`.
    dropout : float
        Fraction of the features that is dropped in each training step.
    **kwargs
        Arguments of `keras.Model`.
    """

    def __init__(self, num_outputs: int, base_model: Any = None, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("OneHeadNet", num_outputs=num_outputs)
        check_share("OneHeadNet", dropout=dropout)
        if base_model is not None and not isinstance(base_model, layers.Layer):
            raise OptionError(f"OneHeadNet: base_model: {type(base_model).__name__} – a Keras model, or nothing")
        self.num_outputs, self.rate = num_outputs, dropout
        self.base_model = SmallConvNet(name="base_model") if base_model is None else base_model
        self.dropout = layers.Dropout(dropout, name="dropout")
        self.head = layers.Dense(num_outputs, name="head")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the outputs, as logits."""
        features = self.base_model(inputs, training=training)
        return self.head(self.dropout(pooled(features), training=training))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        base_model = keras.saving.serialize_keras_object(self.base_model)
        return {
            **base_config(self),
            "num_outputs": self.num_outputs,
            "base_model": base_model,
            "dropout": self.rate,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> OneHeadNet:
        """Return a model like the one that gave `config`, with new weights."""
        return cls(**parts_from_config(config, ["base_model"], custom_objects))
