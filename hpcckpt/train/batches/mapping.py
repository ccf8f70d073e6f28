"""A function of a batch, applied to all batches of a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def each_batch(datasets: Any, change: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the datasets to train and to validate with, with each batch changed. Independent.

    Parameters
    ----------
    datasets : pair of tf.data.Dataset, or one
        As a dataset function returns them.
    change : callable
        Takes images and labels of a batch as tensors, and returns those of another batch, made by operations of
        TensorFlow; it becomes part of a graph.

    Returns
    -------
    tuple
        Both; ``None`` if there is none to validate with.
    """
    train, valid = datasets if isinstance(datasets, tuple | list) else (datasets, None)
    return train.map(change), None if valid is None else valid.map(change)
