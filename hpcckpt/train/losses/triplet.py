"""The triplet loss, https://arxiv.org/abs/1503.03832, and how often a triplet is right."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hpcckpt.errors import OptionError


@keras.saving.register_keras_serializable(package="hpcckpt")
class TripletLoss(keras.losses.Loss):  # type: ignore[misc]  # Keras has no types
    """Loss of triplets, so that an anchor is near to images of its class.

    Predictions have the shape (batch, 3, dim): vectors of the anchor, of an image of its class (positive), and of an
    image of another class (negative), as `hpcckpt.train.models.TripletNet` returns them. Labels are ignored.

    Parameters
    ----------
    margin : float
        The difference between the squared distances from which on the loss is 0.
    **kwargs
        ``name`` and ``reduction``, as for every loss.
    """

    def __init__(self, margin: float = 0.5, name: str = "triplet_loss", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        if isinstance(margin, bool) or not margin > 0:
            raise OptionError(f"TripletLoss: margin: {margin!r} – a positive number")
        self.margin = margin

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each triplet."""
        del y_true
        positive, negative = _squared_distances(y_pred)
        return tf.nn.relu(positive - negative + self.margin)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        return {**super().get_config(), "margin": self.margin}


def triplet_accuracy(y_true: Any, y_pred: Any) -> Any:
    """Return 1 for each triplet whose anchor is nearer to its class, else 0.

    This is a metric.
    """
    del y_true
    positive, negative = _squared_distances(y_pred)
    return tf.cast(positive < negative, tf.float32)


def _squared_distances(y_pred: Any) -> tuple[Any, Any]:
    """Return the squared distances from anchors to positives and to negatives."""
    anchor, positive, negative = tf.unstack(tf.convert_to_tensor(y_pred), 3, axis=1)
    return tf.reduce_sum(tf.square(anchor - positive), -1), tf.reduce_sum(tf.square(anchor - negative), -1)
