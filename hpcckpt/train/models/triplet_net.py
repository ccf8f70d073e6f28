"""A network whose outputs are near to each other for images of one class, trained by triplets."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hpcckpt.train.models.configured import (
    Network,
    base_config,
    check_counts,
    check_part,
    known,
    parts_from_config,
    pooled,
)
from hpcckpt.train.models.networks import SmallConvNet


@known
class TripletNet(Network):
    """A network of ``base_model`` and a dense ``embedding``, for unit vectors.

    For triplets of images, of shape (batch, 3, height, width, channels), as `hpcckpt.train.batches.triplets` makes
    them, it returns vectors of length 1, of shape (batch, 3, dim), for `hpcckpt.train.losses.TripletLoss`. For images
    it returns vectors of shape (batch, dim).

    Parameters
    ----------
    dim : int
        Length of the vectors.
    base_model : keras.Model, optional
        Any model, as for `OneHeadNet`. By default a `SmallConvNet`.
    **kwargs
        Arguments of `keras.Model`.
    """

    def __init__(self, dim: int = 32, base_model: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("TripletNet", dim=dim)
        self.dim = dim
        self.base_model = SmallConvNet(name="base_model") if base_model is None else base_model
        check_part("TripletNet", "base_model", self.base_model)
        self.embedding = keras.layers.Dense(dim, name="embedding")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a vector for each image."""
        is_triplets = len(inputs.shape) == 5
        images = tf.reshape(inputs, (-1, *inputs.shape[2:])) if is_triplets else inputs
        vectors = self.embedding(pooled(self.base_model(images, training=training)))
        vectors = tf.math.l2_normalize(vectors, -1)
        return tf.reshape(vectors, (-1, 3, self.dim)) if is_triplets else vectors

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        base_model = keras.saving.serialize_keras_object(self.base_model)
        return {**base_config(self), "dim": self.dim, "base_model": base_model}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> TripletNet:
        """Return a model like the one that gave `config`, with new weights."""
        return cls(**parts_from_config(config, ["base_model"], custom_objects))
