"""TensorFlow variables held as they are: their own buffers, not copies.

A variable is copied on write while something else holds its buffer: whatever changes it afterwards
(optimizers, ``assign``, compiled steps) gets fresh memory, and what was read stays as it was.  So to
hold is to read: no bytes move.  One custom op reads all variables at once, and makes arrays of them in C; without it
(:mod:`hpcckpt.native.tf_ops`) each variable is read on its own, which costs ten times as much.

Two kinds are copied nevertheless: by TensorFlow, variables that had sparse updates (embeddings), which it
returns as copies from then on; and, here, variables on accelerators, whose values are copied to the
host in pieces of bounded size.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.collective.communicator import launched_rank
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import HostMemoryError, StateError
from hpcckpt.native import tf_ops
from hpcckpt.state.tree import Array

PIECE_BYTES = 64 << 20
"""What staging takes at a time: as much more memory of the accelerator is in use meanwhile."""

_log = logging.getLogger(__name__)
_ON_HOST = "CPU"
_HOST = "CPU:0"


def hold(variables: Sequence[Any]) -> list[Array]:
    """Return the values of TensorFlow variables as read-only arrays that later updates leave as they are. Independent.

    Parameters
    ----------
    variables : sequence of tf.Variable
        The variables, on any devices.

    Returns
    -------
    list of numpy.ndarray
        C-contiguous arrays, each of which keeps alive the buffer it shows. A variable whose buffer is held is
        copied by its next update; so an array should be dropped as soon as it is not needed any more.

    Raises
    ------
    StateError
        Naming every variable that has no value yet; or inside of a ``tf.function``.
    HostMemoryError
        If what is on accelerators does not fit into the host's memory.
    """
    ops = tf_ops.loaded_if_built()
    if ops is not None:
        return _hold_at_once(ops, variables)
    _log_why_each()
    return _hold_each(variables)


@functools.cache
def _log_why_each() -> None:
    """Log once, on root, why variables are read one by one, unless that was asked for.

    Nothing is built for this: a save that comes before the end of a job must not wait for a compiler.
    """
    why = tf_ops.why_not_loaded()
    if why and not launched_rank():
        _log.info("%s; until then variables are read one by one, which takes milliseconds longer", why)


def _hold_at_once(ops: tf_ops.Ops, variables: Sequence[Any]) -> list[Array]:
    """Hold what is in the host's memory by one op, and the rest, or all if that fails, as `_hold_each` does."""
    import tensorflow as tf

    _require_eager()
    try:
        with tf.device(_HOST):
            owner, address = ops.raw.hpcckpt_hold(variables=[variable.handle for variable in variables])
    except tf.errors.OpError:
        return _hold_each(variables)
    arrays, n_left, _ = ops.module.arrays(int(address), _numpy_dtypes())
    del owner
    if n_left:
        left = [number for number, array in enumerate(arrays) if array is None]
        for number, array in zip(left, _hold_each([variables[number] for number in left]), strict=True):
            arrays[number] = array
    return arrays


@functools.cache
def _numpy_dtypes() -> list[Any]:
    """Return NumPy's dtypes by TensorFlow's numbers of them; ``None`` where there is none of the same size."""
    import tensorflow as tf

    def find(number: int) -> np.dtype[Any] | None:
        try:
            kind = tf.as_dtype(number)
            found = np.dtype(kind.as_numpy_dtype)
        except (TypeError, NotImplementedError, KeyError):
            return None
        return found if not found.hasobject and found.itemsize == kind.size else None

    return [find(number) for number in range(100)]


def _hold_each(variables: Sequence[Any]) -> list[Array]:
    """Hold each variable by a separate op."""
    tensors = _read(variables)
    _check_memory([tensor for tensor in tensors if _is_elsewhere(tensor)])
    arrays = [stage(tensor) if _is_elsewhere(tensor) else _view(tensor) for tensor in tensors]
    empty = [v for v, array in zip(variables, arrays, strict=True) if not array.size and not v.is_initialized()]
    if empty:  # TensorFlow returns nothing, and raises no error
        raise StateError(f"these variables have no value yet: {', '.join(v.name for v in empty[:10])}; initialize them")
    return arrays


def tensors(variables: Sequence[Any]) -> list[Any]:
    """Return tensors that share the variables' buffers, on any devices: later updates leave them as they are.

    Of variables that had sparse updates (embeddings) they are copies. Independent.
    """
    return _read(variables)


def is_same_memory(one: Any, other: Any) -> bool:
    """Return True if two tensors are in one place of the host's memory: so what they were read from did not change."""
    if _is_elsewhere(one) or _is_elsewhere(other) or one.shape != other.shape:
        return False
    return bool(_view(one).ctypes.data == _view(other).ctypes.data)


def copied(variables: Sequence[Any], arrays: Sequence[Array]) -> list[bool]:
    """Say of arrays that `hold` just returned which ones are copies, not the variables' own buffers. Independent.

    Parameters
    ----------
    variables : sequence of tf.Variable
        What was held, and not changed since.
    arrays : sequence of numpy.ndarray
        What `hold` returned for them.
    """
    again = _read(variables)
    return [
        _is_elsewhere(tensor) or (array.size > 0 and array.ctypes.data != _view(tensor).ctypes.data)
        for array, tensor in zip(arrays, again, strict=True)
    ]


def warm(variables: Sequence[Any]) -> None:
    """Have TensorFlow own the memory that updates of held variables will take, its pages touched. Independent.

    The first update after the first `hold` copies all that is held into memory that is new to the process, whose
    first touch costs many times the copy. With oneDNN, the default on x86 CPUs with AVX512-VNNI, TensorFlow keeps what
    it once had, so this needs doing once, where the training does not wait; it makes the process as large as the first
    save would.
    """
    import tensorflow as tf

    tensors = [tensor for tensor in _read(variables) if not _is_elsewhere(tensor)]
    taken = [tf.fill(tensor.shape, tf.zeros((), tensor.dtype)) for tensor in tensors]
    del taken  # all of them at once: one by one they would lie in the same place


def _read(variables: Sequence[Any]) -> list[Any]:
    """Return tensors that share the variables' buffers."""
    import tensorflow as tf

    _require_eager()
    read = tf.raw_ops.ReadVariableOp  # what variable.read_value() calls in the end, at a third of its price
    return [read(resource=variable.handle, dtype=variable.dtype) for variable in variables]


def _require_eager() -> None:
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise StateError("variables have no values while a graph is built: save and restore outside of tf.function")


def _view(tensor: Any) -> Array:
    """Return a view of a tensor's memory, which TensorFlow keeps C-contiguous and in the machine's byte order."""
    try:
        array = np.asarray(tensor)
    except ValueError:  # a scalar of a type that NumPy's buffers do not know, such as bfloat16
        array = np.asarray(_as_vector(tensor)).reshape(())
    array.setflags(write=False)  # others may share it
    return array


def _as_vector(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(tensor, [-1])  # shares the memory


# -- accelerators (not tested on any: there was none) ----------------------------------------------


def _is_elsewhere(tensor: Any) -> bool:
    return _ON_HOST not in tensor.backing_device


def stage(tensor: Any, piece_nbytes: int = PIECE_BYTES) -> Array:
    """Return a copy of a tensor in the host's memory, brought there in pieces. Independent.

    Whole tensors would pass through a second buffer of their size on the way.
    """
    import tensorflow as tf

    array = np.empty(tuple(tensor.shape), tensor.dtype.as_numpy_dtype)
    flat, step = array.reshape(-1), max(1, piece_nbytes // array.itemsize)
    with tf.device(tensor.backing_device):
        line = _as_vector(tensor)
        for start in range(0, array.size, step):
            flat[start : start + step] = np.asarray(line[start : start + step])
    return array


def _check_memory(tensors: Sequence[Any]) -> None:
    """Refuse, before anything is staged, what the host's memory cannot take."""
    if not tensors:
        return
    needed = sum(math.prod(tensor.shape.as_list()) * int(tensor.dtype.size) for tensor in tensors)
    free = available_nbytes()
    if free is not None and needed > free:
        raise HostMemoryError(
            f"{nbytes_text(needed)} of variables are on accelerators, and this host has {nbytes_text(free)} of memory "
            "free: wait for the saves in flight before the next one, or run fewer ranks on a host"
        )


def available_nbytes(meminfo: str = "/proc/meminfo") -> int | None:
    """Return how much memory the host can give away without swapping; ``None`` where the kernel does not say."""
    try:
        lines = Path(meminfo).read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else None
