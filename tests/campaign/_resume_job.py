"""The trainings that the campaign ``resume`` kills: each from an order in JSON, one process per rank.

    python _resume_job.py ORDER

All have what makes an exact resume hard: dropout, BatchNorm, shuffled data, a schedule of the learning rate,
ReduceLROnPlateau, EarlyStopping.  Each rank counts its batches on the board, for the campaign to kill it at some
moment of some batch, and in the end writes what it ended with to ``rank-N.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
EPOCHS, BATCHES, SIZE = 8, 10, 8
PAUSE_S = 0.004
"""Between batches: these are so small that a kill would hardly ever come within a given one."""
_SLOT = struct.Struct("<qq")


@dataclass(frozen=True)
class Order:
    """What to train.

    Attributes
    ----------
    kind : str
        ``keras``: Keras, one rank; ``horovod``: Keras and Horovod; ``mpi4py``: Keras, gradients averaged by mpi4py;
        ``torch``: PyTorch, one rank.
    place : str
        Directory of this job: the run directory in it, what ranks tell, and the board.
    every : int
        How many batches there are between saves; 0 saves nothing.
    data : str
        ``pipeline`` or ``arrays``.
    """

    kind: str
    place: str
    every: int = 0
    data: str = "pipeline"

    def to_json(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))


# -- what the campaign sees ----------------------------------------------------------------------


def read_board(place: Path, rank: int) -> tuple[int, int]:
    """Return the process of a rank, and how many batches it has trained in this run; zeros before it begins."""
    try:
        raw = (place / f"board-{rank}").read_bytes()
    except FileNotFoundError:
        return 0, 0
    found: tuple[int, int] = _SLOT.unpack(raw) if len(raw) == _SLOT.size else (0, 0)
    return found


class Board:
    """Where this rank counts its batches."""

    def __init__(self, place: str, rank: int) -> None:
        self._fd = os.open(f"{place}/board-{rank}", os.O_RDWR | os.O_CREAT, 0o666)
        self._count = -1
        self.count()

    def count(self) -> None:
        """Count one more."""
        self._count += 1
        os.pwrite(self._fd, _SLOT.pack(os.getpid(), self._count), 0)
        time.sleep(PAUSE_S)


def tell(order: Order, rank: int, tensors: Iterable[tuple[str, Any]], **more: Any) -> None:
    """Write what this rank ended with: a digest of each tensor, and of all."""
    digests = {name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() for name, value in tensors}
    total = hashlib.sha256("".join(f"{name}{digests[name]}" for name in sorted(digests)).encode()).hexdigest()
    path = Path(order.place, f"rank-{rank}.json")
    path.write_text(json.dumps({"sha256": total, "tensors": digests, **more}), encoding="utf-8")


def rows(rank: int, size: int, count: int = BATCHES * SIZE) -> tuple[Any, Any]:
    """Return this rank's rows of what there is to learn."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count * size, 6)).astype("float32")
    y = (np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * rng.normal(size=(count * size, 1))).astype("float32")
    return x[rank::size], y[rank::size]


# -- Keras ---------------------------------------------------------------------------------------


def train_keras(order: Order) -> None:
    """Train with ``fit``; on more ranks than one with Horovod, or with mpi4py."""
    import keras
    import tensorflow as tf

    from hpcckpt.keras.callbacks.reproducibility import enable_exact_resume

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    enable_exact_resume(seed=5)
    team = {"keras": Alone, "horovod": Horovod, "mpi4py": Mpi4py}[order.kind]()
    keras.utils.set_random_seed(5 + team.rank)  # other weights and other dropout on each rank
    tf.random.set_global_generator(tf.random.Generator.from_seed(5 + team.rank))
    model = keras.Sequential([
        keras.layers.Input((6,)), keras.layers.Dense(24, activation="relu"), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3), keras.layers.Dense(12, activation="relu"), keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile(team.optimizer(keras.optimizers.Adam), "mse", **team.compiling)
    team.begin(model)
    backup = team.backup(order)
    keras_callbacks = [
        *team.averaging(),
        _counting(order, team.rank),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.98),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.02, cooldown=1),
        keras.callbacks.EarlyStopping("val_loss", patience=4, min_delta=0.02, restore_best_weights=True),
    ]
    x, y = rows(team.rank, team.size)
    fed: dict[str, Any] = {"x": x, "y": y, "batch_size": SIZE}
    if order.data == "pipeline":
        fed = {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(SIZE).prefetch(2)}
    history = model.fit(
        **fed, epochs=EPOCHS, validation_data=rows(team.rank, team.size, 24), verbose=0,
        callbacks=[*keras_callbacks, *backup],
    )  # fmt: skip
    tell(order, team.rank, _keras_tensors(model), **_of_fit(backup), losses=_losses(history))


def _keras_tensors(model: Any) -> list[tuple[str, Any]]:
    from hpcckpt.state.tree import flatten

    return [(name, leaf.read()) for name, leaf in flatten({"model": model}).tensors.items()]


def _losses(history: Any) -> dict[str, list[float]]:
    found = history.history
    return {str(epoch): [float(found[k][i]) for k in ("loss", "val_loss")] for i, epoch in enumerate(history.epoch)}


def _of_fit(backup: list[Any]) -> dict[str, Any]:
    if not backup:
        return {}
    restored = backup[0].restored
    found = {"level": backup[0].level, "reasons": list(backup[0].reasons)}
    return {**found, "from": None if restored is None else restored.step}


def _counting(order: Order, rank: int) -> Any:
    import keras

    from hpcckpt.keras import stateless

    @stateless
    class Counting(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """Counts batches on the board."""

        def __init__(self) -> None:
            super().__init__()
            self.board = Board(order.place, rank)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Count."""
            self.board.count()

    return Counting()


class Alone:
    """One rank."""

    rank, size = 0, 1
    compiling: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def optimizer(self, cls: Any) -> Any:
        """Return the optimizer."""
        return cls(0.02)

    def begin(self, model: Any) -> None:
        """Begin the same on all ranks."""

    def averaging(self) -> list[Any]:
        """Return callbacks that average metrics."""
        return []

    def backup(self, order: Order) -> list[Any]:
        """Return the callback that saves and restores."""
        from hpcckpt.keras import BackupAndRestore

        if not order.every:
            return []
        options: dict[str, Any] = {"every_n_batches": order.every, "delete_checkpoint": False, "batch_norm": "per-rank"}
        return [BackupAndRestore(f"{order.place}/run", False, **options)]


class Horovod(Alone):
    """Ranks of Horovod."""

    def __init__(self) -> None:
        import horovod.tensorflow.keras as hvd

        hvd.init()
        self.hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def optimizer(self, cls: Any) -> Any:
        """Return the optimizer."""
        return self.hvd.DistributedOptimizer(cls(0.02))

    def averaging(self) -> list[Any]:
        """Return Horovod's own."""
        return [self.hvd.callbacks.MetricAverageCallback()]

    def backup(self, order: Order) -> list[Any]:
        """Return our callback for Horovod; it broadcasts the first weights too."""
        from hpcckpt.horovod import RestoreCallback

        options: dict[str, Any] = {"every_n_batches": order.every} if order.every else {}
        return [RestoreCallback(f"{order.place}/run", batch_norm="per-rank", **options)]


class Mpi4py(Alone):
    """Ranks of mpi4py, which averages gradients."""

    compiling = {"jit_compile": False}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size

    def optimizer(self, cls: Any) -> Any:
        """Return an optimizer that averages gradients over ranks."""
        mean = self.mean

        class Averaging(cls):  # type: ignore[misc]
            """Averages gradients first."""

            def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
                """Average and apply."""
                pairs = list(grads_and_vars)
                grads = mean([grad for grad, _ in pairs])
                return super().apply_gradients(zip(grads, [v for _, v in pairs], strict=True), *args, **kwargs)

        return Averaging(0.02)

    def mean(self, grads: list[Any]) -> list[Any]:
        """Return gradients averaged over all ranks, in one message."""
        import tensorflow as tf

        from hpcckpt.keras import stateless

        flat = tf.concat([tf.reshape(grad, [-1]) for grad in grads], 0)
        total = tf.numpy_function(stateless(lambda own: self.average(own)), [flat], tf.float32)
        total.set_shape(flat.shape)
        parts = tf.split(total, [grad.shape.num_elements() for grad in grads])
        return [tf.reshape(part, grad.shape) for part, grad in zip(parts, grads, strict=True)]

    def average(self, own: Any) -> Any:
        """Return the mean over ranks."""
        total = np.empty_like(own)
        self.comm.Allreduce(own, total)
        return total / own.dtype.type(self.size)

    def begin(self, model: Any) -> None:
        """Begin with rank 0's weights."""
        model.set_weights(self.comm.bcast(model.get_weights()))

    def averaging(self) -> list[Any]:
        """Return a callback that averages metrics before the others see them."""
        import keras

        from hpcckpt.keras import stateless

        average = self.average

        @stateless
        class Averaging(keras.callbacks.Callback):  # type: ignore[misc]
            """Averages the metrics of an epoch."""

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                """Average."""
                for name in sorted(logs):
                    logs[name] = float(average(np.array([logs[name]], "float64"))[0])

        return [Averaging()]


# -- PyTorch -------------------------------------------------------------------------------------


class TorchTraining:
    """A training with a loop of one's own: all that it needs to go on is in `parts` and `at`."""

    def __init__(self, order: Order) -> None:
        import torch

        import hpcckpt as hc

        torch.set_num_threads(1)
        torch.manual_seed(5)
        torch.use_deterministic_algorithms(True)
        self.torch, self.hc, self.order = torch, hc, order
        nn = torch.nn
        self.model = nn.Sequential(
            nn.Linear(6, 24), nn.ReLU(), nn.BatchNorm1d(24), nn.Dropout(0.3), nn.Linear(24, 1)
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.02)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 20, 0.9)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer, patience=1, threshold=0.02, cooldown=1
        )
        self.x, self.y = map(torch.from_numpy, rows(0, 1))
        self.test = [torch.from_numpy(each) for each in rows(0, 1, 24)]
        self.shuffled = torch.zeros(len(self.x), dtype=torch.int64)
        self.at: dict[str, Any] = {"epoch": 0, "batch": 0, "best": 1e9, "wait": 0, "losses": {}}
        self.board, self.began = Board(order.place, 0), None
        self.ckpt = hc.Checkpointer(f"{order.place}/run", on_newer="aside") if order.every else None

    @property
    def parts(self) -> dict[str, Any]:
        """What is saved and restored."""
        schedules = [self.schedule, self.plateau]
        own = {"rng": self.hc.torch.rng_state(), "shuffled": self.shuffled}
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": schedules, **own}

    def run(self) -> None:
        """Restore, if there is something; train to the end; tell."""
        if self.ckpt is not None:
            found = self.hc.torch.restore(self.ckpt, must_exist=False, **self.parts)
            self.at, self.began = (self.at, None) if found is None else (dict(found.objects), found.step)
        while self.at["epoch"] < EPOCHS and self.at["wait"] < 4:
            self.epoch()
        if self.ckpt is not None:
            self.ckpt.close()
        tensors = [*self.model.state_dict().items(), *_of_optimizer(self.optimizer)]
        arrays = [(name, each.numpy()) for name, each in tensors]
        tell(self.order, 0, arrays, level="exact", losses=self.at["losses"], **{"from": self.began})

    def epoch(self) -> None:
        """Train what is left of an epoch, and validate."""
        if self.at["batch"] == 0:
            self.shuffled.copy_(self.torch.randperm(len(self.x)))
        while self.at["batch"] < BATCHES:
            self.batch(self.shuffled[self.at["batch"] * SIZE :][:SIZE])
            self.at["batch"] += 1
            self.board.count()
            if self.at["batch"] < BATCHES:
                self.save(self.at["epoch"] * BATCHES + self.at["batch"])
        self.validate()
        self.at |= {"epoch": self.at["epoch"] + 1, "batch": 0}
        self.save(self.at["epoch"] * BATCHES)

    def batch(self, chosen: Any) -> None:
        """Train a batch."""
        self.optimizer.zero_grad()
        self.torch.nn.functional.mse_loss(self.model.train()(self.x[chosen]), self.y[chosen]).backward()
        self.optimizer.step()
        self.schedule.step()

    def validate(self) -> None:
        """Lower the learning rate, or stop, where it gets no better."""
        with self.torch.no_grad():
            loss = float(self.torch.nn.functional.mse_loss(self.model.eval()(self.test[0]), self.test[1]))
        self.plateau.step(loss)
        wait = 0 if loss < self.at["best"] - 0.02 else self.at["wait"] + 1
        losses = {**self.at["losses"], str(self.at["epoch"]): [loss]}
        self.at |= {"best": min(loss, self.at["best"]), "wait": wait, "losses": losses}

    def save(self, step: int) -> None:
        """Save if it is time."""
        if self.ckpt is not None and step % self.order.every == 0:
            self.hc.torch.save(self.ckpt, step, **self.parts, **self.at)


def _of_optimizer(optimizer: Any) -> list[tuple[str, Any]]:
    import torch

    state = optimizer.state_dict()
    found = [(f"{n}/{k}", v) for n, slots in state["state"].items() for k, v in slots.items()]
    return [*found, ("lr", torch.tensor(state["param_groups"][0]["lr"], dtype=torch.float64))]


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    asked = Order(**json.loads(sys.argv[1]))
    if asked.kind == "torch":
        TorchTraining(asked).run()
    else:
        train_keras(asked)
