"""A training with Keras and Horovod that is to be asked to stop: ``fit`` with a validation, saves in the background.

Started on ranks of MPI as ``_preemption_keras_job.py '{"directory": …}'``; what it is told and shows is that of
:mod:`_preemption_job`.  Each batch ends with Horovod's own collective calls, which ranks wait in, outside of Python.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from typing import Any

import hpcckpt as hc
from hpcckpt.core import failpoints
from tests.campaign._preemption_job import Board, Order, write

N_FEATURES, N_ROWS = 8, 4


def main(order: Order) -> None:
    """Train until the job is asked to stop, or has done N steps as were ordered."""
    hc.preemption.catch_signals()
    board = Board(order.board, int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    board.show(activity="warm-up")
    import horovod.tensorflow.keras as hvd

    hvd.init()
    try:
        train(order, board, hvd)
    except hc.preemption.Preempted as stopped:
        board.show(activity="end")
        write(order.diary, rank=hvd.rank(), stopped=stopped.step, has_lost_worker=False)
        raise


def train(order: Order, board: Board, hvd: Any) -> None:
    """Build the model and fit it."""
    import keras
    import numpy as np
    import tensorflow as tf

    from hpcckpt.horovod import RestoreCallback

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    inputs = keras.layers.Input((N_FEATURES,))
    hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(16, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    w = np.zeros(4096)
    backup = RestoreCallback(
        order.directory,
        every_n_batches=order.save_every,
        save_before_preemption=dict(order.watch),
        max_to_keep=None,
        state={"w": w},
    )
    failpoints.install_hook(_at_phase(order, board))
    data = tf.data.Dataset.from_tensor_slices((tf.ones((N_ROWS, N_FEATURES)), tf.ones((N_ROWS, 1))))
    model.fit(
        data.repeat().batch(N_ROWS),
        validation_data=data.repeat(order.n_validation).batch(N_ROWS),
        steps_per_epoch=order.validate_every,
        epochs=100_000,
        verbose=0,
        callbacks=[_showing(order, board, backup, w), backup],
    )
    assert order.n_steps, "nobody asked this job to stop"


def _at_phase(order: Order, board: Board) -> Any:
    def reached(phase: str, rank: int) -> None:
        del rank
        if phase == "2-write" and order.drain_s:
            board.show(is_draining=True)
            time.sleep(order.drain_s)
        elif phase == "2-synced":
            board.show(is_draining=False)

    return reached


def _showing(order: Order, board: Board, backup: Any, w: Any) -> Any:
    import keras

    class Showing(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """Shows what is done, and takes its time."""

        rng = random.Random(f"{order.seed}/{os.getpid()}")

        def pause(self) -> None:
            """Take as long as a step does."""
            time.sleep(order.step_s * self.rng.uniform(0.2, 1.8))

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Begin a step."""
            board.show(activity="step", step=backup.step + 1)
            self.pause()
            w[:] = backup.step + 1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Stop where it was ordered."""
            if order.n_steps and int(w[0]) >= order.n_steps:
                self.model.stop_training = True

        def on_test_begin(self, logs: Any = None) -> None:
            """Begin a validation, which each rank has for itself."""
            board.show(activity="validation")

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Take time."""
            self.pause()

    return Showing()


if __name__ == "__main__":
    faulthandler.register(signal.SIGQUIT)
    main(Order(**json.loads(sys.argv[1])))
