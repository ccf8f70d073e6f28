"""Building a model that is built by its first batch, before there is one: from what is known of the data."""

from __future__ import annotations

from typing import Any

from hpcckpt.errors import StateError
from hpcckpt.keras.layers import named_weights


def build_for(model: Any, data: Any) -> None:
    """Have a model make its weights for the batches of a dataset; nothing is trained. Independent.

    Raises
    ------
    StateError
        If the model still has layers without weights.
    """
    if not _is_built(model):
        model(_inputs(data), training=False)
    named_weights(model)


def _is_built(model: Any) -> bool:
    try:
        named_weights(model)
    except StateError:
        return False
    return bool(model.built)


def inputs_of(batch: Any) -> Any:
    """Return what of a batch goes into the model: Keras takes the first of a tuple. Pure."""
    return batch[0] if isinstance(batch, tuple) else batch


def _inputs(data: Any) -> Any:
    """Return inputs of one row, zeros if all of its shape is known, else of a batch that is read."""
    import tensorflow as tf

    specs = inputs_of(data.element_spec)
    flat = tf.nest.flatten(specs)
    if all(isinstance(spec, tf.TensorSpec) and _is_known(spec) for spec in flat):
        return tf.nest.map_structure(lambda spec: tf.zeros([1, *spec.shape[1:]], spec.dtype), specs)
    batch = next(iter(data.take(1)))
    return inputs_of(batch)


def _is_known(spec: Any) -> bool:
    return spec.shape.rank is not None and spec.shape.rank >= 1 and all(dim is not None for dim in spec.shape[1:])
