"""The table of the formats: ours -> foreign -> ours, to the bit, and what the stock library makes of the file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.state.tree import flatten
from hpcckpt.tools.convert.export import VALUES
from tests.support.convert import small_models
from tests.support.convert.converting import assert_same

pytestmark = pytest.mark.one_case

IS_KERAS_3 = small_models.IS_KERAS_3
SEEDS, RATE, OPTIMIZER = "seed_generator", "optimizer/learning_rate", "optimizer/"
LOST = {"weights.h5": SEEDS if IS_KERAS_3 else RATE, "keras": SEEDS, "h5": SEEDS}
"""What Keras itself keeps no place for; Keras 2.15 has no random states here to begin with."""
OUT = {
    "npz": "m.npz", "safetensors": "m.safetensors", "pt": "m.pt", "tf": "cp-0001.ckpt",
    "weights.h5": "m.weights.h5", "keras": "m.keras", "h5": "m.h5", "saved-model": "m",
}  # fmt: skip
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
FORMATS = [pytest.param(name, marks=needs_torch if name == "pt" else ()) for name in OUT]
MODEL_FORMATS = ["tf", "weights.h5", "keras", "h5", "saved-model"]


class Case(NamedTuple):
    """A trained model, its run directory, and what that holds."""

    build: Any
    run: Path
    tensors: dict[str, Any]


@pytest.fixture(scope="module", params=small_models.MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    build = small_models.MODELS[request.param]
    model = small_models.trained(build)
    run = tmp_path_factory.mktemp(request.param) / "run"
    with hc.Checkpointer(run, async_save=False) as ckpt:
        ckpt.save(3, {"model": model}, metrics={"loss": 0.5}, objects={"epoch": 1})
    return Case(build, run, hc.load(run))


class Files(NamedTuple):
    """What one case became in each format."""

    room: Path
    done: dict[str, Any]


@pytest.fixture(scope="module")
def files(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Files:
    room = tmp_path_factory.mktemp("out")
    done = {}
    for name, out in OUT.items():
        if name != "pt" or find_spec("torch"):
            model = case.build() if name in MODEL_FORMATS else None
            done[name] = hc.export_checkpoint(case.run, room / out, name, model=model)
    return Files(room, done)


def values(model: Any) -> dict[str, Any]:
    """Return the tensors of a model and its optimizer, by our names, as a checkpoint would have them."""
    tree = flatten({"model": model}).tensors
    ranked = {name for name, leaf in tree.items() if leaf.declaration.spec.kind == "per-rank"}
    return {f"{name}#0" if name in ranked else name: leaf.read() for name, leaf in tree.items()}


def without(tensors: dict[str, Any], *parts: str) -> dict[str, Any]:
    return {name: value for name, value in tensors.items() if not any(part in name for part in parts)}


def fresh(case: Case) -> Any:
    """Return a model with other weights and a built optimizer, as a script has it that goes on."""
    model = case.build()
    model.optimizer.build(model.trainable_variables)
    return model


# -- the stock library -----------------------------------------------------------------------------


def test_numpy_reads_the_npz(case: Case, files: Files) -> None:
    with np.load(files.room / OUT["npz"], allow_pickle=False) as found:
        assert_same(case.tensors, dict(found))


def test_safetensors_reads_the_safetensors(case: Case, files: Files) -> None:
    from safetensors.numpy import load_file

    assert_same(case.tensors, load_file(files.room / OUT["safetensors"]))


@needs_torch
def test_torch_reads_the_pt_without_unpickling(case: Case, files: Files) -> None:
    import torch

    found = torch.load(files.room / OUT["pt"], weights_only=True)
    assert found["hpcckpt"]["step"] == 3
    flat: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{name}/{key}" if name else key)
        elif isinstance(value, torch.Tensor):
            flat[name] = value.numpy()

    walk({key: value for key, value in found.items() if key != "hpcckpt"}, "")
    assert_same(case.tensors, flat)


def test_tf_train_checkpoint_restores_model_and_optimizer(case: Case, files: Files) -> None:
    model = fresh(case)
    latest = tf.train.latest_checkpoint(str(files.room))
    assert latest == str(files.room / OUT["tf"])
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(latest).assert_consumed()
    assert_same(without(case.tensors, SEEDS), without(values(model), SEEDS))


def test_tf_train_checkpoint_restores_an_optimizer_that_is_built_later(case: Case, files: Files) -> None:
    model = case.build()
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(str(files.room / OUT["tf"]))
    model.optimizer.build(model.trainable_variables)
    assert_same(without(case.tensors, SEEDS), without(values(model), SEEDS))


def test_load_checkpoint_finds_our_names(case: Case, files: Files) -> None:
    reader = tf.train.load_checkpoint(str(files.room / OUT["tf"]))
    found = {name: np.asarray(reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE")) for name in case.tensors}
    assert_same(case.tensors, found)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 reads no TensorFlow checkpoints")
def test_load_weights_reads_the_tf_checkpoint_as_the_tutorial_does(case: Case, files: Files) -> None:
    model = fresh(case)
    model.load_weights(tf.train.latest_checkpoint(files.room))
    assert_same(case.tensors, values(model))


def test_load_weights_reads_the_weights_h5(case: Case, files: Files) -> None:
    model = fresh(case)
    model.load_weights(files.room / OUT["weights.h5"])
    assert_same(without(case.tensors, LOST["weights.h5"]), without(values(model), LOST["weights.h5"]))


def test_load_weights_reads_the_h5(case: Case, files: Files) -> None:
    model = fresh(case)
    model.load_weights(files.room / OUT["h5"])
    assert_same(without(case.tensors, OPTIMIZER, SEEDS), without(values(model), OPTIMIZER, SEEDS))


@pytest.mark.parametrize("name", ["keras", "h5"])
def test_load_model_rebuilds_the_training(name: str, case: Case, files: Files) -> None:
    model = keras.models.load_model(files.room / OUT[name])
    lost = (SEEDS, OPTIMIZER) if IS_KERAS_3 and name == "h5" else (SEEDS,)  # Keras 3 loses the slots in its files
    assert_same(without(case.tensors, *lost), without(values(model), *lost))


def test_the_saved_model_predicts_the_same(case: Case, files: Files) -> None:
    assert {path.name for path in (files.room / OUT["saved-model"]).iterdir()} >= {"saved_model.pb", "variables"}
    loaded = tf.saved_model.load(str(files.room / OUT["saved-model"]))
    rows = np.ones((2, 8, 8, 1), "float32")
    model = fresh(case)
    model.load_weights(files.room / OUT["weights.h5"])
    expected = model(rows, training=False).numpy()
    found = loaded.serve(rows) if IS_KERAS_3 else loaded(rows, training=False)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 exports for inference only")
def test_keras_2_loads_the_saved_model_with_a_new_optimizer(case: Case, files: Files) -> None:
    """As it does with its own: the optimizer's values are in the file, and it looks past them."""
    model = keras.models.load_model(files.room / OUT["saved-model"])
    assert_same(without(case.tensors, OPTIMIZER), without(values(model), OPTIMIZER))
    assert int(model.optimizer.iterations.numpy()) == 0
    assert "new optimizer" in files.done["saved-model"].remarks[0]


# -- and back --------------------------------------------------------------------------------------


def lost_in(name: str) -> tuple[str, ...]:
    return (LOST[name],) if name in LOST else ()


BACK = [param for param in FORMATS if "saved-model" not in param.values]


def model_for(name: str, case: Case) -> Any:
    """Return what is needed to read a format by our names."""
    return case.build() if name == "weights.h5" else None


@pytest.mark.parametrize("name", BACK)
def test_a_round_trip_is_exact(name: str, case: Case, files: Files, tmp_path: Path) -> None:
    done = hc.import_checkpoint(files.room / OUT[name], tmp_path / "back", model=model_for(name, case))
    assert (done.source_format, done.step, done.format) == (name, 3, "hpcckpt")
    assert_same(without(case.tensors, *lost_in(name)), without(hc.load(done.path), *lost_in(name)))


@pytest.mark.parametrize("name", BACK)
def test_training_goes_on_from_a_round_trip(name: str, case: Case, files: Files, tmp_path: Path) -> None:
    hc.import_checkpoint(files.room / OUT[name], tmp_path / "back", model=model_for(name, case))
    model = fresh(case)
    with hc.Checkpointer(tmp_path / "back") as ckpt:
        restored = ckpt.restore({"model": model}, strict=name != "h5")
    assert (restored.step, restored.metrics, restored.objects["epoch"]) == (3, {"loss": 0.5}, 1)
    assert_same(without(case.tensors, *lost_in(name)), without(values(model), *lost_in(name)))


@pytest.mark.parametrize("name", ["tf", "h5", "keras"])
def test_a_round_trip_through_a_model_is_exact_too(name: str, case: Case, files: Files, tmp_path: Path) -> None:
    done = hc.import_checkpoint(files.room / OUT[name], tmp_path / "back", model=case.build())
    lost = (SEEDS, RATE) if name != "tf" else (SEEDS,)
    assert_same(without(case.tensors, *lost), without(hc.load(done.path), *lost))


def test_what_keras_does_not_keep_is_said(case: Case, files: Files) -> None:
    for name, done in files.done.items():
        lost = {each for each in case.tensors if name in LOST and LOST[name] in each}
        if name == "saved-model" and IS_KERAS_3:
            lost = {each for each in case.tensors if each.startswith(OPTIMIZER)}
        tensors = [each for left in done.left_out if left.reason != VALUES for each in left.names]
        assert {f"{each}#0" if SEEDS in each else each for each in tensors} == lost, name
        assert done.tensors == len(case.tensors) - len(lost), name


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 exports for inference only")
def test_the_variables_of_a_saved_model_are_read_as_a_checkpoint(case: Case, files: Files, tmp_path: Path) -> None:
    prefix = files.room / OUT["saved-model"] / "variables" / "variables"
    done = hc.import_checkpoint(prefix, tmp_path / "back", step=3)
    own, found = (sorted(value.tobytes() for value in each.values()) for each in (case.tensors, hc.load(done.path)))
    assert own == found
