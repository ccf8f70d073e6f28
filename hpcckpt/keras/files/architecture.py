"""The architecture that a checkpoint holds, if it holds one, as a model.

An architecture is JSON, but building one may run code; one that does is refused, see `safe_config`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpcckpt.errors import ConfigError
from hpcckpt.keras.files.import_model import silence
from hpcckpt.keras.files.safe_config import know_own, refuse_code
from hpcckpt.keras.model.layers import is_layer

NAME = "architecture"
"""The last part of the name under which a state's object holds the architecture, beside the model's weights."""


def find_architecture(objects: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the architecture among a checkpoint's objects; ``None`` if there is none, or more than one. Pure.

    Either what ``model.to_json()`` gives, or a mapping with it under ``"model"`` and what
    ``model.get_compile_config()`` gives under ``"compile"``.
    """
    found = [value for _, value in _candidates(objects)]
    if len(found) != 1:
        return None
    value = found[0] if isinstance(found[0], Mapping) else {"model": found[0]}
    return value if isinstance(value.get("model"), str | Mapping) else None


def _candidates(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for values in objects.values():
        if isinstance(values, Mapping):
            yield from ((name, value) for name, value in values.items() if name.rpartition("/")[2] == NAME)


def build_architecture(
    architecture: Mapping[str, Any],
    custom_objects: Mapping[str, Any] | None = None,
    *,
    is_compiled: bool = True,
    is_trusted: bool = False,
) -> Any:
    """Build the model of an architecture, and compile it if it says how.

    Parameters
    ----------
    architecture : mapping
        As `find_architecture` gives it.
    custom_objects : mapping of str to object, optional
        Classes and functions that it may name besides Keras' own.
    is_compiled : bool
        Whether to compile the model.
    is_trusted : bool
        Whether code that the architecture brings along may be run.

    Raises
    ------
    ConfigError
        If that would run code which is not trusted, or fails.
    """
    from keras import models, saving

    with _as_config_error():
        stored = architecture["model"]
        config = json.loads(stored) if isinstance(stored, str) else dict(stored)
        compiled = config.pop("compile_config", None)  # Keras 3 has it there
        know_own([config, dict(architecture)])
        if not is_trusted:
            refuse_code(config, custom_objects)
        with silence(), saving.custom_object_scope(dict(custom_objects or {})), _trust(is_trusted):
            model = models.model_from_json(json.dumps(config))
            if not is_layer(model):  # Keras 2.15 gives back the name of a class that it does not know
                raise ConfigError(
                    f"the class {model} is not known to Keras; give a function that builds the model, such as --model "
                    "mypkg:build, or build it yourself: hpcckpt.keras.load_weights"
                )
            if not model.built and isinstance(architecture.get("build"), Mapping):
                model.build_from_config(dict(architecture["build"]))
            if is_compiled:
                _compile(model, architecture.get("compile", compiled), custom_objects, is_trusted=is_trusted)
    return model


@contextlib.contextmanager
def _as_config_error() -> Iterator[None]:
    """Make a `ConfigError` of whatever Keras, or code of the user's, raises in the block."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:500]
        raise ConfigError(
            f"the model that the checkpoint describes cannot be built: {type(error).__name__}: {text}; "
            "build it yourself and have it filled (--model, or hpcckpt.keras.load_weights)"
        ) from error


@contextlib.contextmanager
def _trust(is_trusted: bool) -> Iterator[None]:
    """Let Keras run code that a config brings along, if it is trusted."""
    from keras.src.saving.serialization_lib import SafeModeScope

    with SafeModeScope(safe_mode=not is_trusted):
        yield


def _compile(model: Any, config: Any, custom_objects: Mapping[str, Any] | None, *, is_trusted: bool) -> None:
    """Compile a model as it was; only with its optimizer, if the rest of it (a loss of the user's) needs other code."""
    if not isinstance(config, Mapping) or not config.get("optimizer"):
        return
    try:
        if not is_trusted:
            refuse_code(config, custom_objects)
    except ConfigError:
        refuse_code(config["optimizer"], custom_objects)
        config = {"optimizer": config["optimizer"]}
    model.compile_from_config(dict(config))
