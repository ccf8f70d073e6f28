"""What TMCI's users know: which tensors a plugin gets, what arguments are refused, and any backend by its name."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt.tmci as tmci
from hpcckpt import Checkpointer, load
from hpcckpt.errors import (
    BackendError,
    BackendNotFoundError,
    OptionError,
    StateError,
    StateMismatchError,
    StepNotFoundError,
)
from hpcckpt.native import tf_ops
from tests.support.keras.models import IS_KERAS_3, assert_equal, lenet5, small, values
from tests.support.programs import environment

pytestmark = pytest.mark.one_case

N_TENSORS = 26 if IS_KERAS_3 else 25
WEIGHTS = [
    f"model/{layer}/{weight}" for layer in ("conv2d", "conv2d_1", "dense", "dense_1") for weight in ("kernel", "bias")
]


def trained(rate: float = 0.125) -> Any:
    """Return a small model after four steps, its learning rate changed."""
    model = small()
    for step in range(4):
        model.optimizer.apply_gradients([(tf.fill(w.shape, 0.1 * step), w) for w in model.trainable_variables])
    model.optimizer.learning_rate = rate
    return model


# -- which tensors ----------------------------------------------------------------------------------


def test_lenet5_has_the_tensors_that_tmci_counted(spy: Any) -> None:
    tmci.save_weights(lenet5(), "spy")
    assert len(spy.names) == len(set(spy.names)) == N_TENSORS
    assert spy.names[:8] == WEIGHTS
    slots = {
        f"optimizer/{slot}/{weight}" for slot in ("m", "v") for weight in (n.removeprefix("model/") for n in WEIGHTS)
    }
    if IS_KERAS_3:
        slots = {name.replace("/m/", "/momentum/").replace("/v/", "/velocity/") for name in slots}
    rate = {"optimizer/learning_rate"} if IS_KERAS_3 else set()
    assert set(spy.names[8:]) == slots | rate | {"optimizer/iteration"}


def test_a_plugin_that_goes_by_names_gets_the_learning_rate_on_both_stacks(store: Any) -> None:
    model = lenet5()
    tmci.save_weights(model, "store")
    assert len(store.names) == 26
    assert "optimizer/learning_rate" in store.names
    tmci.save_weights(model, "store", everything=False)
    assert len(store.names) == N_TENSORS


def test_what_was_saved_comes_back_into_another_model(store: Any) -> None:
    model = trained()
    expected = values(model)
    tmci.save_weights(model, "store")
    fresh = small(seed=2)
    tmci.load_weights(fresh, "store")
    assert_equal(values(fresh), expected)
    assert float(fresh.optimizer.learning_rate) == 0.125
    assert int(fresh.optimizer.iterations) == 4


def test_the_optimizers_variables_are_made_before_loading_without_a_step(store: Any) -> None:
    model = trained()
    tmci.save_weights(model, "store")
    fresh = small(seed=2)
    assert not fresh.optimizer.built if IS_KERAS_3 else not getattr(fresh.optimizer, "_built", False)
    tmci.load_weights(fresh, "store")
    assert [seen.name for seen in store.calls[0][1]] == [seen.name for seen in store.calls[1][1]]
    assert int(fresh.optimizer.iterations) == int(model.optimizer.iterations) == 4


def test_without_the_optimizer_it_is_left_as_it_is(store: Any) -> None:
    model = trained()
    tmci.save_weights(model, "store", include_optimizer=False)
    assert set(store.names) == {name for name in values(model) if name.startswith("model/")}
    fresh = small(seed=2)
    tmci.load_weights(fresh, "store", include_optimizer=False)
    assert not fresh.optimizer.built if IS_KERAS_3 else not getattr(fresh.optimizer, "_built", False)
    assert int(fresh.optimizer.iterations) == 0
    assert all((a == b).all() for a, b in zip(model.get_weights(), fresh.get_weights(), strict=True))


def test_a_model_without_an_optimizer_is_saved_as_it_is(spy: Any) -> None:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    tmci.save_weights(model, "spy")
    assert spy.names == ["model/dense/kernel", "model/dense/bias"]


def test_a_model_that_is_not_built_is_refused(spy: Any) -> None:
    with pytest.raises(StateError, match="build the model first"):
        tmci.save_weights(keras.Sequential([keras.layers.Dense(3)]), "spy")
    with pytest.raises(StateError, match="a dict is no Keras model"):
        tmci.save_weights({}, "spy")


def test_weights_are_saved_from_their_own_memory(spy: Any) -> None:
    from hpcckpt.state.tf_hold import hold
    from hpcckpt.state.tree import flatten

    model = trained()
    tmci.save_weights(model, "spy")
    leaves = flatten({"model": model}).tensors
    assert spy.addresses == [array.ctypes.data for array in hold([leaves[name].source for name in spy.names])]


# -- arguments ---------------------------------------------------------------------------------------


def test_the_signatures_are_tmcis() -> None:
    for function in (tmci.save_weights, tmci.load_weights):
        parameters = list(inspect.signature(function).parameters.values())[:4]
        assert [p.name for p in parameters] == ["model", "backend", "config", "include_optimizer"]
        assert [p.default for p in parameters[2:]] == ["", True]
    parameters = list(inspect.signature(tmci.CheckpointCallback).parameters.values())[:4]
    assert [p.name for p in parameters] == ["backend", "config", "frequency", "include_optimizer"]
    assert [p.default for p in parameters[1:]] == ["", {"epoch": 1}, True]
    assert tmci.checkpoint.save_weights is tmci.save_weights
    assert tmci.checkpoint.CheckpointCallback is tmci.CheckpointCallback


@pytest.mark.parametrize(
    "call", [tmci.save_weights, tmci.load_weights, lambda _, *args: tmci.CheckpointCallback(*args)]
)
def test_arguments_of_other_types_are_refused_in_tmcis_words(call: Any) -> None:
    with pytest.raises(TypeError, match=r"^backend should be a string$"):
        call(None, 5)
    with pytest.raises(TypeError, match=r"^config should be a string or a dictionary$"):
        call(None, "spy", 5)
    if call is not tmci.save_weights and call is not tmci.load_weights:
        with pytest.raises(TypeError, match=r"^frequency should be a dictionary$"):
            call(None, "spy", "", 5)
        return
    with pytest.raises(TypeError, match=r"^include_optimizer should be a boolean$"):
        call(None, "spy", "", "yes")


def test_a_config_is_given_as_it_is_and_a_dict_as_json(spy: Any) -> None:
    model = small()
    for config in ("any, thing = {at all", {"path": "a", "n": [1]}):
        tmci.save_weights(model, "spy", config)
    assert spy.configs[0] == "any, thing = {at all"
    assert json.loads(spy.configs[1]) == {"path": "a", "n": [1]}


def test_an_unknown_backend_is_an_error_that_lists_those_that_there_are(spy: Any) -> None:
    with pytest.raises(
        BackendNotFoundError, match=r"'nobody' not found; known: .*spy.*; backends in Python: .*rankfile"
    ):
        tmci.save_weights(small(), "nobody")


def test_a_plugin_is_loaded_by_its_path_and_a_second_time_is_nothing() -> None:
    path = tmci.plugins.find("null").origin
    assert tmci.plugins.load(path) == tmci.plugins.load(path)
    with pytest.raises(OSError, match=r"nowhere/libmine\.so does not exist"):
        tmci.plugins.load("nowhere/libmine.so")


def test_ops_that_cannot_be_built_are_an_error_with_one_command(
    ops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = tf_ops.target()._replace(tensorflow="2.14.0").filename
    shutil.copyfile(ops.path, tmp_path / forged)  # never loaded in another TensorFlow
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(tf_ops, "load_ops", tf_ops.load_ops.__wrapped__)  # as in a process that has not loaded any
    text = f"cannot be built for TensorFlow {tf.__version__}: CXX is no-such-compiler, which is not on the PATH; run: "
    with pytest.raises(BackendError, match=re.escape(text)):
        tmci.save_weights(small(), "null", "unopened")


def test_importing_it_loads_no_tensorflow() -> None:
    program = "import sys, hpcckpt.tmci as tmci; tmci.plugins.load; sys.exit('tensorflow' in sys.modules)"
    env = environment()
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == 0


# -- backends in Python --------------------------------------------------------------------------------


def test_a_backend_in_python_saves_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    model = trained()
    expected = values(model)
    tmci.save_weights(model, "rankfile", {"path": str(tmp_path / "run")})
    assert_equal(load(tmp_path / "run"), expected)
    fresh = small(seed=2)
    tmci.load_weights(fresh, "rankfile", json.dumps({"path": str(tmp_path / "run")}))
    assert_equal(values(fresh), expected)
    other = small(seed=3)
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.restore({"model": other})
    assert_equal(values(other), expected)


@pytest.mark.parametrize("backend", ["hdf5", "rankfile", "plugin:posix"])
def test_any_backend_of_the_registry_is_reached_by_its_name(backend: str, tmp_path: Path) -> None:
    if backend == "hdf5":
        pytest.importorskip("h5py")
    if backend == "plugin:posix" and "posix" not in tmci.plugins.available():
        pytest.skip("the samples are not built")
    model, config = trained(), {"path": str(tmp_path / "run")}
    tmci.save_weights(model, backend, config)
    fresh = small(seed=2)
    tmci.load_weights(fresh, backend, config)
    assert_equal(values(fresh), values(model))


def test_with_a_backend_in_python_too_the_optimizer_can_be_left_out(tmp_path: Path) -> None:
    model, config = trained(), f"path={tmp_path}/run"
    for include in (True, False):  # weights alone come from a checkpoint of all, and from one of weights
        tmci.save_weights(model, "rankfile", config, include_optimizer=include)
        fresh = small(seed=2)
        tmci.load_weights(fresh, "rankfile", config, include_optimizer=False)
        assert not fresh.optimizer.built if IS_KERAS_3 else not getattr(fresh.optimizer, "_built", False)
        assert all((a == b).all() for a, b in zip(model.get_weights(), fresh.get_weights(), strict=True))
    with pytest.raises(StateMismatchError, match="optimizer"):
        tmci.load_weights(small(), "rankfile", config)


def test_each_save_is_a_step_and_the_newest_is_kept(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "run"
    for number in range(3):
        model.set_weights([np.full_like(weight, number) for weight in model.get_weights()])
        tmci.save_weights(model, "rankfile", {"path": str(path), "max_to_keep": 2})
    with Checkpointer(path) as ckpt:
        assert ckpt.all_steps() == [1, 2]
    tmci.load_weights(model, "rankfile", {"path": str(path), "step": 1})
    assert {float(weight.flat[0]) for weight in model.get_weights()} == {1.0}
    tmci.load_weights(model, "rankfile", {"path": str(path)})
    assert {float(weight.flat[0]) for weight in model.get_weights()} == {2.0}


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tmci.save_weights(small(), "rankfile", f"path={tmp_path}/run")
    other = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(7)])
    for include in (True, False):
        with pytest.raises(StateMismatchError, match="dense/kernel"):
            tmci.load_weights(other, "rankfile", f"path={tmp_path}/run", include_optimizer=include)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("", "config.path: missing"),
        ("{not json", "is not JSON"),
        ("somewhere", "'somewhere' – neither JSON nor key=value,key=value"),
        ('{"path": "x", "nonsense": 1}', r"backend_options\.nonsense"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(config: str, text: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=text):
        tmci.save_weights(small(), "rankfile", config)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_load_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StepNotFoundError):
        tmci.load_weights(small(), "rankfile", f"path={tmp_path}/run")
