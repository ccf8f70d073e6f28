"""Horovod broadcasts variables that are held, in place and not: started by test_holding.py under mpirun."""

from __future__ import annotations

import json

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from hpcckpt.state.tf_hold import copied, hold


def broadcast(*, in_place: bool, is_sparse: bool) -> dict[str, object]:
    """Hold, let the last rank's values be broadcast, and say what became of what was held."""
    label = f"{'in_place' if in_place else 'plain'}_{'sparse' if is_sparse else 'dense'}"
    rank = hvd.rank()
    variables = [
        tf.Variable(np.full((1000, 3), 100 * rank + number, np.float32), name=f"{label}{number}") for number in range(4)
    ]
    if is_sparse:  # from here on reads are copies, and updates in place
        for variable in variables:
            variable.scatter_update(tf.IndexedSlices(variable.read_value()[:1], [0]))
    held = hold(variables)
    was_copied, before = copied(variables, held), [array.tobytes() for array in held]
    hvd.broadcast_variables(variables, hvd.size() - 1, inplace=in_place)
    return {
        "rank": rank,
        "in_place": in_place,
        "is_sparse": is_sparse,
        "copied": was_copied,
        "untouched": [array.tobytes() for array in held] == before,
        "values": [float(variable[999, 2]) for variable in variables],
    }


def main() -> None:
    """Run."""
    hvd.init()
    for in_place in (False, True):
        for is_sparse in (False, True):
            for said in MPI.COMM_WORLD.gather(broadcast(in_place=in_place, is_sparse=is_sparse)) or []:
                print("broadcast", json.dumps(said), flush=True)
    hvd.shutdown()


main()
