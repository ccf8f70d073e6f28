"""The blocks of ResNets, https://arxiv.org/abs/1512.03385."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.components.convolution import ConvBlock
from hpcckpt.train.models.configured import Network, base_config, check_counts, known

_WIDER = 4
"""How many times more channels come out of a bottleneck than its middle has."""


@known
class ResNetBlock(Network):
    """Two convolutions, or a bottleneck of three, whose result is added to what came in.

    ``conv1``, ``conv2``, and of a bottleneck ``conv3``; ``shortcut`` is a convolution that gives what came in the
    size and channels of the result.

    Parameters
    ----------
    filters : int
        Channels of the convolutions; four times as many come out of a bottleneck.
    strides : int
        How many times smaller the images become.
    bottleneck : bool
        Whether the convolution of 3×3 is between two of 1×1.
    resample : bool
        Whether there is a shortcut: where size or channels change.
    normalization : {"none", "batch", "group", "layer"}
        As in `ConvBlock`.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        bottleneck: bool = False,
        resample: bool = False,
        normalization: str = "batch",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_counts("ResNetBlock", filters=filters, strides=strides)
        self.filters, self.strides, self.bottleneck = filters, strides, bottleneck
        self.resample, self.normalization = resample, normalization
        n_out = n_channels(filters, bottleneck)
        # (filters, kernel size, strides) of each
        plan = [(filters, 3, strides), (n_out, 3, 1)]
        if bottleneck:
            plan = [(filters, 1, 1), (filters, 3, strides), (n_out, 1, 1)]
        self.n_convs = len(plan)
        for number, (channels, size, step) in enumerate(plan, 1):
            activation = "relu" if number < len(plan) else None
            conv = ConvBlock(channels, size, step, normalization, activation, name=f"conv{number}")
            setattr(self, f"conv{number}", conv)
        self.shortcut = ConvBlock(n_out, 1, strides, normalization, None, name="shortcut") if resample else None
        self.add = keras.layers.Add(name="add")
        self.act = keras.layers.Activation("relu", name="act")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the images, with what the convolutions make of them."""
        added = inputs
        for number in range(1, self.n_convs + 1):
            added = getattr(self, f"conv{number}")(added, training=training)
        kept = inputs if self.shortcut is None else self.shortcut(inputs, training=training)
        return self.act(self.add([kept, added]))

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "filters": self.filters,
            "strides": self.strides,
            "bottleneck": self.bottleneck,
            "resample": self.resample,
            "normalization": self.normalization,
        }


def n_channels(filters: int, bottleneck: bool) -> int:
    """Return how many channels come out of a block."""
    return filters * _WIDER if bottleneck else filters
