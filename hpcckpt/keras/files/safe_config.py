"""Whether building a Keras object from its config would run code that came with the config, or was named there.

A config is JSON, but some of what Keras builds from it is code: Lambda layers carry bytecode, `TorchModuleWrapper` a
pickle, other layers name a file with a program; classes and functions are imported by module and name, whatever
they are; and layers that Keras 2 makes of TensorFlow's operations may name any of these, ``io.write_file`` too.
A checkpoint may come from an untrusted source. So everything that is not an ordinary layer, loss or function of Keras
is refused, unless the program that loads it knows it already: by ``custom_objects``, or registered with Keras.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from hpcckpt.errors import ConfigError

_CARRIERS = {
    "Lambda", "__lambda__", "TensorFlowOpLayer", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer",
    "ClassMethod", "InstanceMethod",
}  # fmt: skip
_FUNCTIONS = ("activations", "losses", "metrics", "initializers", "regularizers", "constraints")
_OPERATIONS = {"__operators__", "bitwise", "image", "linalg", "math", "nn", "signal", "strings"}
_PLAIN_OPERATIONS = {
    "abs", "argmax", "argmin", "cast", "clip_by_value", "concat", "cumsum", "einsum", "exp", "expand_dims", "fill",
    "gather", "gather_nd", "identity", "matmul", "maximum", "minimum", "norm", "one_hot", "ones_like", "pad", "range",
    "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "repeat", "reshape", "reverse", "shape",
    "sigmoid", "slice", "split", "sqrt", "square", "squeeze", "stack", "stop_gradient", "strided_slice", "subtract",
    "tanh", "tensordot", "tile", "transpose", "unstack", "where", "zeros_like",
}  # fmt: skip


def refuse_code(config: Any, custom_objects: Mapping[str, Any] | None = None) -> None:
    """Raise if building from a config would run foreign code, or import it by name.

    Parameters
    ----------
    config : object
        JSON.
    custom_objects : mapping of str to object, optional
        Classes and functions of the caller's that it may name.

    Raises
    ------
    ConfigError
        Naming the first such thing.
    """
    for value in _objects(config):
        found = _code_in(value, custom_objects or {})
        if found:
            raise ConfigError(
                f"the model needs code that is not Keras' own ({found}), and no code is run that a file or checkpoint "
                "names; build the model yourself and have it filled (--model package.module:function, or "
                "hpcckpt.keras.load_weights), or name what it needs in custom_objects"
            )


OWN = "hpcckpt>"
_OWN_MODULES = (
    "losses.smoothed", "models.lenet5", "models.one_head_net", "models.networks.small_conv_net",
    "models.networks.small_res_net", "models.networks.small_transformer", "models.components.convolution",
    "models.components.patches", "models.components.residual", "models.components.transformer",
)  # fmt: skip


def know_own(config: Any) -> None:
    """Have Keras know models and losses of this package, if a config names one. Independent.

    They are registered when their modules are imported.  The list is here, not in the config.
    """
    named = (one for value in _objects(config) for one in (value["class_name"], value.get("registered_name")))
    if any(isinstance(one, str) and one.startswith(OWN) for one in named):
        for module in _OWN_MODULES:
            importlib.import_module(f"hpcckpt.train.{module}")


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings that Keras may take for the config of an object."""
    todo = [value]
    while todo:
        current = todo.pop()
        if isinstance(current, Mapping):
            if "class_name" in current:
                yield current
            todo += current.values()
        elif isinstance(current, list | tuple):
            todo += current


def _code_in(value: Mapping[str, Any], custom: Mapping[str, Any]) -> str:
    """Return what code the config of one object asks for; "" if it asks for none."""
    name, module = value["class_name"], value.get("module")
    function = value.get("config") if name == "function" else None
    if not isinstance(name, str) or not isinstance(module, str | None):
        return repr(name)[:100]
    registered = value.get("registered_name") if "module" in value else None  # else Keras 2 goes by the class alone
    key = function if name == "function" else registered or name
    if not isinstance(key, str):
        return f"a function called {key!r}"[:100]
    shown = f"{module}.{function or name}" if module else key
    if name.endswith("OpLambda"):
        return _operation_in(value)
    vocabulary = _file_in(value)
    if vocabulary:
        return f"{shown}, which reads {vocabulary!r}"[:100]
    if _is_known(key, custom):
        return ""
    if name in _CARRIERS:
        return shown
    if name == "function":
        return "" if _is_function(module, key) else shown
    is_keras = module is None or module == "keras" or module.startswith("keras.")
    return "" if is_keras and value.get("registered_name") in {None, name} and name[:1] in _FIRST else shown


_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
"""Keras' classes begin so; its functions, some of which read and write files, do not."""


def _file_in(value: Mapping[str, Any]) -> str | None:
    """Return the file that a layer would read its words from while it is built."""
    config = value.get("config")
    vocabulary = config.get("vocabulary") if isinstance(config, Mapping) else None
    return vocabulary if isinstance(vocabulary, str) else None


def _is_known(name: str, custom: Mapping[str, Any]) -> bool:
    """Return True if the caller gave this name, or its program registered it with Keras; both precede any import."""
    from keras import saving

    return saving.get_registered_object(name, custom_objects=dict(custom)) is not None


def _is_function(module: str | None, name: str) -> bool:
    """Return True if this is a function that Keras has for models, and not one of Python's own."""
    import keras

    homes = [f"keras.{each}" for each in _FUNCTIONS]
    return module in {"builtins", *homes} and any(hasattr(getattr(keras, each), name) for each in _FUNCTIONS)


def _operation_in(value: Mapping[str, Any]) -> str:
    """Return the operation of TensorFlow's that a layer of Keras 2 represents, unless it only computes."""
    config = value.get("config")
    function = config.get("function") if isinstance(config, Mapping) else None
    head, dot, _ = str(function).partition(".")
    return "" if (head in _OPERATIONS if dot else head in _PLAIN_OPERATIONS) else f"tf.{function}"[:100]
