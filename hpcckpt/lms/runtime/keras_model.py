"""What the callback needs from Keras: the function that trains, whether it can be changed, the batch size.

Keras 2.15 and Keras 3 make the function of a training step when ``fit`` begins, and TensorFlow compiles it at the first
batch. A function that has run cannot be changed any more, so a new one is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from hpcckpt.lms import messages


def function_pattern(name: str) -> str:
    """Return a pattern for the names of the functions that TensorFlow makes of a Python function."""
    return rf"(__inference_|__forward_|__backward_|__inference___backward_)+{name}_\d+"


_STEPS = "multi_step_on_iterator|one_step_on_iterator|one_step_on_data\\w*"
TRAINING = function_pattern(f"(train_function|{_STEPS})")
PREDICTING = function_pattern(f"(predict_function|{_STEPS})")
"""Patterns for the names of Keras' functions."""


def is_half(name: str) -> bool:
    """Return whether a function is one half of one whose gradients are taken outside of it."""
    return "__forward_" in name or "__backward_" in name


def trouble(model: Any) -> str:
    """Return why a model's step cannot be planned, and what to do; empty if it can."""
    if getattr(model, "run_eagerly", False):
        return messages.EAGER.format(what=messages.EAGER_MODEL)
    if _is_compiled_by_xla(model):
        return messages.JIT.format(what=f"The model {getattr(model, 'name', '')!r}")
    return ""


def _is_compiled_by_xla(model: Any) -> bool:
    jit = getattr(model, "jit_compile", getattr(model, "_jit_compile", False))
    return jit is True


def made(model: Any, name: str) -> Any:
    """Return a model's function of this name, built again."""
    getattr(model, f"make_{name}")(force=True)
    return getattr(model, name)


# -- graph mode: tf.compat.v1.disable_v2_behavior()


def graph_trouble(model: Any) -> str:
    """Return why the training graph of a model in graph mode cannot be edited, and what to do; empty if it can."""
    name = getattr(model, "name", "")
    function = getattr(model, "train_function", None)
    if getattr(function, "_callable_fn", None) is not None:  # it is set at the first call
        return messages.GRAPH_RAN.format(model=name)
    if function is None and not getattr(model, "inputs", None):
        return messages.GRAPH_NOT_BUILT.format(model=name)
    return ""


def make_train_function(model: Any) -> None:
    """Have the model make its training function, and so the gradients, if it has none yet, as with generators."""
    if getattr(model, "train_function", None) is None:
        model._make_train_function()


def nbytes_of(variables: Any) -> int:
    """Return the size of variables in bytes."""
    sizes = [_itemsize(each.dtype) * _count(each.shape) for each in variables]
    return sum(sizes)


def _itemsize(dtype: Any) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(dtype).size)


def _count(shape: Any) -> int:
    count = 1
    for dim in shape:
        count *= int(dim or 1)
    return count


# -- the size of a batch


def batch_size_of_fit() -> int | None:
    """Return the batch size of the calling ``fit``; `None` if it is unknown."""
    for frame in _frames():
        if frame.f_code.co_name in ("fit", "evaluate", "predict"):
            return _batch_size(frame.f_locals)
    return None


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _batch_size(values: Mapping[str, Any]) -> int | None:
    handler, epochs = values.get("data_handler"), values.get("epoch_iterator")
    adapter = getattr(handler, "_adapter", None) or getattr(epochs, "data_adapter", None)
    found = getattr(adapter, "batch_size", None)
    found = found() if callable(found) else found
    return int(found) if found else _batch_of_dataset(getattr(adapter, "_dataset", None))


def _batch_of_dataset(dataset: Any) -> int | None:
    """Return the batch size of a ``tf.data`` pipeline: that of the last step that makes batches of rows."""
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        dataset = getattr(dataset, "_input_dataset", None)
    return None
