"""One rank of a job that averages gradients of all kinds, in a graph as training steps are."""

from __future__ import annotations

import json

import numpy as np
import tensorflow as tf

from hpcckpt.collective.mpi import world
from hpcckpt.train.loop import gradient_allreduce

gradient_allreduce.MESSAGE_BYTES = 12
comm = world()
mean = gradient_allreduce.GradientMean(comm)
own = float(comm.rank + 1)


@tf.function
def step() -> list[tf.Tensor]:
    """Average twice, as a loop with two optimizers does."""
    sparse = tf.IndexedSlices(tf.fill([2, 1], own), tf.constant([1, 3]), tf.constant([4, 1]))
    kinds = [tf.constant([own, 2 * own]), tf.constant([own], tf.float64), tf.constant([own], tf.bfloat16), sparse]
    first = mean([*kinds, None])
    assert first[4] is None
    return [*first[:4], *mean([tf.fill([3], own) for _ in range(40)])]


found = step()
told = {
    name: np.asarray(value, "float64").tolist()
    for name, value in zip(("dense", "double", "half", "sparse"), found, strict=False)
}
told |= {"none": None, "dtypes": [value.dtype.name for value in found[:4]]}
told["in order"] = [np.asarray(value).tolist() for value in found[4:]]
print("TOLD " + json.dumps(told))
