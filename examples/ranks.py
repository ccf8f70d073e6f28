"""Average gradients over ranks, with Horovod if installed, else with mpi4py.

Horovod can be installed with TensorFlow 2.15.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Ranks:
    """The rank, the number of ranks, and collective operations for training.

    Attributes
    ----------
    rank, size : int
        Rank of this process, and number of ranks.
    averaging : str
        What averages the gradients: ``horovod``, ``mpi4py``, or ``nothing`` on one rank without Horovod.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._share_cores(self._comm.Split_type(MPI.COMM_TYPE_SHARED).Get_size())
        self.averaging = "horovod" if find_spec("horovod") else "mpi4py" if self.size > 1 else "nothing"
        if self.averaging == "horovod":
            import horovod.tensorflow.keras as hvd

            hvd.init()

    @staticmethod
    def _share_cores(n_local: int) -> None:
        """Limit TensorFlow to this rank's share of the node's cores.

        If the environment sets TF_NUM_INTRAOP_THREADS, that value is used instead.
        """
        import tensorflow as tf

        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // n_local))

    def on_root(self, make: Callable[[], T]) -> T:
        """Run a function on rank 0, and return its result on every rank. Collective.

        If it raises an error, all ranks exit: rank 0 with the message, the others with code 1.
        """
        outcome: tuple[T | None, str] | None = None
        if self.rank == 0:
            try:
                outcome = make(), ""
            except Exception as error:  # noqa: BLE001 - after any error, the other ranks must not wait forever
                outcome = None, f"{type(error).__name__}: {error}"
        value, problem = self._comm.bcast(outcome)
        if problem:
            raise SystemExit(problem if self.rank == 0 else 1)
        return value

    def distribute(self, optimizer: Any) -> Any:
        """Return an equal optimizer that averages gradients over the ranks."""
        if self.averaging == "horovod":
            import horovod.tensorflow.keras as hvd

            return hvd.DistributedOptimizer(optimizer)
        if self.averaging == "mpi4py":
            return self._averaging_class(type(optimizer)).from_config(optimizer.get_config())
        return optimizer

    def _averaging_class(self, base: type) -> type:
        average = self._average

        class Averaging(base):  # type: ignore[misc, valid-type]
            """The base optimizer, which first averages gradients over MPI (Keras 3)."""

            def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
                return super().apply(average(grads), trainable_variables)

        Averaging.__name__ = base.__name__
        return Averaging

    def _average(self, grads: list[Any]) -> list[Any]:
        """Average the gradients over the ranks in one message.

        If there were several messages, their order could differ between ranks.
        """
        import tensorflow as tf

        def allreduce(mine: np.ndarray) -> np.ndarray:
            total = np.empty_like(mine)
            self._comm.Allreduce(np.ascontiguousarray(mine), total)
            return total / np.float32(self.size)

        flat = tf.concat([tf.reshape(grad, [-1]) for grad in grads], 0)
        mean = tf.numpy_function(allreduce, [flat], flat.dtype)
        parts = tf.split(tf.ensure_shape(mean, flat.shape), [grad.shape.num_elements() for grad in grads])
        return [tf.reshape(part, grad.shape) for part, grad in zip(parts, grads, strict=True)]
