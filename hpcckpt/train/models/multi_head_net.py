"""One network with several heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from hpcckpt.errors import OptionError
from hpcckpt.train.models.configured import (
    Network,
    base_config,
    check_counts,
    check_part,
    check_share,
    known,
    parts_from_config,
    pooled,
)
from hpcckpt.train.models.networks import SmallConvNet

layers = keras.layers


@known
class MultiHeadNet(Network):
    """A network with one dense layer, ``head_<name>``, for each task.

    All heads get the features that ``base_model`` returns. The outputs are a mapping from the names of the heads to
    logits or, for regression, numbers. The labels are such a mapping too; `hpcckpt.train.losses.per_head` gives each
    head its loss.

    Parameters
    ----------
    heads : mapping of str to int
        Number of outputs of each head: ``{"digit": 10, "centre": 2}``.
    base_model : keras.Model, optional
        Any model, as for `OneHeadNet`. By default a `SmallConvNet`.
    dropout : float
        Fraction of the features that is dropped in each training step.
    **kwargs
        Arguments of `keras.Model`.
    """

    def __init__(self, heads: Mapping[str, int], base_model: Any = None, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        names = list(heads)
        if not names or not all(map(str.isidentifier, names)):
            raise OptionError(f"MultiHeadNet: heads: {names} – plain names, each with its number of outputs")
        check_counts("MultiHeadNet", **{f"heads.{name}": count for name, count in heads.items()})
        check_share("MultiHeadNet", dropout=dropout)
        self.n_outputs, self.rate = dict(heads), dropout
        self.base_model = SmallConvNet(name="base_model") if base_model is None else base_model
        check_part("MultiHeadNet", "base_model", self.base_model)
        self.dropout = layers.Dropout(dropout, name="dropout")
        for name, count in heads.items():
            setattr(self, f"head_{name}", layers.Dense(count, name=f"head_{name}"))

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Return the outputs of each head by its name."""
        features = self.dropout(pooled(self.base_model(inputs, training=training)), training=training)
        return {name: getattr(self, f"head_{name}")(features) for name in self.n_outputs}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        base_model = keras.saving.serialize_keras_object(self.base_model)
        return {**base_config(self), "heads": dict(self.n_outputs), "base_model": base_model, "dropout": self.rate}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> MultiHeadNet:
        """Return a model like the one that gave `config`, with new weights."""
        return cls(**parts_from_config(config, ["base_model"], custom_objects))
