"""``hpcckpt restore`` to ``.weights.h5``, read back by Keras itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import StateMismatchError

pytestmark = [
    pytest.mark.tf,
    pytest.mark.stack_b,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("keras") is None or find_spec("h5py") is None, reason="needs Keras and h5py"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TensorFlow's and Keras' own, with NumPy 2
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
Cli = Callable[..., Any]

SOURCE = """
import keras

def build(units=5, **names):
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(4, 3, name="first")(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(units)(x)
    return keras.Model(inputs, keras.layers.Dense(3)(x))

def compiled():
    print("compiling")
    model = build()
    model.compile("adam", "mse")
    return model

def other():
    return build(units=6)

def broken():
    raise ValueError("no such dataset")

def nothing():
    return 42
"""


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A trained model, saved in ``run``; its module is importable."""
    (tmp_path / "cli_models.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.syspath_prepend(tmp_path)
    import cli_models

    cli_models.build()  # names that Keras makes up are counted on
    model = cli_models.compiled()
    model.fit(np.ones((4, 8, 8, 1)), np.ones((4, 3)), verbose=0)
    with hc.Checkpointer("run") as ckpt:
        ckpt.save(1, {"model": model, "other": {"w": np.ones(2)}})
    Path("model.json").write_text(model.to_json(), encoding="utf-8")
    model.save("model.keras")
    yield model
    del sys.modules["cli_models"]


def assert_loads(model: Any, file: str) -> None:
    import cli_models

    fresh = cli_models.build()
    fresh.load_weights(file)
    for one, other in zip(model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("source", ["model.json", "model.keras", "cli_models:build", "cli_models:compiled"])
def test_keras_loads_what_was_written(source: str, trained: Any, cli: Cli) -> None:
    result = cli("restore", "run", "--out", "o.weights.h5", "--model", source, "--json")
    assert result.code == 0, result.err
    assert (result.json["format"], result.json["tensors"]) == ("weights.h5", len(trained.weights))
    assert_loads(trained, "o.weights.h5")


def test_a_model_that_does_not_fit_exits_with_5(trained: Any, cli: Cli) -> None:
    result = cli("restore", "run", "--out", "o.weights.h5", "--model", "cli_models:other", "--json")
    assert (result.code, result.json["error"]["kind"]) == (5, "state-mismatch")
    assert "model/dense/kernel: is float32 [144, 5] in the checkpoint, float32 [144, 6] in the model" in result.err
    assert not Path("o.weights.h5").exists()
    assert cli("restore", "run", "--out", "o.weights.h5", "--model", "cli_models:build", "--only", "other/*").code == 5


@pytest.mark.parametrize(
    "source", ["cli_models:broken", "cli_models:nothing", "cli_models:absent", "absent:build", "x"]
)
def test_a_model_that_cannot_be_built_exits_with_2(source: str, trained: Any, cli: Cli) -> None:
    result = cli("restore", "run", "--out", "o.weights.h5", "--model", source)
    assert result.code == 2
    assert repr(source) in result.err


def test_two_models_in_one_checkpoint_are_told_apart(trained: Any, cli: Cli) -> None:
    import cli_models

    with hc.Checkpointer("gan") as ckpt:
        ckpt.save(1, {"generator": trained, "critic": cli_models.build()})
    words = ["restore", "gan", "--out", "o.weights.h5", "--model", "cli_models:build"]
    result = cli(*words)
    assert result.code == 5
    assert "'critic', 'generator'" in result.err
    assert cli(*words, "--only", "generator/*").code == 0
    assert_loads(trained, "o.weights.h5")


def test_prefixes() -> None:
    from hpcckpt.keras.files.match import find_prefix

    wanted = ["dense/kernel", "dense/bias"]
    assert find_prefix(wanted, ["dense/kernel", "dense/bias"]) == ""
    assert find_prefix(wanted, ["a/b/dense/kernel", "a/b/dense/bias", "a/dense/bias"]) == "a/b"
    assert (
        find_prefix(wanted, ["ema/dense/kernel", "ema/dense/bias", "model/dense/kernel", "model/dense/bias"]) == "model"
    )
    assert find_prefix(wanted, ["model/dense/kernel", "ema/dense/kernel"]) == "model"  # the best there is
    assert find_prefix(wanted, []) == "model"
    with pytest.raises(StateMismatchError, match="'critic', 'ema'"):
        find_prefix(["kernel"], ["ema/kernel", "critic/kernel"])
    with pytest.raises(StateMismatchError, match=r"1 of 2 weights of the model fit each of 'a', 'b'; .*names='a/\*'"):
        find_prefix(wanted, ["a/dense/kernel", "b/dense/bias"])
