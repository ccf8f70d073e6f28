"""LeNet5, whole."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.configured import Network, base_config, check_counts, known

layers = keras.layers


@known
class LeNet5(Network):
    """LeNet5 as Caffe and its successors build it, http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf.

    ``conv1`` and ``conv2``, each followed by 2×2 max pooling, then ``dense``, then ``head``: 8 weights, 431,080 numbers
    for MNIST. The outputs are logits: give the loss ``from_logits=True``. Images must have at least 16×16 pixels, and
    the size of the first image.

    Parameters
    ----------
    num_outputs : int
        Number of outputs: one for each class.
    **kwargs
        Arguments of `keras.Model`.
    """

    def __init__(self, num_outputs: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("LeNet5", num_outputs=num_outputs)
        self.num_outputs = num_outputs
        self.conv1 = layers.Conv2D(20, 5, activation="relu", name="conv1")
        self.conv2 = layers.Conv2D(50, 5, activation="relu", name="conv2")
        self.halve = layers.MaxPooling2D(2, name="halve")
        self.flatten = layers.Flatten(name="flatten")
        self.dense = layers.Dense(500, activation="relu", name="dense")
        self.head = layers.Dense(num_outputs, name="head")

    def call(self, inputs: Any) -> Any:
        """Return the outputs, as logits."""
        images = self.halve(self.conv2(self.halve(self.conv1(inputs))))
        return self.head(self.dense(self.flatten(images)))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        return {**base_config(self), "num_outputs": self.num_outputs}
