"""`load_model` and `load_weights`: a model from a checkpoint without its program; what does not fit is refused."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import ConfigError, ForeignFormatError, OptionError, StateMismatchError, StepNotFoundError
from hpcckpt.keras import ModelCheckpoint, describe, load_model, load_weights, signature
from hpcckpt.keras.files.match import tensor_leaves
from tests.support.convert import small_models
from tests.support.convert.converting import assert_same

LEGACY = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
IS_KERAS_3 = keras.__version__.startswith("3")
ROWS = np.random.default_rng(1).normal(size=(6, 8, 8, 1)).astype("float32")


def values(model: Any, *parts: str) -> dict[str, Any]:
    found = {name: leaf.read() for name, leaf in tensor_leaves(model).items()}
    return {name: value.copy() for name, value in found.items() if not any(part in name for part in parts)}


def save(directory: Path, model: Any, step: int = 3, **more: Any) -> Path:
    with hc.Checkpointer(directory, async_save=False, max_to_keep=None) as ckpt:
        ckpt.save(step, {"model": model}, objects=describe(model), **more)
    return directory


@pytest.fixture(scope="module", params=small_models.MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return small_models.trained(small_models.MODELS[request.param])


@pytest.fixture
def run(model: Any, tmp_path: Path) -> Path:
    return save(tmp_path / "run", model)


def dense(units: int, dtype: str = "float32", name: str = "head") -> Any:
    keras.utils.set_random_seed(units)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(6, name="base")]
    model = keras.Sequential([*layers, keras.layers.Dense(units, name=name, dtype=dtype)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(5)
    return model


# -- load_model ------------------------------------------------------------------------------------


def test_the_same_model_predicts_and_trains_on(model: Any, run: Path) -> None:
    built = load_model(run)
    np.testing.assert_array_equal(model.predict(ROWS, verbose=0), built.predict(ROWS, verbose=0))
    assert_same(values(model), values(built))
    keras.utils.set_random_seed(7)
    targets = ROWS[:, 0, :3, 0]
    started = values(model, "seed_generator", "random_seed")
    assert built.optimizer.iterations.numpy() == model.optimizer.iterations.numpy() == 3
    built.fit(ROWS, targets, verbose=0)
    assert built.optimizer.iterations.numpy() == 4
    assert started.keys() == values(built, "seed_generator", "random_seed").keys()


def test_it_needs_no_program_of_the_users(tmp_path: Path) -> None:
    model = small_models.functional()
    save(tmp_path / "run", model)
    np.save(tmp_path / "rows.npy", ROWS)
    code = (
        "import sys, numpy as np, hpcckpt as hc; from hpcckpt.keras import load_model\n"
        "room = sys.argv[1]\n"
        "np.save(room + '/out.npy', load_model(room + '/run').predict(np.load(room + '/rows.npy'), verbose=0))\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=clean, check=True, capture_output=True)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), model.predict(ROWS, verbose=0), rtol=1e-6, atol=1e-6)


def test_a_step_is_chosen_by_number_best_or_path(tmp_path: Path) -> None:
    model = dense(2)
    for step, loss in ((1, 0.1), (2, 0.5)):
        model.layers[0].bias.assign(np.full(6, step, "float32"))
        save(tmp_path / "run", model, step, metrics={"loss": loss})
    found = [
        int(load_model(tmp_path / "run" / path, which).layers[0].bias.numpy()[0])
        for path, which in (("", None), ("", 1), ("", "best"), ("step-0000000001", None))
    ]
    assert found == [2, 1, 1, 1]
    with pytest.raises(StepNotFoundError):
        load_model(tmp_path / "run", 7)
    with pytest.raises(StepNotFoundError):
        load_model(tmp_path / "absent")


def test_the_name_that_modelcheckpoint_gave_opens_it(tmp_path: Path) -> None:
    model = dense(2)
    callback = ModelCheckpoint(tmp_path / "training" / "cp-{epoch:04d}.ckpt")
    model.fit(np.ones((2, 4)), np.ones((2, 2)), epochs=2, verbose=0, callbacks=[callback])
    assert_same(values(model), values(load_model(tmp_path / "training" / "cp-0002.ckpt")))
    assert_same(values(model), values(load_model(tmp_path / "training")))


def test_without_compile_there_is_no_optimizer(run: Path, model: Any) -> None:
    built = load_model(run, compile=False)
    assert getattr(built, "optimizer", None) is None
    assert_same(values(model, "optimizer/"), values(built))


def test_a_loss_of_the_users_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def loss(true: Any, predicted: Any) -> Any:
        return (true - predicted) ** 2

    model = dense(2)
    model.compile("sgd", loss)
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        about = describe(model)
        about["architecture"].pop("compile", None)
        about["architecture"]["model"].pop("compile_config", None)
        ckpt.save(1, {"model": model}, objects=about)
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        built = load_model(tmp_path / "run")
    assert "call model.compile" in caplog.text
    built.compile("sgd", loss)
    load_weights(built, tmp_path / "run")
    assert_same(values(model), values(built))


def test_a_checkpoint_of_weights_only_says_what_to_do(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"model": dense(2)})
    with pytest.raises(ConfigError, match=r"saved with weights only.*load_weights"):
        load_model(tmp_path / "run")


def test_a_subclassed_model_names_its_class(tmp_path: Path) -> None:
    model = small_models.subclassed()
    save(tmp_path / "run", model)
    with pytest.raises(ConfigError, match=r"Subclassed of tests.*small_models.*load_weights\(Subclassed"):
        load_model(tmp_path / "run")
    fresh = small_models.subclassed()
    load_weights(fresh, tmp_path / "run")
    assert_same(values(model), values(fresh))


def test_a_subclassed_model_with_a_config_is_built_from_its_class(tmp_path: Path) -> None:
    model = small_models.Configured(3)
    model(np.ones((1, 4), "float32"))
    save(tmp_path / "run", model)
    with pytest.raises(ConfigError, match=r"Configured of tests.support.convert.small_models"):
        load_model(tmp_path / "run")
    built = load_model(tmp_path / "run", custom_objects={"Configured": small_models.Configured})
    assert_same(values(model), values(built))


def test_a_layer_of_the_users_is_built_from_its_class(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Input((4,)), small_models.Scaled(), keras.layers.Dense(2)])
    save(tmp_path / "run", model)
    with pytest.raises(ConfigError, match=r"not Keras' own \(.*Scaled\)") as raised:
        load_model(tmp_path / "run")
    assert "Sequential" not in str(raised.value)
    built = load_model(tmp_path / "run", custom_objects={"Scaled": small_models.Scaled})
    assert_same(values(model), values(built))


def test_a_lambda_needs_asking(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Lambda(lambda x: x * 2), keras.layers.Dense(2)])
    save(tmp_path / "run", model)
    with pytest.raises(ConfigError, match=r"Lambda.*no code is run"):
        load_model(tmp_path / "run")
    assert_same(values(model), values(load_model(tmp_path / "run", safe_mode=False)))


def test_load_weights_refuses_a_file_of_keras_with_what_to_do(tmp_path: Path) -> None:
    dense(2).save(tmp_path / "m.keras")
    with pytest.raises(ForeignFormatError, match=r"hpcckpt convert .*model\.load_weights"):
        load_weights(dense(2), tmp_path / "m.keras")


# -- load_weights ----------------------------------------------------------------------------------


def test_a_mismatch_shows_all_that_differs_and_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path / "run", dense(2))
    cases = {
        "1 mismatch: model/head/kernel: is float32 [6, 2] in the checkpoint, float16 [6, 2]": dense(2, "float16"),
        "model/head/kernel: is float32 [6, 2] in the checkpoint, float32 [6, 3] in the model": dense(3),
        "model/tail/kernel: is not in the checkpoint": dense(2, name="tail"),
        "model/head/kernel: is not in the model": dense(2, name="tail"),
    }
    for text, other in cases.items():
        before = values(other)
        with pytest.raises(StateMismatchError) as caught:
            load_weights(other, tmp_path / "run", optimizer=False)
        assert text.removeprefix("1 mismatch: ") in str(caught.value)
        assert f"signature {signature(dense(2))} in the checkpoint, {signature(other)} here" in str(caught.value)
        assert_same(before, values(other))


def test_the_signature_is_of_the_structure_alone() -> None:
    assert signature(dense(2)) == signature(dense(2))
    assert len({signature(each) for each in (dense(2), dense(3), dense(2, "float16"), dense(2, name="tail"))}) == 4
    assert signature(small_models.sequential()) == signature(small_models.bare())


def test_not_strict_takes_what_fits_and_says_the_rest(tmp_path: Path) -> None:
    old = dense(2)
    save(tmp_path / "run", old)
    other = dense(3)
    own = values(other)
    done = load_weights(other, tmp_path / "run", strict=False)
    assert (done.step, done.loaded) == (3, ("model/base/kernel", "model/base/bias"))
    assert {"model/head/kernel", "model/head/bias"} <= set(done.mismatched)
    found = values(other)
    np.testing.assert_array_equal(found["model/base/kernel"], values(old)["model/base/kernel"])
    kept = {name for name in own if name.startswith(("model/head", "optimizer/"))}
    assert_same({name: own[name] for name in kept}, {name: found[name] for name in kept})
    with pytest.raises(StateMismatchError, match="nothing that fits"):
        load_weights(small_models.subclassed(), tmp_path / "run", strict=False)


def test_names_choose_for_another_head(tmp_path: Path) -> None:
    old, other = dense(2), dense(3, name="new_head")
    save(tmp_path / "run", old)
    own = values(other)
    done = load_weights(other, tmp_path / "run", names="model/base/*")
    assert set(done.loaded) == {"model/base/kernel", "model/base/bias"}
    assert (done.missing, done.unexpected, done.mismatched) == ((), (), ())
    np.testing.assert_array_equal(other.layers[0].kernel.numpy(), old.layers[0].kernel.numpy())
    kept = {name for name in own if "model/base" not in name}
    assert_same({name: own[name] for name in kept}, {name: values(other)[name] for name in kept})
    with pytest.raises(StateMismatchError, match="model/head/kernel: is not in the model"):
        load_weights(other, tmp_path / "run", names=["model/*"], optimizer=False)
    with pytest.raises(OptionError, match="matches no tensor"):
        load_weights(other, tmp_path / "run", names="model/absent*")


def test_a_part_of_a_saved_model_is_found_in_it(tmp_path: Path) -> None:
    whole = small_models.nested()
    save(tmp_path / "run", whole)
    inner = keras.Sequential([
        keras.layers.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4, name="chosen")
    ])  # fmt: skip
    done = load_weights(inner, tmp_path / "run")
    assert all(name.startswith("model/sequential/") for name in done.loaded)
    np.testing.assert_array_equal(inner.layers[1].kernel.numpy(), whole.layers[1].layers[1].kernel.numpy())


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"load_weights\(model, path\)"):
        load_weights(str(tmp_path), dense(2))


# -- Keras' own files ------------------------------------------------------------------------------


def test_a_file_of_keras_gives_the_same_model(model: Any, tmp_path: Path) -> None:
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    assert_same(values(loaded, "seed_generator"), values(model, "seed_generator"))
    assert getattr(load_model(tmp_path / "model.keras", compile=False), "optimizer", None) is None


@LEGACY
def test_a_file_of_keras_in_hdf5_gives_the_same_weights(tmp_path: Path) -> None:
    model = dense(2)
    model.save(tmp_path / "model.h5")
    loaded = load_model(tmp_path / "model.h5", compile=False)
    assert_same(values(loaded), values(model, "optimizer"))


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 reads no SavedModel")
def test_a_saved_model_of_keras_gives_the_same_weights(tmp_path: Path) -> None:
    model = dense(2)
    model.save(tmp_path / "model")
    assert_same(values(load_model(tmp_path / "model"), "optimizer"), values(model, "optimizer"))


def test_a_file_of_keras_has_no_steps(tmp_path: Path) -> None:
    dense(2).save(tmp_path / "model.keras")
    with pytest.raises(OptionError, match=r"step: 3, but .* is a Keras file, which has no steps"):
        load_model(tmp_path / "model.keras", 3)


def test_weights_in_a_file_of_keras_are_not_taken_for_a_model(tmp_path: Path) -> None:
    dense(2).save_weights(tmp_path / "of.weights.h5")
    with pytest.raises(ForeignFormatError, match=r"holds no architecture, only weights: build the model and call"):
        load_model(tmp_path / "of.weights.h5")


@LEGACY
@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_a_file_of_keras_that_brings_code_is_refused_unless_trusted(name: str, tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Lambda(lambda rows: rows * 2)])
    model.save(tmp_path / name)
    with pytest.raises((ConfigError, ValueError), match=r"Lambda|lambda"):
        load_model(tmp_path / name)
    loaded = load_model(tmp_path / name, safe_mode=False)
    assert loaded.predict(np.ones((1, 2)), verbose=0).tolist() == [[2, 2]]
