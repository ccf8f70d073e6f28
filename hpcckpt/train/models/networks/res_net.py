"""ResNet of any depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hpcckpt.errors import OptionError
from hpcckpt.train.models.components import ConvBlock, ResNetBlock
from hpcckpt.train.models.components.res_net_block import n_channels
from hpcckpt.train.models.configured import Network, base_config, check_counts, known

DEPTHS: dict[int, tuple[tuple[int, ...], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
"""Blocks of each layer, and whether they are bottlenecks, https://arxiv.org/abs/1512.03385, table 1."""


@known
class ResNet(Network):
    """Features of images by residual blocks, https://arxiv.org/abs/1512.03385.

    ``stem``, then ``layer1_block1``, ``layer1_block2`` and so on; each layer but the first halves the image and doubles
    the channels. Takes images of any size.

    Parameters
    ----------
    depth : int or sequence of int
        18, 34, 50, 101 or 152, as published; or how many blocks each layer has: ``[1, 1, 1]``.
    width : int
        Channels of the first layer.
    bottleneck : bool, optional
        Whether the blocks are bottlenecks; by default as published, else not.
    small_images : bool
        Whether the stem is a convolution of 3×3 that leaves the size as it is; else one of 7×7 and a pooling, which
        together make images four times smaller, as published for images of 224×224.
    normalization : {"none", "batch", "group", "layer"}
        As in `ConvBlock`.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self,
        depth: int | Sequence[int] = 18,
        width: int = 64,
        bottleneck: bool | None = None,
        small_images: bool = True,
        normalization: str = "batch",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        blocks, is_bottleneck = _plan(depth)
        check_counts("ResNet", depth=list(blocks), width=width)
        self.depth, self.width, self.bottleneck = depth, width, bottleneck
        self.small_images, self.normalization = small_images, normalization
        size, strides = (3, 1) if small_images else (7, 2)
        self.stem = ConvBlock(width, size, strides, normalization, name="stem")
        self.pool = None if small_images else keras.layers.MaxPooling2D(3, 2, "same", name="pool")
        is_bottleneck = is_bottleneck if bottleneck is None else bottleneck
        names, channels = [], width
        for layer, n_blocks in enumerate(blocks):
            filters = width * 2**layer
            for number in range(1, n_blocks + 1):
                step = 2 if layer and number == 1 else 1
                resample = step > 1 or channels != n_channels(filters, is_bottleneck)
                name = f"layer{layer + 1}_block{number}"
                setattr(self, name, ResNetBlock(filters, step, is_bottleneck, resample, normalization, name=name))
                names.append(name)
                channels = n_channels(filters, is_bottleneck)
        self.block_names = tuple(names)
        self.mean = keras.layers.GlobalAveragePooling2D(name="mean")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a vector of features for each image."""
        images = self.stem(inputs, training=training)
        images = images if self.pool is None else self.pool(images)
        for name in self.block_names:
            images = getattr(self, name)(images, training=training)
        return self.mean(images)

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "depth": self.depth if isinstance(self.depth, int) else list(self.depth),
            "width": self.width,
            "bottleneck": self.bottleneck,
            "small_images": self.small_images,
            "normalization": self.normalization,
        }


def _plan(depth: int | Sequence[int]) -> tuple[Sequence[int], bool]:
    """Return how many blocks each layer has, and whether they are bottlenecks."""
    if not isinstance(depth, int):
        return tuple(depth), False
    if depth not in DEPTHS:
        raise OptionError(f"ResNet: depth: {depth} – one of {', '.join(map(str, DEPTHS))}, or a list: [2, 2, 2]")
    return DEPTHS[depth]
