"""Three ranks, of which two train one model and the third another: by process sets, or in a communicator of two.

Or ranks that resume one model, and the last of them cannot read its part of the program's state.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
from mpi4py import MPI

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.horovod import RestoreCallback, communicator
from tests.support.horovod_jobs import failure, tell, weights
from tests.support.keras.models import KillAt, Killed

PLACE, HOW = Path(sys.argv[1]), sys.argv[2]
WORLD = MPI.COMM_WORLD


def train(epochs: int, process_set: Any, callback: Any) -> Any:
    """Train a model that each rank begins with other weights."""
    keras.utils.set_random_seed(WORLD.rank)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), process_set=process_set), "mse")
    x = np.random.default_rng(WORLD.rank).normal(size=(8, 3)).astype("float32")
    model.fit(x, x.sum(axis=1), 2, epochs, shuffle=False, verbose=0, callbacks=[callback])
    return model


def twice(directory: Path, process_set: Any) -> dict[str, Any]:
    """Train two epochs straight; then one, and the other after a restart."""
    straight = train(2, process_set, RestoreCallback(directory / "a", "epoch", process_set=process_set, verbose=0))
    options = {"process_set": process_set, "verbose": 0, "scratch": PLACE / "scratch"}
    train(1, process_set, RestoreCallback(directory / "b", "epoch", **options))
    shutil.rmtree(tiers.scratch_directory(directory / "b", PLACE / "scratch"), ignore_errors=True)
    callback = RestoreCallback(directory / "b", process_set=process_set, verbose=0)
    resumed = train(2, process_set, callback)
    restored = None if callback.restored is None else callback.restored.step
    saved_on = hc.latest_checkpoint(directory / "b")
    assert saved_on is not None
    found = {"straight": weights(straight), "resumed": weights(resumed), "step": saved_on.name}
    return {**found, "restored": restored}


def with_process_sets() -> dict[str, Any]:
    """Train two models, each on the ranks of a process set."""
    sets = [hvd.ProcessSet([1, 2]), hvd.ProcessSet([0])]
    hvd.init(process_sets=sets)
    mine = sets[0] if hvd.rank() else sets[1]
    foreign = failure(lambda: communicator(sets[1] if hvd.rank() else sets[0]))
    unknown = failure(lambda: communicator(hvd.ProcessSet([0, 2])))
    alone = failure(lambda: RestoreCallback(PLACE / "x", root_rank=0 if hvd.rank() else 1, process_set=mine))
    found = twice(PLACE / f"of-{mine.ranks[0]}", mine)
    return {**found, "foreign": foreign, "unknown": unknown, "root": alone}


def with_communicator() -> dict[str, Any]:
    """Train on a communicator of two of the ranks, in reverse order, while the third does something else."""
    colour = 0 if WORLD.rank else 1
    part = WORLD.Split(colour, -WORLD.rank)
    hvd.init(comm=part)
    before = communicator()
    said = {"rank": hvd.rank(), "our rank": before.rank, "our size": before.size}
    before.free()
    found = twice(PLACE / f"of-{colour}", hvd.global_process_set)
    # the program's own messages, Horovod's and ours go over the same MPI and never meet
    total = WORLD.allreduce(WORLD.rank)
    return {**found, **said, "total": total}


class Counter(keras.callbacks.Callback):
    """Counts the epochs that have begun; what it has counted is a part of the program's state."""

    n, is_failing = 0, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.n += 1

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.is_failing and self.n > state["n"]:  # not the restore itself
            raise RuntimeError("no way back")
        self.n = state["n"]


def with_failure() -> dict[str, Any]:
    """Resume within an epoch; the last rank fails where the state is given back after ``on_epoch_begin``."""
    hvd.init()

    def train_on(*more: Any, is_failing: bool = False) -> None:
        counter = Counter()
        counter.is_failing = is_failing
        backup = RestoreCallback(PLACE / "run", state={"counter": counter}, every_n_batches=1, verbose=0)
        callbacks = [counter, backup, *more]
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        x = np.ones((8, 3), "float32")
        try:
            model.fit(x, x[:, 0], 2, 2, shuffle=False, verbose=0, callbacks=callbacks)
        except Killed:
            backup.close()

    train_on(KillAt(2))
    return {"failure": failure(lambda: train_on(is_failing=WORLD.rank == WORLD.size - 1))}


def main() -> None:
    """Run."""
    refused = failure(communicator)
    what = {"sets": with_process_sets, "comm": with_communicator, "failure": with_failure}[HOW]()
    tell(WORLD.rank, {**what, "too early": refused})
    WORLD.Barrier()  # the first process that exits ends Horovod for all
    hvd.shutdown()


main()
