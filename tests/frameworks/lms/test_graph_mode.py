"""Keras in graph mode, `disable_v2_behavior`: LMS acts however the data comes, or says that it cannot."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import pytest

from tests.support.programs import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras.__version__.startswith("3"), reason="Keras 3 has no graph mode"),
]

# One process for all, because graph mode is for the whole process.
PROGRAM = """
import json, sys
import numpy as np, tensorflow as tf
tf.compat.v1.disable_v2_behavior()
from tensorflow import keras
from hpcckpt import lms as large_models
from hpcckpt.lms import LMS

x, y = np.random.default_rng(0).normal(size=(24, 16)).astype("f"), np.ones((24, 4), "f")

def batches(*more):
    while True:
        for start in range(0, 24, 8):
            yield (x[start : start + 8], y[start : start + 8], *more)

class Rows(keras.utils.Sequence):
    def __len__(self):
        return 3
    def __getitem__(self, number):
        return x[8 * number : 8 * number + 8], y[8 * number : 8 * number + 8]

class SetsWeights(keras.callbacks.Callback):
    def set_model(self, model):
        super().set_model(model)
        model.set_weights(model.get_weights())

class ReplacesFunction(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            self.model.train_function = None
            self.model._make_train_function()

def fit(how, *callbacks):
    keras.backend.clear_session()
    tf.compat.v1.set_random_seed(1)
    first = {} if how == "no shape" else {"input_shape": (16,)}
    more = {"kernel_initializer": keras.initializers.GlorotUniform(seed=1)}
    layers = [keras.layers.Dense(16, activation="tanh", **more) for _ in range(5)]
    model = keras.Sequential([keras.layers.Dense(16, **more, **first), *layers, keras.layers.Dense(4, **more)])
    model.compile("sgd", "mse")
    more = {"epochs": 2, "verbose": 0, "callbacks": list(callbacks)}
    if how == "arrays":
        done = model.fit(x, y, batch_size=8, shuffle=False, **more)
    elif how == "session ran":
        done = model.fit(x, y, batch_size=8, shuffle=False, **more | {"callbacks": [SetsWeights(), *callbacks]})
    elif how == "fit_generator":
        done = model.fit_generator(batches(), steps_per_epoch=3, **more)
    elif how == "sequence":
        done = model.fit(Rows(), shuffle=False, **more)
    elif how == "validation":
        done = model.fit(batches(), steps_per_epoch=3, validation_data=batches(), validation_steps=2, **more)
    elif how == "weights":
        done = model.fit(batches(np.ones(8, "f")), steps_per_epoch=3, **more)
    elif how == "evaluated before":
        model.evaluate(x, y, verbose=0)
        done = model.fit(batches(), steps_per_epoch=3, **more)
    elif how == "trained before":
        model.fit(batches(), steps_per_epoch=3, verbose=0)
        done = model.fit(batches(), steps_per_epoch=3, **more)
    elif how == "replaced at batch 2":
        done = model.fit(batches(), steps_per_epoch=3, **more | {"callbacks": [ReplacesFunction(), *callbacks]})
    elif how == "twice":
        model.fit(batches(), steps_per_epoch=3, **more)
        done = model.fit(batches(), steps_per_epoch=3, **more)
    else:
        done = model.fit(batches(), steps_per_epoch=3, **more)
    return [float(each) for each in done.history["loss"]]

def n_executed():
    return sum(op["count"] for op in large_models.stats()["outs"].values())

told = {}
for how in sys.argv[1:]:
    lms = LMS(3, 1, 2, min_bytes=1)
    without, before = fit(how), n_executed()
    with_, report = fit(how, lms), lms.report()
    told[how] = [without, with_, report.mode, n_executed() - before, list(report.notes)]
print(json.dumps(told))
"""

ACTS = ["arrays", "generator", "fit_generator", "sequence", "validation", "evaluated before", "twice"]
CANNOT = {
    "trained before": "was trained before LMS was given to it",
    "no shape": "give its first layer an input_shape",
    "weights": "train with arrays or a tf.data.Dataset",
    "session ran": "load weights before `fit`",
}
REPLACED = "replaced at batch 2"


@pytest.fixture(scope="module")
def told() -> dict[str, list]:
    """For each way: losses without and with LMS, the report's mode, how many swap-outs ran, what is noted."""
    env = environment(TF_ENABLE_ONEDNN_OPTS="0")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *ACTS, *CANNOT, REPLACED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ACTS)
def test_lms_acts_in_graph_mode_and_losses_are_the_same(how: str, told: dict[str, list]) -> None:
    without, with_, mode, n_executed, notes = told[how]
    assert (mode, notes) == ("graph", [])
    assert n_executed > 0
    assert with_ == without


@pytest.mark.parametrize("how", CANNOT)
def test_where_lms_cannot_act_in_graph_mode_it_says_so(how: str, told: dict[str, list]) -> None:
    without, with_, _, n_executed, notes = told[how]
    assert n_executed == 0
    assert len(notes) == 1
    assert CANNOT[how] in notes[0]
    assert with_ == without


def test_a_training_function_that_is_replaced_at_a_later_batch_is_reported(told: dict[str, list]) -> None:
    without, with_, _, n_executed, notes = told[REPLACED]
    assert n_executed > 0  # in the first batch
    assert len(notes) == 1
    assert "has made another training function" in notes[0]
    assert with_ == without
