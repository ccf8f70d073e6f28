"""What a model was compiled with, in the form that Keras' files keep.

Keras leaves it open what ``"accuracy"`` means until a model has seen labels, and writes a guess into ``.h5`` files and
SavedModels of a model that has not (Keras 2.15: labels shaped like the outputs).  Keras 3 does not read all
names of losses that it writes into ``.h5`` files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcckpt.keras.versions import IS_KERAS_3

_OPEN = {"accuracy", "acc", "crossentropy", "ce"}
"""Names that mean one thing or another, by the shape of the labels."""


def resolve_metrics(model: Any) -> None:
    """Decide by its losses which metrics ``"accuracy"`` and ``"crossentropy"`` are, in Keras 2.15. Independent.

    Losses whose name has ``sparse`` in it take labels without the last dimension of the output; all others take labels
    of the shape of the output.
    """
    container = getattr(model, "compiled_metrics", None)
    if container is None or getattr(container, "built", True) or not model.outputs:
        return
    import tensorflow as tf

    outputs = getattr(model, "_nested_outputs", model.outputs)
    if not model.compiled_loss.built:
        model.compiled_loss.build(outputs)
    flat = tf.nest.flatten(outputs)
    labels = [
        tf.TensorSpec(output.shape[:-1] if _is_sparse(loss) else output.shape)
        for output, loss in zip(flat, model.compiled_loss._losses, strict=True)
    ]
    container.build(outputs, tf.nest.pack_sequence_as(outputs, labels))


def _is_sparse(loss: Any) -> bool:
    function = getattr(loss, "fn", loss)
    return "sparse" in getattr(function, "__name__", type(function).__name__).lower()


@contextlib.contextmanager
def written_compile_config(model: Any) -> Iterator[None]:
    """Have Keras 3 write an ``.h5`` that it can read, and keep what it takes out of the model. Independent.

    Its writer removes the optimizer from what the model was compiled with.
    """
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    if not IS_KERAS_3 or config is None:
        yield
        return
    compiled = dict(config)
    config["loss"] = _mapped(config.get("loss"), _readable_loss)
    config.update({name: _mapped(config.get(name), _named_metric) for name in ("metrics", "weighted_metrics")})
    try:
        yield
    finally:
        config.update(compiled)


@contextlib.contextmanager
def optimizer_of_keras(model: Any) -> Iterator[None]:
    """Have files name Keras' optimizer where Horovod wraps it in a class made at run time. Independent."""
    cls = type(getattr(model, "optimizer", None))
    if cls.__module__.partition(".")[0] != "horovod":
        yield
        return
    module, cls.__module__ = cls.__module__, cls.__mro__[1].__module__
    try:
        yield
    finally:
        cls.__module__ = module


def _mapped(value: Any, replace: Callable[[str], Any]) -> Any:
    """Return a nested structure with its strings replaced."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, replace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, replace) for item in value]
    return replace(value) if isinstance(value, str) else value


def _readable_loss(name: str) -> str:
    """Return the full name of a loss: Keras 3 writes ``mse`` and does not read it."""
    from keras import losses

    return name if name in _OPEN else str(getattr(losses.get(name), "__name__", name))


def _named_metric(name: str) -> Any:
    """Return the metric of a name, with this name, as `evaluate` reports it; what depends on labels stays a name."""
    from keras import metrics

    found = name if name in _OPEN else metrics.get(name)
    if isinstance(found, metrics.Metric):
        found.name = name
    return found
