"""A convolution with what goes with it."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.configured import Network, base_config, check_choice, check_counts, known

layers = keras.layers
NORMALIZATIONS = ("none", "batch", "group", "layer")
_GROUP = 8
"""Channels of a group, at most."""
_MOMENTUM = 0.9
"""Of moving statistics: with Keras' 0.99 they lag by hundreds of steps when a short training is validated."""


@known
class ConvBlock(Network):
    """Convolution, normalization, activation.

    Parameters
    ----------
    filters : int
        Channels that come out.
    kernel_size, strides : int
        Of the convolution; its padding is ``same``.
    normalization : {"none", "batch", "group", "layer"}
        What follows it; with none it has a bias. Statistics of ``batch`` are each rank's own while ranks train, see
        the checkpoint option ``batch_norm``; the others have none.
    activation : str or None
        One of Keras' own, or nothing.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int = 3,
        strides: int = 1,
        normalization: str = "none",
        activation: str | None = "relu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_counts("ConvBlock", filters=filters, kernel_size=kernel_size, strides=strides)
        self.filters, self.kernel_size, self.strides = filters, kernel_size, strides
        self.normalization, self.activation = normalization, activation
        self.conv = layers.Conv2D(
            filters, kernel_size, strides, padding="same", use_bias=normalization == "none", name="conv"
        )
        self.norm = normalizer(normalization, filters)
        self.act = layers.Activation(activation, name="act")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the images, filtered."""
        return self.act(normalized(self.norm, self.conv(inputs), training))

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "normalization": self.normalization,
            "activation": self.activation,
        }


def normalizer(kind: str, channels: int) -> Any:
    """Return the layer that normalizes so, called ``norm``; ``None`` for none."""
    check_choice("ConvBlock", "normalization", kind, NORMALIZATIONS)
    if kind == "batch":
        return layers.BatchNormalization(momentum=_MOMENTUM, name="norm")
    if kind == "group":
        return layers.GroupNormalization(groups=max(channels // _GROUP, 1), name="norm")
    return layers.LayerNormalization(name="norm") if kind == "layer" else None


def normalized(norm: Any, inputs: Any, training: bool | None) -> Any:
    """Return inputs as a normalizing layer, if there is one, leaves them."""
    if norm is None:
        return inputs
    return norm(inputs, training=training) if isinstance(norm, layers.BatchNormalization) else norm(inputs)
