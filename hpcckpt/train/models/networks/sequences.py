"""A sequence encoder and a sequence decoder of gated recurrent units, https://arxiv.org/abs/1406.1078."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hpcckpt.train.models.configured import Network, base_config, check_counts, check_share, known

layers = keras.layers


@known
class SequenceEncoder(Network):
    """A vector of features for each sequence: the last state of ``layer1``, ``layer2`` and so on.

    Sequences have the shape (batch, steps, features); images are read row by row. Under `OneHeadNet` it classifies.

    Parameters
    ----------
    units : int
        Length of the states, and of the features.
    depth : int
        How many layers.
    dropout : float
        The share of what comes into a layer, but the first, that is left out in each step of training.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(self, units: int = 64, depth: int = 1, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("SequenceEncoder", units=units, depth=depth)
        check_share("SequenceEncoder", dropout=dropout)
        self.units, self.depth, self.rate = units, depth, dropout
        for number in range(1, depth + 1):
            layer = layers.GRU(units, return_sequences=number < depth, name=f"layer{number}")
            setattr(self, f"layer{number}", layer)
        self.dropout = layers.Dropout(dropout, name="dropout") if depth > 1 else None

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a vector for each sequence."""
        sequence = in_rows(inputs)
        for number in range(1, self.depth + 1):
            sequence = sequence if number == 1 else self.dropout(sequence, training=training)
            sequence = getattr(self, f"layer{number}")(sequence, training=training)
        return sequence

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {**base_config(self), "units": self.units, "depth": self.depth, "dropout": self.rate}


@known
class SequenceDecoder(Network):
    """A sequence for each vector, which comes into every step: ``layer1``, ``layer2`` and so on, and ``to_outputs``.

    Parameters
    ----------
    num_outputs : int
        Numbers in each step, or logits.
    length : int
        How many steps.
    units : int
        Length of the states.
    depth : int
        How many layers.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(self, num_outputs: int, length: int, units: int = 64, depth: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("SequenceDecoder", num_outputs=num_outputs, length=length, units=units, depth=depth)
        self.num_outputs, self.length, self.units, self.depth = num_outputs, length, units, depth
        self.repeat = layers.RepeatVector(length, name="repeat")
        for number in range(1, depth + 1):
            setattr(self, f"layer{number}", layers.GRU(units, return_sequences=True, name=f"layer{number}"))
        self.to_outputs = layers.Dense(num_outputs, name="to_outputs")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a sequence for each vector."""
        sequence = self.repeat(inputs)
        for number in range(1, self.depth + 1):
            sequence = getattr(self, f"layer{number}")(sequence, training=training)
        return self.to_outputs(sequence)

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "num_outputs": self.num_outputs,
            "length": self.length,
            "units": self.units,
            "depth": self.depth,
        }


def in_rows(images: Any) -> Any:
    """Return images as sequences of their rows; sequences are returned as they are."""
    if len(images.shape) != 4:
        return images
    _, height, width, channels = images.shape
    return tf.reshape(images, (-1, height, width * channels))
