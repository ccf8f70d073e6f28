"""A job with an elastic state of Horovod's that is durable: killed once, and gone on with."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from mpi4py import MPI  # starts MPI; if Horovod does, its shutdown within hvd.elastic.run ends MPI for good

from hpcckpt.horovod import DurableState, check_equal
from tests.support.horovod_jobs import failure, tell, weights

assert MPI.Is_initialized()

PLACE, WHAT = Path(sys.argv[1]), sys.argv[2]
KILLED = int(sys.argv[3]) if len(sys.argv) > 3 else 0
BATCHES = 12


def model() -> Any:
    """Return the model as a program that starts builds it."""
    keras.utils.set_random_seed(20 + hvd.rank())
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return made


def batch(number: int) -> Any:
    """Return this rank's rows of a batch."""
    x = np.random.default_rng((hvd.rank(), number)).normal(size=(2, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


@hvd.elastic.run
def train(state: Any) -> None:
    """Train batch by batch, each committed; a rank of the first job is killed, or an allreduce fails once."""
    state.began.append(state.batch)
    while state.batch < BATCHES:
        if state.batch == KILLED and not state.was_ill and WHAT == "kill":
            state.wait()  # which step is durable is not to depend on the machine
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if state.batch == 5 and WHAT == "ill" and not state.was_ill:
            state.was_ill = True
            state.model.optimizer.learning_rate.assign(7.0)  # neither this nor the next was committed
            state.model.layers[0].kernel.assign(tf.ones((3, 1)))
            raise HorovodInternalError("made up")
        state.model.train_on_batch(*batch(state.batch))
        state.batch += 1
        if state.batch == 4:
            state.model.optimizer.learning_rate.assign(0.01)
        state.commit()


def main() -> None:
    """Run."""
    hvd.init()
    inner = hvd_keras.elastic.KerasState(model(), batch=0, notes={"a": 1})
    inner.began, inner.was_ill = [], False
    with DurableState(inner, PLACE / "run", every_n_commits=3, max_to_keep=None, verbose=int(WHAT == "loud")) as state:
        train(state)
        restored = None if state.restored is None else state.restored.step
        rate = round(float(inner.model.optimizer.learning_rate), 6)
        equal = failure(lambda: check_equal({"model": inner.model}))
        said = {"weights": weights(inner.model), "rate": rate, "began": inner.began, "equal": equal}
        said |= {"restored": restored, "batch": state.batch, "commits": state.commits, "notes": state.notes}
    steps = sorted(path.name for path in (PLACE / "run").glob("step-*"))
    told = {**said, "steps": steps, "variables": variables()}
    tell(hvd.rank(), {**told, "bare steps": sorted(path.name for path in (PLACE / "bare").glob("step-*"))})


def variables() -> list[float]:
    """Keep bare variables by the other state of Horovod's, over scratch."""
    options = {"step": "n", "verbose": 0, "scratch": PLACE / "scratch", "scratch_bandwidth": 1e9}
    one = tf.Variable([1.0 + hvd.rank()])
    with DurableState(hvd.elastic.TensorFlowState([one], n=0), PLACE / "bare", 1, **options) as state:
        state.sync()
        state.n += 5
        one.assign_add([5.0])
        state.commit()
        state.n += 1
        one.assign([0.0])
        state.restore()
        return [float(one[0]), float(state.n)]


main()
