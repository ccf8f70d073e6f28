"""The description of a model in a checkpoint, from which it can be rebuilt without its program."""

from __future__ import annotations

import json
from typing import Any

from hpcckpt.keras.files.architecture import NAME
from hpcckpt.state.tree import is_json


def describe(model: Any) -> dict[str, Any]:
    """Return the description of a model, to be saved as objects of a checkpoint.

    ``model``
        Class and module; and if the model cannot be built from its config, the reason.
    ``architecture``
        The results of ``model.to_json()`` and ``model.get_compile_config()``, and for a class of the user the shape
        of its input. A model that has no config has no such entry.
    """
    about = {"class": type(model).__name__, "module": type(model).__module__, "name": model.name}
    try:
        config = json.loads(model.to_json())
    except Exception as error:  # noqa: BLE001 - Keras raises all kinds
        return {"model": about | {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}}
    if not is_json(config):
        return {"model": about | {"problem": "its configuration is nested too deep"}}
    return {"model": about, NAME: {"model": _named(config, model), **_built(model), **_compiled(model)}}


def _named(config: Any, model: Any) -> Any:
    """Return a config with the name under which Keras knows the class, which Keras 2.15 leaves out at the top."""
    from keras import saving

    name = saving.get_registered_name(type(model))
    return config if "registered_name" in config or ">" not in name else {**config, "class_name": name}


def _built(model: Any) -> dict[str, Any]:
    """Return what a model of the user's is built with, which Keras 2.15 leaves out of its JSON."""
    if getattr(model, "_is_graph_network", False) or not model.built:
        return {}
    found = model.get_build_config()
    return {"build": found} if found and is_json(found) else {}


def _compiled(model: Any) -> dict[str, Any]:
    try:
        found = _with_optimizer(model.get_compile_config(), getattr(model, "optimizer", None))
        config = _unwrapped(json.loads(json.dumps(found))) if found else None
    except Exception:  # noqa: BLE001 - a loss or metric of the user's own: the model can be built, and is compiled by hand
        return {}
    return {"compile": config} if config and is_json(config) else {}


def _with_optimizer(config: Any, optimizer: Any) -> Any:
    """Return what a model was compiled with; Keras 3 takes the optimizer out of it when it writes an ``.h5``."""
    if not config or optimizer is None or config.get("optimizer"):
        return config
    from keras import saving

    return {**config, "optimizer": saving.serialize_keras_object(optimizer)}


def _unwrapped(config: Any) -> Any:
    """Return a config in which optimizers that Horovod wraps, by classes made on the fly, are those of Keras again."""
    from keras import optimizers

    if isinstance(config, list):
        return [_unwrapped(item) for item in config]
    if not isinstance(config, dict):
        return config
    plain = {key: _unwrapped(value) for key, value in config.items()}
    is_wrapped = str(plain.get("module", "")).partition(".")[0] == "horovod"
    if is_wrapped and hasattr(optimizers, str(plain.get("class_name", ""))):
        is_legacy = "decay" in plain.get("config", {})  # of Keras 2.15's optimizers only the legacy ones have it
        module = "keras.optimizers.legacy" if is_legacy else "keras.optimizers"
        plain |= {"module": module, "registered_name": None}
    return plain
