"""The callback saves when its frequency says so, and not once more."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt.tmci as tmci
from hpcckpt.errors import OptionError
from hpcckpt.tmci.frequency import Frequency
from tests.support.keras.models import IS_KERAS_3, layers


def linear(**compiled: Any) -> Any:
    model = keras.Sequential([layers.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    return model


class Moments(keras.callbacks.Callback):
    """Remembers where training stood when the plugin was called."""

    def __init__(self, spy: Any) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []
        self._at = (0, 0)
        spy.during = lambda: self.found.append(self._at)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._at = (epoch + 1, 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._at = (self._at[0], batch + 1)


def moments(spy: Any, frequency: dict[str, float], epochs: int, n_batches: int = 25, **compiled: Any) -> list[Any]:
    """Train, and return (epoch, batch) of each save, counted from 1."""
    seen = Moments(spy)
    x = np.ones((n_batches, 1), "float32")
    callbacks = [seen, tmci.CheckpointCallback("spy", frequency=frequency)]
    linear(**compiled).fit(x, x, batch_size=1, epochs=epochs, callbacks=callbacks, verbose=0)
    return seen.found


@pytest.mark.parametrize(
    ("frequency", "epochs", "expected"),
    [
        ({"epoch": 1}, 2, [(1, 25), (2, 25)]),
        ({"epoch": 2}, 4, [(2, 25), (4, 25)]),
        ({"batch": 10}, 1, [(1, 10), (1, 20)]),
        ({"batch": 10}, 2, [(1, 10), (1, 20), (2, 10), (2, 20)]),
        ({"step": 10}, 2, [(1, 10), (1, 20), (2, 5), (2, 15), (2, 25)]),
        ({"epoch": 1, "batch": 12}, 1, [(1, 12), (1, 24), (1, 25)]),
        ({"epoch": 2, "step": 25}, 2, [(1, 25), (2, 25)]),
        ({"epoch": 1, "batch": 5, "step": 5}, 1, [(1, 5), (1, 10), (1, 15), (1, 20), (1, 25)]),
    ],
)
def test_saves_come_when_they_are_due(spy: Any, frequency: Any, epochs: int, expected: list[Any]) -> None:
    assert moments(spy, frequency, epochs) == expected


def test_several_batches_at_a_time_are_counted_one_by_one(spy: Any) -> None:
    assert moments(spy, {"batch": 10, "step": 7}, 1, steps_per_execution=5) == [(1, 10), (1, 15), (1, 20), (1, 25)]


def test_minutes_count_from_the_last_save(spy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 60))  # a minute passes whenever somebody looks
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    callback = tmci.CheckpointCallback("spy", frequency={"minutes": 3})
    callback.set_model(linear())
    callback.set_params({"steps": 20})
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    saved = []
    for batch in range(12):
        before = len(spy.calls)
        callback.on_train_batch_end(batch)
        saved += [batch + 1] * (len(spy.calls) - before)
    callback.on_epoch_end(0)
    callback.on_train_end()
    assert saved == [3, 6, 9, 12]
    assert len(spy.calls) == 4


def test_the_callback_passes_on_what_it_was_given(spy: Any) -> None:
    x = np.ones((2, 1), "float32")
    callback = tmci.CheckpointCallback("spy", {"a": 1}, {"epoch": 1}, False)
    linear().fit(x, x, callbacks=[callback], verbose=0)
    assert spy.configs == ['{"a": 1}']
    assert spy.names == ["model/dense/kernel", "model/dense/bias"]


def test_with_a_backend_in_python_each_save_is_a_step(tmp_path: Any) -> None:
    from hpcckpt import Checkpointer

    config = {"path": str(tmp_path / "run"), "max_to_keep": None}
    callback = tmci.CheckpointCallback("rankfile", config, {"epoch": 1, "minutes": 1000})
    x = np.ones((4, 1), "float32")
    linear().fit(x, x, batch_size=2, epochs=3, callbacks=[callback], verbose=0)
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.all_steps() == [0, 1, 2]


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no Sessions")
def test_a_model_that_runs_in_a_session_is_saved_by_one_op(spy: Any) -> None:
    callback = tmci.CheckpointCallback("spy")
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        callback.set_model(keras.Sequential([layers.Input((1,)), layers.Dense(1)]))
        session.run(tf.compat.v1.global_variables_initializer())
        callback.on_train_begin()
        for epoch in range(3):
            callback.on_epoch_end(epoch)
        assert [what for what, _ in spy.calls] == ["save"] * 3
        assert [op.type for op in graph.get_operations()].count("HpcckptPluginSave") == 1


@pytest.mark.parametrize(
    ("frequency", "text"),
    [
        ({}, "at least one of epoch, batch, step, minutes"),
        ({"epochs": 1}, "frequency: 'epochs': one of epoch, batch, step, minutes"),
        ({"epoch": 0, "batch": 1.5, "minutes": -1}, r"frequency\.epoch.*frequency\.batch.*frequency\.minutes"),
        ({"epoch": True}, r"frequency\.epoch: True – a positive whole number"),
    ],
)
def test_a_frequency_that_makes_no_sense_is_refused(frequency: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        tmci.CheckpointCallback("spy", frequency=frequency)


def test_half_a_minute_is_a_frequency() -> None:
    assert Frequency.parse({"minutes": 0.5}).is_due_after_minutes(0.5)
    assert not Frequency.parse({"epoch": 1}).is_due_after_minutes(10**9)
