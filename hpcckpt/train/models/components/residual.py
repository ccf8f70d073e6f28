"""Blocks that add to what they are given, https://arxiv.org/abs/1512.03385."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.components.convolution import ConvBlock
from hpcckpt.train.models.configured import Network, base_config, check_counts, known


@known
class ResidualBlock(Network):
    """Two convolutions whose result is added to what came in.

    Parameters
    ----------
    filters : int
        Channels that come in and go out.
    normalization : {"none", "batch", "group", "layer"}
        As in `ConvBlock`.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(self, filters: int, normalization: str = "batch", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters, self.normalization = filters, normalization
        self.conv1 = ConvBlock(filters, normalization=normalization, name="conv1")
        self.conv2 = ConvBlock(filters, normalization=normalization, activation=None, name="conv2")
        self.add = keras.layers.Add(name="add")
        self.act = keras.layers.Activation("relu", name="act")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the images, with what the convolutions make of them."""
        added = self.conv2(self.conv1(inputs, training=training), training=training)
        return self.act(self.add([inputs, added]))

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {**base_config(self), "filters": self.filters, "normalization": self.normalization}


@known
class ResidualStage(Network):
    """A convolution to other channels and another size, ``resample``, and residual blocks, ``block1`` and so on.

    Parameters
    ----------
    filters : int
        Channels that go out.
    n_blocks : int
        How many blocks.
    strides : int
        How many times smaller the images become.
    normalization : {"none", "batch", "group", "layer"}
        As in `ConvBlock`.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self, filters: int, n_blocks: int = 1, strides: int = 1, normalization: str = "batch", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_counts("ResidualStage", n_blocks=n_blocks)
        self.filters, self.n_blocks, self.strides = filters, n_blocks, strides
        self.normalization = normalization
        self.resample = ConvBlock(filters, strides=strides, normalization=normalization, name="resample")
        for number in range(1, n_blocks + 1):
            setattr(self, f"block{number}", ResidualBlock(filters, normalization, name=f"block{number}"))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the images as the last block leaves them."""
        images = self.resample(inputs, training=training)
        for number in range(1, self.n_blocks + 1):
            images = getattr(self, f"block{number}")(images, training=training)
        return images

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "filters": self.filters,
            "n_blocks": self.n_blocks,
            "strides": self.strides,
            "normalization": self.normalization,
        }
