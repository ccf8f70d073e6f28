"""Files that other programs wrote, as they write them, become checkpoints whose models predict the same; and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

import hpcckpt as hc
from hpcckpt.errors import OptionError
from hpcckpt.keras import load_model, load_weights
from hpcckpt.tools.convert.export import export_checkpoint
from tests.support.convert import small_models

pytestmark = pytest.mark.one_case

ROWS = np.random.default_rng(2).normal(size=(5, 8, 8, 1)).astype("float32")


@pytest.fixture(scope="module", params=small_models.MODELS)
def build(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return small_models.MODELS[request.param]


@pytest.fixture(scope="module")
def trained(build: Any) -> Any:
    return small_models.trained(build)


def predicted(model: Any) -> Any:
    return np.asarray(model(ROWS, training=False))


def state_of_optimizer(model: Any) -> list[Any]:
    found = model.optimizer.variables
    return [np.asarray(each) for each in (found() if callable(found) else found)]


def write(kind: str, model: Any, room: Path) -> Path:
    """Write a model as its own library does."""
    if kind == "tf":
        return Path(tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(room / "cp")))
    path = room / f"m.{kind}"
    if kind == "weights.h5":
        model.save_weights(path)
    else:
        config = getattr(getattr(model, "_compile_config", None), "config", {})
        compiled = dict(config)
        model.save(path)
        config.update(compiled)  # writing an h5, Keras 3 takes the optimizer out of it
    return path


def read(kind: str, path: Path, build: Any) -> Any:
    """Have a model read a file as its own library does."""
    if kind in {"keras", "h5"}:
        return keras.models.load_model(path)
    model = build()
    model.optimizer.build(model.trainable_variables)
    if kind == "tf":
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(tf.train.latest_checkpoint(path.parent))
    else:
        model.load_weights(path)
    return model


KINDS = ["tf", "h5", "weights.h5", "keras"]


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("kind", KINDS)
def test_keras_own_file_becomes_a_checkpoint_and_one_again(kind: str, build: Any, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    done = hc.import_checkpoint(
        write(kind, trained, tmp_path / "in"), tmp_path / "run", model=None if kind == "keras" else build()
    )
    expected = predicted(trained)
    np.testing.assert_array_equal(expected, predicted(load_model(done.path)))
    restored = build()
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.restore({"model": restored}, strict=kind in {"tf", "keras"})
    np.testing.assert_array_equal(expected, predicted(restored))
    filled = build()
    load_weights(filled, tmp_path / "run", optimizer=False)
    np.testing.assert_array_equal(expected, predicted(filled))
    back = tmp_path / "out" / ("cp" if kind == "tf" else f"m.{kind}")
    hc.export_checkpoint(tmp_path / "run", back, kind)
    again = read(kind, back, build)
    np.testing.assert_array_equal(expected, predicted(again))
    if small_models.IS_KERAS_3 and kind == "h5":
        return  # it reads no optimizer from its own files either
    for own, found in zip(state_of_optimizer(trained), state_of_optimizer(again), strict=True):
        np.testing.assert_array_equal(own, found)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_an_h5_needs_no_model(build: Any, trained: Any, tmp_path: Path) -> None:
    """It has names of weights, and needs neither Keras nor TensorFlow to be read."""
    hc.import_checkpoint(write("h5", trained, tmp_path), tmp_path / "run")
    model = build()
    done = load_weights(model, tmp_path / "run", optimizer=False)
    assert (done.missing, done.unexpected, done.mismatched) == ((), (), ())
    np.testing.assert_array_equal(predicted(trained), predicted(model))


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_arrays_that_another_program_wrote_are_the_weights_of_a_model(
    kind: str, build: Any, trained: Any, tmp_path: Path
) -> None:
    from hpcckpt.keras.files.match import weights_of

    values = {f"model/{name}": np.array(leaf.read()) for name, leaf in weights_of(trained).items()}
    if kind == "npz":
        np.savez(tmp_path / "m.npz", **values)
    else:
        save_file(values, tmp_path / "m.safetensors")
    hc.import_checkpoint(tmp_path / f"m.{kind}", tmp_path / "run", step=4)
    model = build()
    load_weights(model, tmp_path / "run")
    np.testing.assert_array_equal(predicted(trained), predicted(model))


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_network_of_pytorch_computes_the_same(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)

    def network() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))

    own, other = network(), network()
    own(torch.randn(6, 4))  # statistics of BatchNorm
    if kind == "pt":
        torch.save(own.state_dict(), tmp_path / "m.pt")
    else:
        save_file({name: value.numpy() for name, value in own.state_dict().items()}, tmp_path / "m.safetensors")
    hc.import_checkpoint(tmp_path / f"m.{kind}", tmp_path / "run", step=1)
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.restore({"model": other.state_dict()} if kind == "pt" else other.state_dict())
    rows = torch.randn(3, 4)
    expected = own.eval()(rows)
    assert torch.equal(expected, other.eval()(rows))
    hc.export_checkpoint(tmp_path / "run", tmp_path / "back.pt")
    found, third = torch.load(tmp_path / "back.pt", weights_only=True), network()
    found.pop("hpcckpt")
    third.load_state_dict(found["model"] if kind == "pt" else found)
    assert torch.equal(expected, third.eval()(rows))


def test_tensors_of_dtypes_that_tensorflow_does_not_know_are_named(tmp_path: Path) -> None:
    state = {
        "day": np.array(["2026-11-27"], "datetime64[D]"),
        "fine": np.array(["2026-11-27"], "datetime64[ns]"),
        "half": np.arange(2).astype("bfloat16"),
        "text": np.array(["ä"]),
    }
    with hc.Checkpointer(tmp_path / "run", async_save=False) as ckpt:
        ckpt.save(1, state)
    step = hc.latest_checkpoint(tmp_path / "run")
    (tmp_path / "tf").mkdir()
    unknown = r"no dtype for day \(<M8\[D\]\), fine \(<M8\[ns\]\); use --to npz, or leave them out"
    with pytest.raises(OptionError, match=unknown):
        export_checkpoint(step, tmp_path / "tf" / "cp.ckpt", "tf")
    assert export_checkpoint(step, tmp_path / "tf" / "cp.ckpt", "tf", only=["half", "text"]).tensors == 2
