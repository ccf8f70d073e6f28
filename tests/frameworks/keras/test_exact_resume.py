"""Killed within an epoch, a run of ``fit`` goes on as if it had never been killed: the same weights, to the bit."""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.keras import BackupAndRestore, stateless
from hpcckpt.keras.callbacks.training_state import Training
from hpcckpt.keras.data.iterator_state import NO_STATE
from tests.support.keras.models import IS_KERAS_3, KillAt, Killed, assert_equal, rows, values

layers = keras.layers
STEPS = 10
EPOCHS = 4


class Draws(keras.callbacks.Callback):
    """Draws from the streams that programs share, at each batch, and writes down what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[int, ...]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        eager = int(tf.random.uniform((), maxval=1 << 20, dtype=tf.int32))
        stream = int(tf.random.get_global_generator().uniform((), maxval=1 << 20, dtype=tf.int32))
        numpys = int(np.random.randint(1 << 20))  # noqa: NPY002 - the stream that old programs share
        self.drawn.append((random.getrandbits(20), numpys, eager, stream))


@pytest.fixture(autouse=True)
def _saveable_streams() -> Iterator[None]:
    """Have Keras 2.15 draw from generators, as `enable_exact_resume` does; it cannot be taken back itself."""
    switches: Any = getattr(keras.backend, "experimental", None)
    if switches is not None:
        switches.enable_tf_random_generator()
    yield
    if switches is not None:
        switches.disable_tf_random_generator()
    tf.random.set_global_generator(tf.random.Generator.from_non_deterministic_state())


def start() -> Any:
    """Return the model as a new process would build it."""
    keras.utils.set_random_seed(7)
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    model = keras.Sequential([
        layers.Input((4,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5),
        layers.Dense(1),
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def backup(directory: Path, **options: Any) -> BackupAndRestore:
    return BackupAndRestore(directory, **{"delete_checkpoint": False, "verbose": 0, "every_n_batches": 3, **options})


def changing_callbacks(place: Path) -> list[Any]:
    """Return callbacks that change training, and whose state decides how."""
    place.mkdir(exist_ok=True)
    return [
        keras.callbacks.LearningRateScheduler(lambda _, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0, cooldown=1),
        keras.callbacks.EarlyStopping("loss", patience=3, min_delta=10.0, restore_best_weights=True),
        keras.callbacks.CSVLogger(str(place / "log.csv")),
    ]


Data = Callable[[], dict[str, Any]]


def arrays() -> dict[str, Any]:
    x, y = rows()
    return {"x": x, "y": y, "batch_size": 5}


def pipeline() -> dict[str, Any]:
    return {"x": tf.data.Dataset.from_tensor_slices(rows()).shuffle(20).batch(5).prefetch(2)}


def pipeline_shuffled_twice() -> dict[str, Any]:
    return {"x": tf.data.Dataset.from_tensor_slices(rows()).shuffle(20).batch(5).shuffle(3)}


def pipeline_repeated_within_epochs() -> dict[str, Any]:
    return {"x": tf.data.Dataset.from_tensor_slices(rows()).shuffle(20).repeat(2).batch(10).prefetch(2)}


def endless_pipeline() -> dict[str, Any]:
    return {
        "x": tf.data.Dataset.from_tensor_slices(rows()).shuffle(20).repeat().batch(5),
        "steps_per_epoch": np.int64(STEPS),
    }


def python_pipeline() -> dict[str, Any]:
    x, y = rows()
    signature = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: iter(zip(x, y, strict=True)), output_signature=signature)
    return {"x": data.shuffle(20).batch(5).apply(tf.data.experimental.assert_cardinality(STEPS))}


def generator() -> dict[str, Any]:
    def batches() -> Iterator[Any]:
        x, y = rows()
        order = np.random.default_rng(3)
        while True:
            chosen = order.permutation(len(x))[:5]
            yield x[chosen], y[chosen]

    return {"x": batches(), "steps_per_epoch": STEPS}


class Sequence(keras.utils.Sequence if not IS_KERAS_3 else keras.utils.PyDataset):  # type: ignore[misc]
    """Batches by number, in an order that each epoch's end changes."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> Any:
        chosen = np.random.default_rng((self.epoch, number)).permutation(50)[:5]
        return tuple(array[chosen] for array in rows())

    def on_epoch_end(self) -> None:
        self.epoch += 1


def sequence() -> dict[str, Any]:
    return {"x": Sequence(), "shuffle": False}


def shuffled_sequence() -> dict[str, Any]:
    return {"x": Sequence(), "shuffle": True}


def shuffled_sequence_with_workers() -> dict[str, Any]:
    made = Sequence()
    if IS_KERAS_3:  # those of Keras 2.15 draw the order of an epoch at a time that varies
        made.workers = 2
    return {"x": made, "shuffle": True}


METHODS = {
    arrays: "replayed", pipeline: "saved", endless_pipeline: "saved",
    python_pipeline: "skipped", generator: "skipped", sequence: "skipped",
    shuffled_sequence: "skipped", shuffled_sequence_with_workers: "skipped",
}  # fmt: skip


def train(place: Path, data: Data, *more: Any, others: Any = (), **options: Any) -> tuple[Any, Any]:
    """Train as a new process would; return the model and what is known of its last run."""
    model, callback = start(), backup(place / "run", **options)
    with warnings.catch_warnings():  # Keras 3 on data whose length it does not know
        warnings.simplefilter("ignore")
        try:
            fed = data()
            model.fit(**fed, epochs=EPOCHS, verbose=0, callbacks=[*more, callback, *others])
        except Killed:
            callback.close()
    return model, callback


@functools.cache
def straight(data: Data) -> tuple[dict[str, Any], BackupAndRestore]:
    """Return what a run without interruption ends with, and its callback."""
    with tempfile.TemporaryDirectory() as place:
        model, callback = train(Path(place), data, every_n_batches=None)
    return values(model), callback


def resumed_at(callback: BackupAndRestore) -> tuple[int, int]:
    """Return at which epoch and batch a run began."""
    assert callback.restored is not None
    return callback.restored.objects["epoch"], callback.restored.objects["batch"]


@pytest.mark.parametrize("data", METHODS, ids=lambda data: data.__name__)
def test_whatever_the_data_is_a_run_that_is_killed_twice_ends_as_if_never_killed(data: Data, tmp_path: Path) -> None:
    train(tmp_path, data, KillAt(17))
    _, second = train(tmp_path, data, KillAt(19))
    model, third = train(tmp_path, data)
    expected, callback = straight(data)
    assert callback._backup.fit.data_source.method == METHODS[data]
    assert (resumed_at(second), resumed_at(third)) == ((1, 5), (3, 3))
    assert_equal(values(model), expected)


def test_an_order_that_a_step_does_not_have_is_noted_again(tmp_path: Path, monkeypatch: Any) -> None:
    """Steps of older versions do not have it, nor is it used on another number of ranks."""
    train(tmp_path / "a", shuffled_sequence, KillAt(14))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(Training, "order", NO_STATE)
        expected, _ = train(tmp_path / "a", shuffled_sequence)
        train(tmp_path / "b", shuffled_sequence, KillAt(5))

    def reseeded() -> dict[str, Any]:  # with the same seed the same order would be drawn
        random.seed(99)
        return shuffled_sequence()

    model, last = train(tmp_path / "b", reseeded)
    assert resumed_at(last) == (1, 5)
    assert_equal(values(model), values(expected))


@pytest.mark.parametrize(
    ("data", "epoch"),
    [(pipeline, 0), (pipeline, 1), (pipeline_shuffled_twice, 1), (pipeline_repeated_within_epochs, 0)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_later_epochs_keep_their_order_where_all_data_had_been_read_ahead(
    data: Data, epoch: int, tmp_path: Path
) -> None:
    last = epoch * STEPS + STEPS - 1
    train(tmp_path, data, KillAt(last + 1), every_n_batches=last)
    model, callback = train(tmp_path, data)
    assert resumed_at(callback) == (epoch, STEPS - 1)
    assert_equal(values(model), straight(data)[0])


BETWEEN = [
    pipeline,
    pipeline_shuffled_twice,
    pipeline_repeated_within_epochs,
    generator,
    sequence,
    shuffled_sequence_with_workers,
]


@pytest.mark.parametrize("data", BETWEEN, ids=lambda data: data.__name__)
def test_the_order_of_the_next_epoch_is_the_same_for_a_run_killed_between_epochs(data: Data, tmp_path: Path) -> None:
    train(tmp_path, data, KillAt(25), every_n_batches=None)
    model, callback = train(tmp_path, data, every_n_batches=None)
    assert resumed_at(callback) == (2, 0)
    assert_equal(values(model), straight(data)[0])


class Remembers(keras.callbacks.Callback):
    """A callback of the user's: what it has seen decides what it does, and it says how to save that."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        self.sums = np.zeros(2)

    def on_train_begin(self, logs: Any = None) -> None:
        self.seen, self.sums = [], np.zeros(2)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(logs["loss"]))
        self.sums += len(self.seen)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "inner": {"sums": self.sums}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.sums = list(state["seen"]), state["inner"]["sums"]


def train_with_callbacks(place: Path, *kill: Any, is_first: bool) -> dict[str, Any]:
    """Train with callbacks that change training; return all that is to be equal."""
    draws, remembers = Draws(), Remembers()
    others = [draws, remembers, *changing_callbacks(place)]
    before, after = ((), others) if is_first else (others, ())
    model, callback = train(place, pipeline, *before, *kill, others=after, iterator="exact")
    early: Any = others[-2]
    others[-1].csv_file.close()
    return {
        "weights": values(model),
        "logs": model.history.history,
        "drawn": draws.drawn,
        "seen": remembers.seen,
        "sums": remembers.sums.tolist(),
        "csv": (place / "log.csv").read_bytes(),
        "epochs": model.history.epoch,
        "early": (early.wait, float(early.best), early.best_epoch, early.stopped_epoch),
        "step": callback.step,
    }


@stateless
class AtEpochBegin(keras.callbacks.Callback):
    """Changes something at the start of each epoch."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.change(self.model)


class Schedule:
    """A part of the user's state with a ``state_dict``."""

    def __init__(self) -> None:
        self.rounds = np.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]

    def step(self) -> None:
        self.rounds += 1


def shrink(model: Any, _more: dict[str, Any]) -> None:
    kernel = model.layers[0].kernel
    kernel.assign(kernel * 0.5)


def lower_a_rate(model: Any, _more: dict[str, Any]) -> None:
    model.helper.learning_rate.assign(model.helper.learning_rate * 0.5)


CHANGES: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "a weight": shrink,
    "the rate of an optimizer in an attribute": lower_a_rate,
    "a variable": lambda _, more: more["variable"].assign_add(1.0),
    "an array": lambda _, more: more["array"].__iadd__(1),
    "a key of a dict": lambda _, more: more["log"].update({f"epoch {len(more['log'])}": 1.0}),
    "the order of a list": lambda _, more: more["variables"].append(more["variables"].pop(0)),
    "a variable of a dict": lambda _, more: more["named"].update(v=tf.Variable(more["named"]["v"] + 1.0)),
    "an item of a list": lambda _, more: more["list"].append(1.0),
    "a number": lambda _, more: more["dict"].update(count=more["dict"]["count"] + 1),
    "a number that is a part of its own": lambda _, more: more.update(number=more["number"] + np.float32(1)),
    "an object": lambda _, more: more["schedule"].step(),
}


def changed_at_the_start_of_epochs(place: Path, change: Callable[[Any, dict[str, Any]], Any], *kill: Any) -> Any:
    model, schedule = start(), Schedule()
    model.helper = keras.optimizers.SGD(1.0)
    model.helper.build(model.trainable_variables)
    more = {
        "variable": tf.Variable(0.0),
        "array": np.zeros(2),
        "dict": {"count": 0},
        "log": {},
        "list": [],
        "number": np.float32(0),
    }
    more["schedule"] = schedule
    more["variables"], more["named"] = [tf.Variable(float(n)) for n in range(3)], {"v": tf.Variable(0.0)}
    callback = backup(place, state=more)
    changing = AtEpochBegin(lambda model: change(model, more))
    try:
        model.fit(**arrays(), epochs=3, verbose=0, callbacks=[*kill, callback, changing])
    except Killed:
        callback.close()
        return None
    own = {"variable": more["variable"].numpy(), "array": more["array"], "rounds": schedule.rounds}
    own["variables"] = np.array([*more["variables"], more["named"]["v"]])
    counts = [more["dict"]["count"], len(more["list"]), len(more["log"]), int(more["number"])]
    return values(model) | own | {"counts": np.array(counts)}


@pytest.mark.parametrize("what", CHANGES)
def test_what_callbacks_change_at_the_start_of_an_epoch_is_changed_once(what: str, tmp_path: Path) -> None:
    expected = changed_at_the_start_of_epochs(tmp_path / "straight", CHANGES[what])
    changed_at_the_start_of_epochs(tmp_path / "run", CHANGES[what], KillAt(17))
    assert_equal(changed_at_the_start_of_epochs(tmp_path / "run", CHANGES[what]), expected)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_metrics_of_an_epoch_count_all_of_its_batches_or_it_is_told(eager: bool, tmp_path: Path, capfd: Any) -> None:
    def history(place: Path, *kill: Any) -> Any:
        model, callback = start(), backup(place, verbose=1)
        model.compile("sgd", "mse", metrics=["mae"], run_eagerly=eager)
        try:
            return model.fit(**arrays(), verbose=0, callbacks=[*kill, callback]).history
        except Killed:
            return callback.close()

    history(tmp_path / "run", KillAt(7))
    is_whole = history(tmp_path / "run") == history(tmp_path / "straight")
    told = "start from zero: Keras makes them with the first batch only (run_eagerly)" in capfd.readouterr().err
    assert is_whole != told
    assert is_whole or eager


@pytest.mark.parametrize("is_first", [True, False], ids=["first in the list", "last in the list"])
def test_callbacks_metrics_and_random_streams_go_on_too(is_first: bool, tmp_path: Path) -> None:
    expected = train_with_callbacks(tmp_path / "straight", is_first=is_first)
    killed = train_with_callbacks(tmp_path / "killed", KillAt(17), is_first=is_first)
    resumed = train_with_callbacks(tmp_path / "killed", is_first=is_first)
    assert expected["early"][3] == 3  # it is stopped, for it has not learned enough
    assert killed["drawn"] == expected["drawn"][: len(killed["drawn"])]
    assert resumed["drawn"] == expected["drawn"][15:]
    for name, logs in expected["logs"].items():
        assert resumed["logs"][name] == logs[1:], name
    assert resumed["epochs"] == expected["epochs"][1:]
    for what in ("seen", "sums", "csv", "early", "step"):
        assert resumed[what] == expected[what], what
    assert_equal(resumed["weights"], expected["weights"])
