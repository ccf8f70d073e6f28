"""Values for objects that do not exist yet: TensorFlow waits for them, and we keep the values where it looks for them.

What a checkpoint holds for variables that exist is restored straight into them.  The rest goes, as one of TensorFlow's
own checkpoints, into the file system that TensorFlow keeps in memory (``ram://``), and its own ``read`` does what is
left: it hands values to tables, iterators and Python objects, and to variables in the moment they are created.  The
memory is given back when nothing waits any more.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
from collections.abc import Mapping
from typing import Any

from hpcckpt.state.tree import Array
from hpcckpt.tensorflow.collect import is_checkpoint
from hpcckpt.tensorflow.graph import Graph, to_proto

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def read(root: Any, graph: Graph, arrays: Mapping[str, Array], *, is_complete: bool) -> Any:
    """Have TensorFlow restore what is left, now or when it is created; return its status object. Independent.

    Parameters
    ----------
    root : object
        What is restored.
    graph : tuple of Node
        The graph of the checkpoint.
    arrays : mapping of str to numpy.ndarray
        What is left, by key; of dtypes that NumPy does not know, as bytes of a serialized tensor.
    is_complete : bool
        Whether all objects that these values are for exist.
    """
    import tensorflow as tf

    directory = f"ram://hpcckpt-{os.getpid()}-{uuid.uuid4().hex}"
    dtypes = {key: dtype for node in graph for value in node.values.values() for key, dtype in value.parts.items()}
    tensors = {key: _tensor(array, dtypes[key]) for key, array in arrays.items()}
    tensors[GRAPH_KEY] = tf.constant(to_proto(graph, arrays.keys()).SerializeToString())
    prefix = f"{directory}/part"
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=[*tensors], shape_and_slices=[""] * len(tensors), tensors=[*tensors.values()]
        )
    reader = root if is_checkpoint(root) else tf.train.Checkpoint(root=root)
    try:
        status = reader.read(prefix)
    except BaseException:
        _remove(directory)
        raise
    if is_complete:
        _remove(directory)  # no more values will be read from it
    else:
        weakref.finalize(status._checkpoint, _remove, directory)
    return status


def _tensor(array: Array, dtype: str) -> Any:
    import tensorflow as tf

    return tf.io.parse_tensor(array.tobytes(), tf.as_dtype(dtype)) if dtype else tf.constant(array)


def _remove(directory: str) -> None:
    import tensorflow as tf

    with contextlib.suppress(tf.errors.OpError):
        tf.io.gfile.rmtree(directory)
