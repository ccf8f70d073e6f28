"""Models from anybody: what would run code is refused, by a checkpoint's architecture and by Keras' own files."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import ConfigError, CorruptError, ForeignFormatError
from hpcckpt.keras import describe, load_model
from hpcckpt.keras.files.architecture import NAME, build_architecture
from hpcckpt.keras.files.safe_config import refuse_code
from hpcckpt.keras.files.weights_file import build_model
from tests.support.convert import small_models

DENSE = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}, "registered_name": None}


def function(module: str, name: str) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def layer(module: str | None, name: str, /, **config: Any) -> dict[str, Any]:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


HOSTILE = {
    "a class of another module": layer("os", "system"),
    "a class of Python's own": layer("builtins", "exec"),
    "a module whose name begins alike": layer("keras_evil.layers", "Dense"),
    "a function of Keras' own that writes files": layer("keras.utils", "get_file"),
    "the same, as an activation": {**DENSE, "config": {"units": 2, "activation": function("keras.utils", "get_file")}},
    "a function of Python's own": {**DENSE, "config": {"units": 2, "activation": function("builtins", "eval")}},
    "a Lambda layer": layer("keras.layers", "Lambda", function=["4wAAA", None, None]),
    "a Lambda layer, as Keras 2 has it": {"class_name": "Lambda", "config": {"function_type": "lambda"}},
    "a lambda": {"class_name": "Dense", "config": {"activation": {"class_name": "__lambda__", "config": {}}}},
    "a registered class": {"class_name": "Mine", "config": {}, "registered_name": "package>Mine"},
    "a pickle": layer("keras.layers", "TorchModuleWrapper", module="gASV"),
    "a program": layer("keras.layers", "TFSMLayer", filepath="/tmp/program"),
    "an operation that writes files": layer("keras.layers", "TFOpLambda", function="io.write_file"),
    "an operation that calls Python": layer("keras.layers", "TFOpLambda", function="py_function"),
    "an operation of any class": layer("keras.layers", "ClassMethod", cls_symbol="data.Dataset"),
    "a type that is imported": {"class_name": "__typespec__", "module": "os", "spec_name": "s", "config": []},
    "no name": {"class_name": 3, "config": {}},
    "a function without a name": {"class_name": "function", "module": "builtins", "config": {"class_name": "x"}},
}


def sequential_of(*layers: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": "Sequential", "config": {"name": "s", "layers": list(layers)}}


@pytest.mark.parametrize("what", HOSTILE)
def test_architectures_that_bring_code_are_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no code is run"):
        build_architecture({"model": sequential_of(HOSTILE[what])})
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"model": {"w": np.ones(1)}}, objects={NAME: {"model": sequential_of(HOSTILE[what])}})
    with pytest.raises(ConfigError, match="no code is run"):
        load_model(tmp_path / "run")
    with pytest.raises(ConfigError, match="no code is run"):
        hc.export_checkpoint(tmp_path / "run", tmp_path / "m.h5")


@pytest.mark.parametrize("what", HOSTILE)
def test_keras_files_that_bring_code_are_refused_before_keras_sees_them(what: str, tmp_path: Path) -> None:
    small_models.bare().save(tmp_path / "good.keras")
    with zipfile.ZipFile(tmp_path / "good.keras") as good, zipfile.ZipFile(tmp_path / "m.keras", "w") as bad:
        for name in good.namelist():
            text = json.dumps(sequential_of(HOSTILE[what])) if name == "config.json" else good.read(name)
            bad.writestr(name, text)
    with pytest.raises(ConfigError, match="no code is run"):
        hc.import_checkpoint(tmp_path / "m.keras", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_ordinary_models_bring_no_code() -> None:
    layers = keras.layers
    entry = keras.Input((5, 3))
    x = layers.Bidirectional(layers.LSTM(4, kernel_regularizer=keras.regularizers.L2(0.1)))(entry)
    x = layers.Dense(8, activation=keras.activations.gelu)(x) * 2.0 + 1.0
    model = keras.Model(entry, layers.Dense(1)(layers.LayerNormalization()(x)))
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.Adam(rate), keras.losses.sparse_categorical_crossentropy, metrics=["accuracy"])
    for built in (model, small_models.sequential(), small_models.functional(), small_models.nested()):
        refuse_code(describe(built)[NAME])
        assert build_architecture(describe(built)[NAME]).count_params() == built.count_params()


def test_what_the_program_registered_with_keras_is_its_own_code() -> None:
    config = {"module": None, "class_name": "Known", "config": {}, "registered_name": "here>Known"}
    with pytest.raises(ConfigError, match="Known"):
        refuse_code(config)
    keras.saving.register_keras_serializable("here", "Known")(type("Known", (keras.layers.Layer,), {}))
    try:
        refuse_code(config)
    finally:
        if hasattr(keras.saving, "get_custom_objects"):
            keras.saving.get_custom_objects().pop("here>Known", None)
    refuse_code(function("my.losses", "mine"), {"mine": print})


def test_weights_in_a_keras_file_do_not_reach_out(tmp_path: Path) -> None:
    small_models.bare().save(tmp_path / "good.keras")
    with zipfile.ZipFile(tmp_path / "good.keras") as good:
        good.extract("model.weights.h5", tmp_path)
        with h5py.File(tmp_path / "model.weights.h5", "a") as file:
            file["more"] = h5py.ExternalLink("/etc/hostname", "/")
        with zipfile.ZipFile(tmp_path / "m.keras", "w") as bad:
            bad.writestr("config.json", good.read("config.json"))
            bad.write(tmp_path / "model.weights.h5", "model.weights.h5")
    with pytest.raises(ForeignFormatError, match="is a link, not data"):
        hc.import_checkpoint(tmp_path / "m.keras", tmp_path / "back")
    with pytest.raises(ForeignFormatError, match="is a link, not data"):
        hc.import_checkpoint(tmp_path / "model.weights.h5", tmp_path / "back", model=small_models.bare())


def test_a_checkpoint_of_tensorflows_that_claims_more_than_there_is(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.ones((3, 5))})
    hc.export_checkpoint(tmp_path / "run", tmp_path / "cp.ckpt")
    (tmp_path / "cp.ckpt.data-00000-of-00001").write_bytes(b"short")
    with pytest.raises(CorruptError, match="is said to have shape"):
        hc.import_checkpoint(tmp_path / "cp.ckpt", tmp_path / "back")


@pytest.mark.filterwarnings("ignore")
def test_a_file_that_only_seems_to_be_a_keras_file_is_not_built_from(tmp_path: Path) -> None:
    """Keras 2 reads what is called ``.keras`` and is HDF5 without its safe mode."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Lambda(lambda x: x * 2), keras.layers.Dense(1)])
    model.save(tmp_path / "plain.h5")
    (tmp_path / "plain.h5").rename(tmp_path / "evil.keras")
    code = "import sys; from hpcckpt.cli import main; sys.exit(main(sys.argv[1:]))"
    there = [str(tmp_path / "evil.keras"), str(tmp_path / "out.h5")]
    command = [sys.executable, "-W", "ignore", "-c", code, "convert", *there]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode not in {0, 70}, done.stderr
    assert not (tmp_path / "out.h5").exists()
    assert "Traceback" not in done.stderr


def test_a_layer_that_reads_a_file_while_it_is_built_is_refused() -> None:
    config = {"class_name": "StringLookup", "config": {"name": "words", "vocabulary": "/etc/passwd"}}
    with pytest.raises(ConfigError, match="/etc/passwd"):
        refuse_code(config)


def test_an_operation_of_tensorflow_as_a_layer_is_refused() -> None:
    config = {"class_name": "TensorFlowOpLayer", "config": {"node_def": "{}", "constants": {}}}
    with pytest.raises(ConfigError, match="TensorFlowOpLayer"):
        refuse_code(config)


def test_a_directory_with_other_things_is_not_replaced_by_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "thesis.txt").write_text("years of work", encoding="utf-8")
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"model": model}).result()
    with pytest.raises(hc.errors.OptionError, match="other things"):
        hc.export_checkpoint(tmp_path / "run", tmp_path / "exports", "saved-model", model=model, overwrite=True)
    assert (tmp_path / "exports" / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def model_file(path: Path, config: Any) -> Path:
    """Write a file that Keras takes for a model of this architecture."""
    text = json.dumps(config)
    if path.suffix == ".json":
        path.write_text(text, encoding="utf-8")
    elif path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", text)
    else:
        with h5py.File(path, "w") as file:
            file.attrs["keras_version"], file.attrs["backend"] = "2.15.0", "tensorflow"
            file.attrs["model_config"] = text
            file.create_group("model_weights")
    return path


@pytest.mark.parametrize("suffix", [".h5", ".hdf5", ".keras", ".json"])
@pytest.mark.parametrize("what", HOSTILE)
def test_model_files_that_bring_code_are_refused(what: str, suffix: str, tmp_path: Path) -> None:
    path = model_file(tmp_path / f"m{suffix}", sequential_of(HOSTILE[what]))
    with pytest.raises(ConfigError, match="no code is run"):
        build_model(str(path), is_compiled=True)


def test_code_in_how_an_h5_file_was_compiled_is_refused(tmp_path: Path) -> None:
    path = model_file(tmp_path / "m.h5", sequential_of())
    with h5py.File(path, "a") as file:
        file.attrs["training_config"] = json.dumps({"loss": function("os", "system"), "optimizer_config": {}})
    with pytest.raises(ConfigError, match=r"os\.system"):
        build_model(str(path))


def lambda_model(witness: Path) -> keras.Model:
    """Return a model with a Lambda layer that makes a file whenever it is called."""
    place = str(witness)

    def call(x: Any) -> Any:
        import pathlib

        pathlib.Path(place).touch()
        return x

    entry = keras.Input((3,))
    return keras.Model(entry, keras.layers.Dense(2)(keras.layers.Lambda(call, output_shape=(3,))(entry)))


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5:UserWarning")
@pytest.mark.parametrize("is_source", [True, False], ids=["as source too", "as model"])
def test_a_lambda_in_an_h5_file_is_not_run(tmp_path: Path, is_source: bool) -> None:
    path, witness = tmp_path / "m.h5", tmp_path / "it ran"
    lambda_model(witness).save(path)
    weights = tmp_path / "w.weights.h5"
    lambda_model(witness).save_weights(weights)
    witness.unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="Lambda"):
        hc.import_checkpoint(path if is_source else weights, tmp_path / "run", model=str(path))
    assert not witness.exists()
    assert not (tmp_path / "run").exists()


def test_a_file_under_the_name_of_another_format_is_refused(tmp_path: Path) -> None:
    """Keras goes by what is in it, and would run what was not looked at."""
    config = sequential_of(HOSTILE["a Lambda layer, as Keras 2 has it"])
    model_file(tmp_path / "h5.h5", config).rename(tmp_path / "m.keras")
    (tmp_path / "m.h5").mkdir()
    with pytest.raises(CorruptError, match="not what its name says"):
        build_model(str(tmp_path / "m.keras"))
    with pytest.raises(ForeignFormatError, match="is not a file"):
        build_model(str(tmp_path / "m.h5"))


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5:UserWarning")
@pytest.mark.parametrize("suffix", [".h5", ".keras", ".json"])
def test_a_model_without_code_is_built_from_its_file(tmp_path: Path, suffix: str) -> None:
    model = small_models.functional()
    path = tmp_path / f"m{suffix}"
    path.write_text(model.to_json(), encoding="utf-8") if suffix == ".json" else model.save(path)
    assert build_model(str(path)).count_params() == model.count_params()
