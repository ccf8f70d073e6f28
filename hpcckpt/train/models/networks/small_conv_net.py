"""A small network of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hpcckpt.train.models.components import ConvBlock
from hpcckpt.train.models.configured import Network, base_config, check_choice, check_counts, known

layers = keras.layers
_POOLINGS = {"flat": layers.Flatten, "mean": layers.GlobalAveragePooling2D, "max": layers.GlobalMaxPooling2D}


@known
class SmallConvNet(Network):
    """Features of images by convolutions, each followed by a halving of the image.

    Parameters
    ----------
    filters : sequence of int
        Channels of ``block1``, ``block2`` and so on.
    normalization : {"none", "batch", "group", "layer"}
        As in `ConvBlock`.
    pooling : {"flat", "mean", "max"}
        What becomes of the image that is left: all of it in a row, which learns fast and is for images of one size
        only; or the mean, or the largest, of each channel.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self,
        filters: Sequence[int] = (16, 32, 64),
        normalization: str = "none",
        pooling: str = "flat",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_counts("SmallConvNet", filters=filters)
        check_choice("SmallConvNet", "pooling", pooling, tuple(_POOLINGS))
        self.filters, self.normalization, self.pooling = tuple(filters), normalization, pooling
        for number, channels in enumerate(filters, 1):
            setattr(self, f"block{number}", ConvBlock(channels, normalization=normalization, name=f"block{number}"))
        self.halve = layers.MaxPooling2D(2, name="halve")
        self.pool = _POOLINGS[pooling](name="pool")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a vector of features for each image."""
        images = inputs
        for number in range(1, len(self.filters) + 1):
            images = self.halve(getattr(self, f"block{number}")(images, training=training))
        return self.pool(images)

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "filters": list(self.filters),
            "normalization": self.normalization,
            "pooling": self.pooling,
        }
