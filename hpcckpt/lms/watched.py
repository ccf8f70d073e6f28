"""A function that is planned when it is first called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcckpt.lms import messages
from hpcckpt.lms.function_path import FunctionPath
from hpcckpt.lms.keras_path import function_pattern


class Planned:
    """Calls a function with the native pass armed for it; has it made anew where its first step took too much.

    Parameters
    ----------
    function : callable
        What TensorFlow makes ready to run when it is called.
    path : FunctionPath
        What plans it.
    pattern : str
        What the names match of the functions that TensorFlow makes of it.
    remake : callable
        Returns the function, made anew.
    """

    def __init__(self, function: Any, path: FunctionPath, pattern: str, remake: Callable[[], Any]) -> None:
        self._function, self.path, self._pattern, self._remake = function, path, pattern, remake

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        with self.path.armed(self._pattern):
            result = self._function(*args, **kwargs)
        if self.path.settle():
            self._function = self._remake()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def watched(function: Any, path: FunctionPath) -> Any:
    """Return a `tf.function` that is planned; as it is if that cannot be, which is said."""
    name = str(getattr(function, "__name__", repr(function)))
    why = _trouble(function, name)
    if why:
        path.note(why)
        return function
    made = Planned(function, path, function_pattern(name), lambda: tf.function(function.python_function))
    return functools.update_wrapper(made, function)


def _trouble(function: Any, name: str) -> str:
    if not hasattr(function, "get_concrete_function"):
        return messages.EAGER.format(what=f"{name} is no tf.function")
    if getattr(function, "_jit_compile", False):
        return messages.JIT.format(what=name)
    if function.experimental_get_tracing_count():
        return messages.TOO_LATE.format(function=name)
    return ""
