"""Build the networks of `lms_large.py`, optionally with `tf.recompute_grad`.

These are the networks of ``keras.applications``, and a 3-D U-Net.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

UNET3D = "unet3d"
N_CLASSES = 100
LEAST_LAYERS = 8
"""Minimum number of layers in each recomputed part of a network, except the last part."""


def names() -> list[str]:
    """Return the names that `build` accepts."""
    found = [name for name, value in vars(keras.applications).items() if name[0].isupper() and callable(value)]
    return [UNET3D, *sorted(found)]


def build(name: str, size: int, *, depth: int = 3, filters: int = 16, recompute: bool = False) -> Any:
    """Return a model with random weights for inputs of `size` pixels on a side.

    Parameters
    ----------
    name : str
        One of `names`.
    size : int
        Pixels on a side; a multiple of ``2 ** depth`` for the U-Net.
    depth, filters : int
        For the U-Net: how many times it halves the sides of the volume, and the filters of its first convolutions.
    recompute : bool
        If True, `tf.recompute_grad` recomputes the forward pass, part by part, during the backward pass.
    """
    if name == UNET3D:
        return _unet3d(size, depth, filters, recompute=recompute)
    model = getattr(keras.applications, name)(weights=None, input_shape=image_shape(size, 2, 3), classes=N_CLASSES)
    return recomputed(model) if recompute else model


def image_shape(size: int, n_dims: int, n_channels: int) -> tuple[int, ...]:
    """Return the shape of one image in Keras' data format."""
    sides = (size,) * n_dims
    return (n_channels, *sides) if is_channels_first() else (*sides, n_channels)


def is_channels_first() -> bool:
    """Return True if Keras' data format is channels first."""
    return bool(keras.backend.image_data_format() == "channels_first")


# -- a 3-D U-Net


def _unet3d(size: int, depth: int, filters: int, *, recompute: bool) -> Any:
    """Return a 3-D U-Net (Çiçek et al. 2016) with two classes per voxel."""
    if size % (1 << depth):
        raise ValueError(f"unet3d: {size} is no multiple of {1 << depth}, which a depth of {depth} needs")
    layers, axis = keras.layers, 1 if is_channels_first() else -1
    volume = x = keras.Input(image_shape(size, 3, 1))
    skips = []
    for level in range(depth):
        x = _double(x, filters << level, recompute=recompute)
        skips.append(x)
        x = layers.MaxPooling3D()(x)
    x = _double(x, filters << depth, recompute=recompute)
    for level in reversed(range(depth)):
        x = layers.Conv3DTranspose(filters << level, 2, strides=2)(x)
        x = _double(layers.Concatenate(axis=axis)([x, skips.pop()]), filters << level, recompute=recompute)
    x = layers.Conv3D(2, 1)(x)
    if is_channels_first():
        x = layers.Permute((2, 3, 4, 1))(x)
    return keras.Model(volume, layers.Softmax()(x), name=UNET3D)


def _double(x: Any, filters: int, *, recompute: bool) -> Any:
    """Return two convolutions of `x`, each with batch normalization."""
    layers, axis = keras.layers, 1 if is_channels_first() else -1
    inputs = y = keras.Input(tuple(x.shape[1:])) if recompute else x
    for _ in range(2):
        y = layers.Conv3D(filters, 3, padding="same", use_bias=False)(y)
        y = layers.ReLU()(layers.BatchNormalization(axis=axis)(y))
    return Recomputed(keras.Model(inputs, y))(x) if recompute else y


# -- gradient checkpointing


class Recomputed(keras.layers.Layer):  # type: ignore[misc]
    """A model as a layer; it keeps its input and is recomputed in the backward pass.

    Batch normalization updates its moving averages twice per step; this does not change the training loss. Random
    layers draw new numbers: with dropout, the gradients are computed with another mask than the loss.
    """

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return what the model returns."""
        return tf.recompute_grad(lambda x: self.body(x, training=training))(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the output."""
        return self.body.compute_output_shape(input_shape)


def recomputed(model: Any) -> Any:
    """Return a model of the same layers that is recomputed part by part."""
    inputs = x = keras.Input(tuple(model.inputs[0].shape[1:]))
    start = model.inputs[0]
    for end in cuts(model):
        x = Recomputed(keras.Model(start, end))(x)
        start = end
    return keras.Model(inputs, x)


def cuts(model: Any) -> list[Any]:
    """Return the outputs that end the parts; later layers use no earlier tensor."""
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    last_use: dict[int, int] = {}
    for place, layer in enumerate(layers):
        for tensor in tf.nest.flatten(layer.input):
            last_use[id(tensor)] = place
    found, since, furthest = [], 0, last_use[id(model.inputs[0])]
    for place, layer in enumerate(layers[:-1]):
        if furthest <= place and place + 1 - since >= LEAST_LAYERS:
            found.append(layer.output)
            since = place + 1
        furthest = max(furthest, last_use[id(layer.output)])
    return [*found, model.outputs[0]]
