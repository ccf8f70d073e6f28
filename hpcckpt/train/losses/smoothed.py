"""Cross entropy of classes that are given as numbers, with label smoothing, which Keras has for one-hot labels only."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hpcckpt.errors import OptionError


@keras.saving.register_keras_serializable(package="hpcckpt")
class SmoothedSparseCategoricalCrossentropy(keras.losses.Loss):  # type: ignore[misc]  # Keras has no types
    """`SparseCategoricalCrossentropy` with label smoothing, https://arxiv.org/abs/1512.00567.

    It equals `CategoricalCrossentropy` of the same labels as one-hot vectors, but does not create these vectors.

    Parameters
    ----------
    from_logits : bool
        Whether predictions are logits, not probabilities.
    label_smoothing : float
        Fraction of the probability that is spread evenly over all classes.
    **kwargs
        ``name`` and ``reduction``, as for every loss.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.1,
        name: str = "smoothed_sparse_categorical_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if isinstance(label_smoothing, bool) or not 0 <= label_smoothing <= 1:
            raise OptionError(f"label_smoothing: {label_smoothing!r} – from 0 to 1")
        self.from_logits, self.label_smoothing = from_logits, label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each image."""
        predicted = tf.convert_to_tensor(y_pred)
        logs = tf.nn.log_softmax(predicted) if self.from_logits else _log_of_probabilities(predicted)
        labels = tf.cast(y_true, tf.int64)
        if len(labels.shape) == len(logs.shape):  # Keras 2.15 may hand labels in as a column
            labels = tf.squeeze(labels, -1)
        certain = tf.gather(logs, labels, batch_dims=len(labels.shape))
        return -((1 - self.label_smoothing) * certain + self.label_smoothing * tf.reduce_mean(logs, -1))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        own = {"from_logits": self.from_logits, "label_smoothing": self.label_smoothing}
        return {**super().get_config(), **own}


def _log_of_probabilities(predicted: Any) -> Any:
    """Return logarithms as Keras' own losses take them: of what adds up to one, and is not zero."""
    scaled = predicted / tf.reduce_sum(predicted, -1, keepdims=True)
    smallest = keras.backend.epsilon()
    return tf.math.log(tf.clip_by_value(scaled, smallest, 1 - smallest))
