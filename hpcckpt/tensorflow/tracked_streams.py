"""The random streams of a rank, as something that ``tf.train.Checkpoint`` tracks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from hpcckpt.collective.communicator import launched_rank, launched_size
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.random_streams import derive_streams, read_streams, write_streams


class RandomStreams(tf.train.experimental.PythonState):  # type: ignore[misc]  # TensorFlow has no types
    """What programs draw from without naming it: Python's, NumPy's and TensorFlow's global streams.

    On another number of ranks there is no stream that would be the right one. Then each rank gets new ones, that
    depend on the checkpoint, the rank and the number of ranks.

    Parameters
    ----------
    rank, size : int, optional
        This rank and the number of ranks; by default what the launcher says.
    """

    def __init__(self, rank: int | None = None, size: int | None = None) -> None:
        super().__init__()
        self._identity = [
            launched_rank() or 0 if rank is None else rank,
            launched_size() or 1 if size is None else size,
        ]

    def serialize(self) -> bytes:
        """Return the streams as they are now. Independent."""
        return pack(read_streams(), self._identity).tobytes()

    def deserialize(self, string_value: Any) -> None:
        """Set the streams. Independent."""
        states, identity = unpack(np.frombuffer(string_value, np.uint8))
        context.context().clear_kernel_cache()  # eager operations continue counting where they stopped
        if identity == self._identity:
            write_streams(states)
        else:
            derive_streams(states["python"].tobytes()[:64], *self._identity)


def random_streams(rank: int | None = None, size: int | None = None) -> RandomStreams:
    """Return an object that keeps random streams in a checkpoint. Independent.

    A checkpoint that tracks it saves and restores the random streams of this rank.

    Parameters
    ----------
    rank, size : int, optional
        This rank and the number of ranks; by default those of the launcher.

    Examples
    --------
    >>> checkpoint = tf.train.Checkpoint(model=model, rng=hc.tensorflow.random_streams())
    """
    return RandomStreams(rank, size)
