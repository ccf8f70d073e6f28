"""A small residual network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hpcckpt.train.models.components import ConvBlock, ResidualStage
from hpcckpt.train.models.configured import Network, base_config, check_counts, known


@known
class SmallResNet(Network):
    """Features of images by residual blocks, as ResNets for small images have it, https://arxiv.org/abs/1512.03385.

    ``stem``, then ``layer1``, ``layer2`` and so on, each with ``resample``, ``block1`` and so on; each layer but the
    first halves the image. Takes images of any size.

    Parameters
    ----------
    filters : sequence of int
        Channels of ``layer1``, ``layer2`` and so on; ``stem`` has as many as the first.
    n_blocks : int
        Residual blocks of each layer.
    normalization : {"none", "batch", "group", "layer"}
        As in `ConvBlock`.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self,
        filters: Sequence[int] = (16, 32, 64),
        n_blocks: int = 1,
        normalization: str = "batch",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_counts("SmallResNet", filters=filters, n_blocks=n_blocks)
        self.filters, self.n_blocks, self.normalization = tuple(filters), n_blocks, normalization
        self.stem = ConvBlock(filters[0], normalization=normalization, name="stem")
        for number, channels in enumerate(filters, 1):
            stage = ResidualStage(channels, n_blocks, 1 if number == 1 else 2, normalization, name=f"layer{number}")
            setattr(self, f"layer{number}", stage)
        self.mean = keras.layers.GlobalAveragePooling2D(name="mean")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a vector of features for each image."""
        images = self.stem(inputs, training=training)
        for number in range(1, len(self.filters) + 1):
            images = getattr(self, f"layer{number}")(images, training=training)
        return self.mean(images)

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "filters": list(self.filters),
            "n_blocks": self.n_blocks,
            "normalization": self.normalization,
        }
