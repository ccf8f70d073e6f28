"""The same training three times: straight, resumed as Horovod's documentation says, and resumed with our callback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import numpy as np

from hpcckpt.horovod import RestoreCallback, broadcast_state, check_equal, load_model
from tests.support.horovod_jobs import failure, tell, weights

PLACE = Path(sys.argv[1])
BEFORE, AFTER = 4, 4


def fresh(rate: float = 0.1) -> Any:
    """Return the model as a program that starts builds it: its weights are different on each rank."""
    keras.utils.set_random_seed(10 + hvd.rank())
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "mse")
    return model


def rows() -> Any:
    """Return this rank's data."""
    x = np.random.default_rng(hvd.rank()).normal(size=(BEFORE, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def train(model: Any, epochs: int, *callbacks: Any, first: int = 0) -> Any:
    """Train, an epoch being four batches."""
    x, y = rows()
    model.fit(x, y, 1, epochs, shuffle=False, verbose=0, callbacks=list(callbacks), initial_epoch=first)
    return model


class FirstStep(keras.callbacks.Callback):
    """Notes the loss of the first batch: before it all ranks should be equal."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Record whether ranks are equal before the first step, and with which learning rate."""
        if not hasattr(self, "equal"):
            self.equal = failure(lambda: check_equal({"model": self.model}))
            self.rate = round(float(self.model.optimizer.learning_rate), 6)


def saved() -> Any:
    """Train the first half, and save it: by Keras for Horovod's recipe, and by us."""
    model = fresh()
    broadcast_state({"model": model})
    model.optimizer.learning_rate.assign(0.01)  # as ReduceLROnPlateau would have
    train(model, 1, RestoreCallback(PLACE / "run", "epoch", verbose=0))
    if hvd.rank() == 0:
        model.save_weights(str(PLACE / "weights.h5"))
        state = [np.asarray(each) for each in model.optimizer.variables()]
        np.savez(PLACE / "optimizer.npz", *state)
    return model


def theirs() -> dict[str, Any]:
    """Resume as Horovod documents it: load on rank 0, and broadcast."""
    model, first = fresh(), FirstStep()
    if hvd.rank() == 0:
        model.load_weights(str(PLACE / "weights.h5"))
        model.optimizer.build(model.trainable_variables)
        stored = np.load(PLACE / "optimizer.npz")
        for variable, name in zip(model.optimizer.variables(), stored.files, strict=True):
            variable.assign(stored[name])
        model.optimizer.learning_rate.assign(0.01)
    train(model, 2, hvd.callbacks.BroadcastGlobalVariablesCallback(0), first, first=1)
    return told(model, first)


def ours() -> dict[str, Any]:
    """Resume with our callback."""
    model, first = fresh(), FirstStep()
    train(model, 2, RestoreCallback(PLACE / "run", verbose=0), first)
    return told(model, first)


def loaded() -> dict[str, Any]:
    """Resume with a model that is made from the first half's last checkpoint, and nothing else."""
    model, first = load_model(PLACE / "run", 4, compression=hvd.Compression.none), FirstStep()
    wraps = type(model.optimizer).__module__
    return {**told(train(model, 2, first, first=1), first), "wrapped by": wraps}


def extra() -> float:
    """Begin without a checkpoint; return what this rank then has of its own array in ``state=``."""
    own = np.array([hvd.rank() + 1.0])
    train(fresh(), 1, RestoreCallback(PLACE / "extra", state={"extra": own}, verbose=0))
    return float(own[0])


def legacy() -> dict[str, Any]:
    """Save a model with a legacy optimizer of Keras 2.15 that Horovod wraps, and load it."""
    model = fresh()
    legacy_sgd = keras.optimizers.legacy.SGD(0.1, momentum=0.9, decay=0.5)
    model.compile(hvd.DistributedOptimizer(legacy_sgd), "mse")
    train(model, 1, RestoreCallback(PLACE / "legacy", "epoch", verbose=0))
    found = load_model(PLACE / "legacy")
    kind = type(found.optimizer).__mro__[1]
    return {"is equal": weights(found) == weights(model), "class": f"{kind.__module__}.{kind.__name__}"}


def told(model: Any, first: FirstStep) -> dict[str, Any]:
    """Return the report of a run."""
    rate = round(float(model.optimizer.learning_rate), 6)
    differs = failure(lambda: check_equal({"model": model}))
    return {"weights": weights(model), "rate": rate, "first": first.equal, "first_rate": first.rate, "end": differs}


def main() -> None:
    """Run."""
    hvd.init()
    train(model := saved(), 2, first=1)
    straight = {"weights": weights(model), "end": failure(lambda: check_equal({"model": model}))}
    what = {"straight": straight, "theirs": theirs(), "ours": ours(), "loaded": loaded()}
    what |= {"extra": extra(), "legacy": legacy()}
    model = fresh()
    progress = {"epoch": 10 + hvd.rank(), "best": None if hvd.rank() == 0 else [0.5, "b"]}
    broadcast_state({"model": model, "progress": progress}, root_rank=1)
    what["broadcast"] = {"weights": weights(model), "progress": progress}
    names = {"model": model, "progress": {f"epoch of {hvd.rank()}": 1}}
    what["broken names"] = failure(lambda: broadcast_state(names))
    if hvd.rank() == 1:
        model.layers[1].bias.assign([3.0])
    what["broken"] = failure(lambda: check_equal({"model": model}))
    tell(hvd.rank(), what)


main()
