"""What all models and components here are: known to Keras, and described by the arguments that made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from hpcckpt.errors import OptionError, Problem, list_problems

PACKAGE = "hpcckpt"
"""Below this name Keras knows the classes, in files and checkpoints."""

known = keras.saving.register_keras_serializable(package=PACKAGE)
IS_KERAS_3 = keras.__version__.startswith("3")


class Network(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A model whose parts make their weights as they are called; ``build`` calls them, as it does with Keras 2.15."""

    if IS_KERAS_3:

        def build(self, input_shape: Any) -> None:
            """Have all parts make their weights for inputs of a shape."""
            self.compute_output_spec(keras.KerasTensor(tuple(input_shape)))
            if not self.trainable:  # Keras 3 has frozen only the parts that existed then, and repeating it does nothing
                for part in self.layers:
                    part.trainable = False


def pooled(features: Any) -> Any:
    """Return features as vectors: of images or sequences of features the mean over their places."""
    places = range(1, len(features.shape) - 1)
    return tf.reduce_mean(features, tuple(places)) if places else features


def base_config(layer: Any) -> dict[str, Any]:
    """Return what every layer's config has: its name, and whether it is frozen as a whole.

    Keras 2.15 gives nothing for a model that is a class, and a frozen part must come back frozen.
    """
    return {"name": layer.name, "trainable": layer.trainable}


def check_counts(where: str, **counts: Any) -> None:
    """Raise `OptionError` that names every argument which is not a positive number, or not a list of such."""
    problems = [
        Problem(f"{where}: {name}", f"{value!r} – a positive number{' each' if _is_list(value) else ''}")
        for name, value in counts.items()
        if not all(map(_is_count, value if _is_list(value) else [value])) or (_is_list(value) and not value)
    ]
    if problems:
        raise OptionError(list_problems(problems))


def check_part(where: str, name: str, part: Any) -> None:
    """Raise `OptionError` if a part is no Keras model or layer."""
    if not isinstance(part, keras.layers.Layer):
        raise OptionError(f"{where}: {name}: {type(part).__name__} – a Keras model")


def parts_from_config(config: Mapping[str, Any], names: Iterable[str], custom_objects: Any = None) -> dict[str, Any]:
    """Return a config with the parts that it describes built, with new weights."""
    built = {name: keras.saving.deserialize_keras_object(config[name], custom_objects) for name in names}
    return {**config, **built}


def check_share(where: str, **shares: Any) -> None:
    """Raise `OptionError` that names every argument which is not from 0 to below 1."""
    wrong = {name: value for name, value in shares.items() if not _is_number(value) or not 0 <= value < 1}
    if wrong:
        problems = [Problem(f"{where}: {name}", f"{value!r} – from 0 to below 1") for name, value in wrong.items()]
        raise OptionError(list_problems(problems))


def check_choice(where: str, name: str, value: Any, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    """Raise `OptionError` if a value is none of those that there are."""
    if value not in choices:
        raise OptionError(f"{where}: {name}: {value!r} – one of {', '.join(choices)}")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
