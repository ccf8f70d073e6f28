"""Save and load the variables of a model, or variables, by a backend that is named."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcckpt import plugins
from hpcckpt.backends.registry import discover
from hpcckpt.errors import BackendNotFoundError, OptionError
from hpcckpt.plugins import LoadedBackend
from hpcckpt.tmci.configs import Config, as_text, check

__all__ = ["load_variables", "load_weights", "save_variables", "save_weights"]


def save_weights(
    model: Any, backend: str, config: Config = "", include_optimizer: bool = True, *, everything: bool | None = None
) -> Any:
    """Save the weights of a Keras model. Independent with a plugin, Collective with a backend in Python.

    Parameters
    ----------
    model : keras.Model
        The model, built.
    backend : str
        Name of a plugin, or of a backend in Python.
    config : str or dict
        For a plugin: a text in its format; a dict becomes JSON. For a backend in Python: a dict, JSON, or
        ``key=value,key=value``, with the run directory as ``path``.
    include_optimizer : bool
        Whether the optimizer's variables are saved too.
    everything : bool, optional
        Whether a plugin also gets the values that TMCI leaves out, such as Keras 2.15's learning rate. By default a
        plugin that stores tensors by name gets them. A plugin made for TMCI does not: it identifies tensors by their
        order only.

    Returns
    -------
    tf.Operation or None
        The op that saves, while a graph for a Session is built; else ``None``.

    Raises
    ------
    TypeError
        If an argument is of a wrong type.
    BackendNotFoundError
        If there is no such backend; lists the existing ones.
    BackendError
        If the plugin fails: ``dummy.Save failed (code 7): its own text``.
    StateError
        If the model is not built.
    """
    return _as_written(_of_model, "save", model, backend, config, include_optimizer, everything)


def load_weights(
    model: Any, backend: str, config: Config = "", include_optimizer: bool = True, *, everything: bool | None = None
) -> Any:
    """Load the weights of a Keras model, in place. Independent with a plugin, Collective with a backend in Python.

    If necessary, the optimizer's variables are created first, without a training step. The plugin gets a variable's own
    memory if there is no other reference to it; otherwise it gets new memory, which then replaces the variable's.

    Parameters
    ----------
    model, backend, config, include_optimizer, everything
        As they were given to `save_weights`.

    Returns
    -------
    tf.Operation or None
        The op that loads, while a graph for a Session is built; else ``None``.

    Raises
    ------
    BackendError
        If the plugin fails, with its code and its text; the model's values are then undefined.
    CorruptError
        If the plugin or the backend reports that the stored data is damaged.
    """
    return _as_written(_of_model, "load", model, backend, config, include_optimizer, everything)


def save_variables(variables: Mapping[str, Any] | Iterable[Any], backend: str, config: Config = "") -> Any:
    """Save variables by a plugin. Independent.

    The variables are an iterable, or a dict that names them.

    For programs without a Keras model: custom loops, ``tf.function``, and Sessions, where the variables may also be
    those of TensorFlow 1.

    Returns
    -------
    tf.Operation or None
        The op that saves, while a graph for a Session is built; else ``None``.

    Raises
    ------
    OptionError
        If the backend is one in Python, not a plugin.
    """
    return _as_written(_of_variables, "save", variables, backend, config)


def load_variables(variables: Mapping[str, Any] | Iterable[Any], backend: str, config: Config = "") -> Any:
    """Load variables by a plugin. Independent.

    The variables are an iterable, or a dict that names them.

    Returns
    -------
    tf.Operation or None
        The op that loads, while a graph for a Session is built; else ``None``. Run it after the variables were
        initialized.

    Raises
    ------
    OptionError
        If the backend is one in Python, not a plugin.
    """
    return _as_written(_of_variables, "load", variables, backend, config)


def find_plugin(name: str) -> LoadedBackend | None:
    """Return the plugin that a backend's name means; ``None`` if it means a backend in Python.

    A plugin that the program has loaded comes first, then backends in Python, then plugins found by their names.

    Raises
    ------
    BackendNotFoundError
        If there is none of either; names those that there are.
    """
    loaded = plugins.loaded()
    if name in loaded:
        return loaded[name]
    in_python = {info.name for info in discover()}
    if name.partition(":")[0] in in_python:
        return None
    try:
        return plugins.find(name)
    except BackendNotFoundError as error:
        raise BackendNotFoundError(f"{error}; backends in Python: {', '.join(sorted(in_python))}") from None


def _as_written(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function that TensorFlow must not rewrite when it is called within a ``tf.function``."""
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(fn)(*args)


def _of_model(
    verb: str, model: Any, backend: str, config: Config, include_optimizer: bool, everything: bool | None
) -> Any:
    check(backend, config, include_optimizer)
    plugin = find_plugin(backend)
    if plugin is None:
        by_engine = getattr(importlib.import_module("hpcckpt.tmci.engine"), verb)
        return by_engine(model, backend, config, include_optimizer=include_optimizer)
    import tensorflow as tf

    from hpcckpt.keras.model.finalize import finalize
    from hpcckpt.tmci.variables import variables_of

    wants_all = "stores" in plugin.features if everything is None else everything
    variables = variables_of(model, include_optimizer=include_optimizer, everything=wants_all)
    done = _call(verb, plugin, config, variables)
    if verb == "load" and tf.executing_eagerly():  # elsewhere nothing is loaded yet
        finalize(model)
    return done


def _of_variables(verb: str, variables: Mapping[str, Any] | Iterable[Any], backend: str, config: Config) -> Any:
    check(backend, config, include_optimizer=True)
    plugin = find_plugin(backend)
    if plugin is None:
        raise OptionError(f"{backend!r} is a backend in Python, which takes states: use hpcckpt.Checkpointer")
    from hpcckpt.tmci.variables import named

    return _call(verb, plugin, config, named(variables))


def _call(verb: str, plugin: LoadedBackend, config: Config, variables: Any) -> Any:
    calls = importlib.import_module("hpcckpt.tmci.calls")
    return getattr(calls, verb)(calls.opened(plugin, as_text(config)), variables)
