"""A function that is planned when it is first called."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcckpt.lms import messages
from hpcckpt.lms.runtime.keras_model import function_pattern
from hpcckpt.lms.runtime.tf_function import FunctionPath


class WatchedFunction:
    """Calls a function with the native pass armed for it; builds it again if its first step used too much memory.

    Parameters
    ----------
    function : callable
        The function that TensorFlow compiles when it is called.
    path : FunctionPath
        Plans it.
    pattern : str
        Matches the names of the functions that TensorFlow makes of it.
    remake : callable
        Returns the function, built again.
    """

    def __init__(self, function: Any, path: FunctionPath, pattern: str, remake: Callable[[], Any]) -> None:
        self._function, self.path, self._pattern, self._remake = function, path, pattern, remake
        self._methods: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        why = _trouble_of_call(self._name)
        if why:
            self.path.note(why)
            return self._function(*args, **kwargs)
        with self.path.armed(self._pattern, self):
            result = self._function(*args, **kwargs)
        if self.path.has_no_gradients:
            self.path.note(messages.NO_GRADIENTS.format(function=self._name))
        if self.path.check_step():
            self._function = self._remake()
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an object, planned when it is called, as a `tf.function` in a class does."""
        if instance is None:
            return self
        if instance not in self._methods:
            self._methods[instance] = plan_on_first_call(self._function.__get__(instance, owner), self.path)
        return self._methods[instance]

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Return TensorFlow's function for given arguments; it is not planned."""
        self.path.note(messages.CONCRETE.format(function=self._name))
        return self._function.get_concrete_function(*args, **kwargs)

    @property
    def _name(self) -> str:
        return _name_of(self._function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def plan_on_first_call(function: Any, path: FunctionPath) -> Any:
    """Return a `tf.function` that is planned at its first call; unchanged, with a warning, if that is impossible."""
    name = _name_of(function)
    why = _trouble(function, name)
    if why:
        path.note(why)
        return function
    made = WatchedFunction(function, path, function_pattern(name), lambda: function._clone(None))
    return functools.update_wrapper(made, function)


def _name_of(function: Any) -> str:
    """Return the name that TensorFlow gives a function; that of a partial or of an object is ``function``."""
    return str(getattr(function, "_name", None) or getattr(function, "__name__", repr(function)))


def _trouble_of_call(name: str) -> str:
    """Return why a call cannot be planned, and what to do; empty if it can."""
    if tf.config.functions_run_eagerly():
        return messages.EAGER.format(what=messages.EAGER_FUNCTIONS)
    return "" if tf.executing_eagerly() else messages.INNER.format(function=name)


def _trouble(function: Any, name: str) -> str:
    if not hasattr(function, "get_concrete_function"):
        return messages.EAGER.format(what=f"{name} is no tf.function")
    if getattr(function, "_jit_compile", False):
        return messages.JIT.format(what=name)
    if function.experimental_get_tracing_count():
        return messages.TOO_LATE.format(function=name)
    return ""
