"""TensorFlow and Keras variables as leaves: held without a copy on CPU, assigned in place."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, Literal

import numpy as np

from hpcckpt.core.dtypes import dtype_token
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, Kind, TensorSpec
from hpcckpt.errors import StateError
from hpcckpt.state.tf_hold import hold
from hpcckpt.state.tree import Array, TensorLeaf

_Family = Literal["tensorflow", "distributed", "keras", "other"]


_FAMILIES: dict[type[Any], _Family] = {}


def _family(obj: Any) -> _Family:
    """Say which family of variables an object belongs to; found out once for each class."""
    found = _FAMILIES.get(type(obj))
    return found or _FAMILIES.setdefault(type(obj), _family_of(type(obj)))


def _family_of(cls: type[Any]) -> _Family:
    import tensorflow as tf

    if issubclass(cls, tf.distribute.DistributedValues):
        return "distributed"
    if issubclass(cls, tf.Variable):
        return "tensorflow"
    is_keras = any(base.__name__ == "Variable" and base.__module__.startswith("keras.") for base in cls.__mro__)
    return "keras" if is_keras else "other"


def is_variable(obj: Any) -> bool:
    """Return True if `obj` is a TensorFlow variable or a Keras 3 variable."""
    return _family(obj) != "other"


def tensorflow_variable(variable: Any, name: str) -> Any:
    """Return the TensorFlow variable that holds the values of `variable`.

    Raises
    ------
    StateError
        If there is none: variables of ``tf.distribute`` strategies, or of another Keras backend.
    """
    family, held = _family(variable), variable
    if family == "tensorflow":
        return variable
    if family == "keras":
        held = getattr(variable, "_value", None)  # `value` casts it where mixed precision is at work
        held = variable.value if held is None else held
        family = _family(held)
    if family == "distributed":
        raise StateError(f"{name}: variables of tf.distribute strategies cannot be saved; use one process per device")
    if family != "tensorflow":
        raise StateError(f"{name}: Keras keeps this variable outside TensorFlow; set KERAS_BACKEND=tensorflow")
    return held


class VariableLeaf(TensorLeaf):
    """The leaf of a TensorFlow variable; all of a state are held by one call of `hold`.

    A state has hundreds of them, made again at each save: so what is the same for all is in the class.
    """

    __slots__ = ()

    def __init__(self, declaration: Declaration, source: Any) -> None:
        self.declaration = declaration
        self.source = source

    holder = staticmethod(hold)
    stager = None

    def read(self) -> Array:
        """Return the values, held."""
        return hold([self.source])[0]

    def assign(self, new: Array) -> None:
        """Give the variable new values."""
        self.source.assign(new)

    def target(self) -> None:
        """Offer no memory to restore into: others may share the variable's buffer."""

    def place(self) -> Hashable:
        """Return which variable it is, also if another object wraps it."""
        handle = getattr(self.source, "handle", self.source)
        return ("variable", id(handle)) if self.declaration.spec.nbytes else None


def variable_leaf(variable: Any, name: str, kind: Kind = "replicated") -> TensorLeaf:
    """Return the leaf of a variable."""
    held = tensorflow_variable(variable, name)
    shape = held.shape
    known = tuple(shape.as_list()) if shape.rank is not None else (None,)
    if None in known:  # it may differ from value to value
        known = hold([held])[0].shape
    return VariableLeaf(_declaration(name, _token(held.dtype, name), known, kind), held)


@functools.lru_cache(maxsize=1 << 16)
def _declaration(name: str, token: str, shape: tuple[int, ...], kind: Kind) -> Declaration:
    """Return what a variable is declared as; a pure function, so what it remembers is never out of date."""
    return Declaration(TensorSpec(name, token, shape, kind), Extent.whole(shape))


_TOKENS: dict[int, tuple[Any, str]] = {}


def _token(dtype: Any, name: str) -> str:
    """Return the token of a TensorFlow dtype: there are few, and TensorFlow takes its time to hash one."""
    known = _TOKENS.get(id(dtype))
    if known is None:  # keeps the dtype alive, so that no other one gets its id
        try:
            token = dtype_token(np.dtype(dtype.as_numpy_dtype))
        except StateError as error:
            raise StateError(f"{name}: {error}") from error
        known = _TOKENS.setdefault(id(dtype), (dtype, token))
    return known[1]
