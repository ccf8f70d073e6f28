"""Gradients averaged over ranks by mpi4py, within the graph of a training step.

Gradients are put together into messages of at most `MESSAGE_BYTES`: few enough calls for small models, and buffers
small enough that memory is used again, for first touch of fresh memory costs more than the sum.  All messages of a
graph follow one another by control edges, in the same order on every rank.

The sum is taken in a thread of TensorFlow's while the main thread waits for the step: never two MPI calls at a time,
but not in the thread that MPI was started in either.  So MPI has to be at least MPI_THREAD_SERIALIZED.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import MpiError
from hpcckpt.state.tree import Array

MESSAGE_BYTES = 16 << 20
_HALVES = (tf.float16, tf.bfloat16)
"""MPI has no sums of these: they are added up as float32."""


class GradientMean:
    """The mean of gradients over ranks.

    Parameters
    ----------
    comm : Communicator
        Ranks of MPI; duplicated, so that these messages meet no others. Collective.

    Raises
    ------
    MpiError
        If MPI was started so that only one thread may call it.
    """

    def __init__(self, comm: Communicator) -> None:
        from hpcckpt.collective.mpi import MPI, MpiCommunicator  # type: ignore[attr-defined]  # mpi4py has one door

        own = comm.duplicate()
        assert isinstance(own, MpiCommunicator), "threads as ranks have no MPI"
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise MpiError(
                "distributed='mpi4py' needs MPI_THREAD_SERIALIZED, and MPI was started with less: start it with more "
                "(mpi4py.rc.thread_level, or the MPI library's own setting), or train with distributed='horovod'"
            )
        self.comm, self._mpi = own, own.mpi
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the means of gradients, in their order; what is ``None`` stays so. Collective."""
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        means: list[Any] = [None] * len(dense)
        for numbers in _messages(dense):
            for number, mean in zip(numbers, self._mean_of([dense[n] for n in numbers]), strict=True):
                means[number] = mean
        return means

    def _mean_of(self, parts: Sequence[Any]) -> list[Any]:
        """Return the means of tensors of one dtype, which go in one message."""
        dtype = parts[0].dtype
        flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        wide = tf.cast(flat, tf.float32) if dtype in _HALVES else flat
        graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
        before = self._last.get(graph) if graph is not None else None
        with tf.control_dependencies([] if before is None else [before]):
            total = tf.numpy_function(self.mean, [wide], wide.dtype)
        if graph is not None:
            self._last[graph] = total
        total.set_shape(wide.shape)
        split = tf.split(tf.cast(total, dtype), [tf.size(part) for part in parts], num=len(parts))
        return [tf.reshape(mean, tf.shape(part)) for mean, part in zip(split, parts, strict=True)]

    def mean(self, own: Array) -> Array:
        """Return the mean of arrays over the ranks. Collective."""
        total = np.empty_like(own)
        self._mpi.Allreduce(own, total)
        total /= own.dtype.type(self.comm.size)
        return total


def _messages(tensors: Sequence[Any]) -> Iterator[list[int]]:
    """Yield which tensors go into one message: of one dtype, in their order, up to a size."""
    held: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}
    for number, tensor in enumerate(tensors):
        if tensor is None:
            continue
        nbytes = tensor.dtype.size * (tensor.shape.num_elements() or 0)
        if tensor.dtype in held and sizes[tensor.dtype] + nbytes > MESSAGE_BYTES:
            yield held.pop(tensor.dtype)
        sizes[tensor.dtype] = nbytes + (sizes[tensor.dtype] if tensor.dtype in held else 0)
        held.setdefault(tensor.dtype, []).append(number)
    yield from held.values()
