"""TensorFlow and Keras variables as leaves: read without a copy on CPU, assigned in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcckpt.dtypes import dtype_token
from hpcckpt.errors import StateError
from hpcckpt.plan import Declaration
from hpcckpt.snapshot import Array, TensorLeaf, plain
from hpcckpt.tensors import Extent, Kind, TensorSpec


def is_variable(obj: Any) -> bool:
    """Say whether `obj` is a TensorFlow variable or a Keras 3 variable."""
    import tensorflow as tf

    if isinstance(obj, tf.Variable | tf.distribute.DistributedValues):
        return True
    return any(cls.__name__ == "Variable" and cls.__module__.startswith("keras.") for cls in type(obj).__mro__)


def tensorflow_variable(variable: Any, name: str) -> Any:
    """Return the TensorFlow variable that holds the values of `variable`.

    Raises
    ------
    StateError
        If there is none: variables of ``tf.distribute`` strategies, or of another Keras backend.
    """
    import tensorflow as tf

    held = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
    if isinstance(held, tf.distribute.DistributedValues):
        raise StateError(f"{name}: variables of tf.distribute strategies cannot be saved; use one process per device")
    if not isinstance(held, tf.Variable):
        raise StateError(f"{name}: Keras keeps this variable outside TensorFlow; set KERAS_BACKEND=tensorflow")
    return held


def variable_leaf(variable: Any, name: str, kind: Kind = "replicated") -> TensorLeaf:
    """Return the leaf of a variable.

    On CPU, what it reads is a read-only view of the variable's own buffer. TensorFlow's variables are
    copied on write while somebody holds that buffer, so later updates leave the view as it was read.
    """
    held = tensorflow_variable(variable, name)
    shape = tuple(map(int, held.shape))
    spec = TensorSpec(name, dtype_token(np.dtype(held.dtype.as_numpy_dtype)), shape, kind)

    def read() -> Array:
        return plain(np.asarray(held.read_value()))

    def assign(new: Array) -> None:
        held.assign(new)

    return TensorLeaf(Declaration(spec, Extent.whole(shape)), read, assign)
