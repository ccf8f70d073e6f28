"""Configurations that are broken in many ways, as users meet them: by ``hpcckpt train --check``.

Each is told by its place and with what to do about it; no traceback; exit code 2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Train = Callable[..., Any]

DATA = '"datasets": {"ktf.datasets.digits.from_raw": {"batch_size": 64}}'
MODEL = (
    '"model": {"ktf.models.OneHeadNet": {"num_outputs": 10, "base_model": {"ktf.models.networks.SmallConvNet": {}}}}'
)
LOSS = '"loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": true}}'
DENSE = "tf.keras.layers.Dense"


def config(*keys: str, data: str = DATA, model: str = MODEL, loss: str = LOSS, second: str = "") -> str:
    first = ",\n  ".join(each for each in (data, model, loss, *keys) if each)
    return f"[{{\n  {first}\n}}{second and ', ' + second}]"


def with_base(base: str) -> str:
    return config(model=f'"model": {{"ktf.models.OneHeadNet": {{"num_outputs": 10, "base_model": {base}}}}}')


def with_loop(arguments: str) -> str:
    return config(f'"train_loop": {{"ktf.train.KerasTrainLoop": {{{arguments}}}}}')


def nested(levels: int) -> str:
    return '{"tf.keras.layers.TimeDistributed": {"layer": ' * levels + "{}" + "}}" * levels


BASE = "[0].model.ktf.models.OneHeadNet"
LOOP = "[0].train_loop.ktf.train.KerasTrainLoop"

# what is wrong, the configuration, the place, the remedy
BROKEN: dict[str, tuple[str, str, str]] = {
    # typos at every level
    "a key of a cycle": (
        config('"optimizr": {"tf.keras.optimizers.Adam": {}}'),
        "[0].optimizr: ",
        "did you mean 'optimizer'?",
    ),
    "a key of a later cycle": (config(second='{"trainloop": {}}'), "[1].trainloop: ", "did you mean 'train_loop'?"),
    "a key of checkpoint": (
        config('"checkpoint": {"max_to_kep": 3}'),
        "[0].checkpoint.max_to_kep: ",
        "did you mean 'max_to_keep'?",
    ),
    "a key of lms": (config('"lms": {"memory_buget": 1}'), "[0].lms.memory_buget: ", "did you mean 'memory_budget'?"),
    "an alias": (
        config('"optimizer": {"tff.keras.optimizers.Adam": {}}'),
        "[0].optimizer.tff.keras.optimizers.Adam: ",
        "did you mean 'tf'?",
    ),
    "a module": (
        config('"optimizer": {"tf.keras.optimisers.Adam": {}}'),
        "[0].optimizer.tf.keras.optimisers.Adam: ",
        "did you mean 'optimizers'?",
    ),
    "a class": (
        config('"optimizer": {"tf.keras.optimizers.Adan": {}}'),
        "[0].optimizer.tf.keras.optimizers.Adan: ",
        "did you mean 'Adam'?",
    ),
    "an argument": (
        config('"optimizer": {"tf.keras.optimizers.Adam": {"learing_rate": 1}}'),
        "[0].optimizer.tf.keras.optimizers.Adam.learing_rate: ",
        "did you mean 'learning_rate'?",
    ),
    "a nested class": (
        with_base('{"tf.keras.applications.MobilNetV2": {}}'),
        f"{BASE}.base_model.tf.keras.applications.MobilNetV2: ",
        "did you mean 'MobileNetV2'?",
    ),
    "a nested argument": (
        with_base('{"ktf.models.networks.SmallConvNet": {"filter": [8]}}'),
        f"{BASE}.base_model.ktf.models.networks.SmallConvNet.filter: ",
        "did you mean 'filters'?",
    ),
    "a class in a list": (
        config('"metrics": ["accuracy", {"tf.keras.metrics.AUCC": {}}]'),
        "[0].metrics[1].tf.keras.metrics.AUCC: ",
        "did you mean 'AUC'?",
    ),
    "a callback": (
        with_loop('"callbacks": [{"tf.keras.callbacks.TensorBord": {}}]'),
        f"{LOOP}.callbacks[0].tf.keras.callbacks.TensorBord: ",
        "did you mean 'TensorBoard'?",
    ),
    "an argument of the loop": (with_loop('"epochs": 3'), f"{LOOP}.epochs: ", "did you mean 'num_epochs'?"),
    "the name of a loss": (
        config(loss='"loss": "sparse_categorical_crosentropy"'),
        "[0].loss: ",
        "did you mean 'sparse_categorical_crossentropy'?",
    ),
    "a data set": (
        config(data='"datasets": {"ktf.datasets.digit.from_raw": {}}'),
        "[0].datasets.ktf.datasets.digit.from_raw: ",
        "did you mean 'digits'?",
    ),
    # wrong types
    "a cycle that is a text": ('["train"]', "[0]: ", 'write { "datasets"'),
    "a number that is a text": (config('"seed": "42"'), "[0].seed: ", "give a number from 0 to 4294967295, or null"),
    "a truth that is a number": (
        config('"checkpoint": {"async_save": 1}'),
        "[0].checkpoint.async_save: ",
        "give true or false",
    ),
    "metrics that are no list": (
        config('"metrics": {"tf.keras.metrics.AUC": {}}'),
        "[0].metrics: ",
        "write a list, also for one metric",
    ),
    "a factory that is a text": (
        config('"optimizer": "tf.keras.optimizers.Adam"'),
        "[0].optimizer: ",
        'write {"tf.keras.optimizers.Adam": {}}',
    ),
    "arguments that are a list": (
        config('"optimizer": {"tf.keras.optimizers.Adam": [0.1]}'),
        "[0].optimizer.tf.keras.optimizers.Adam: ",
        "or {} for none",
    ),
    "epochs that are a text": (with_loop('"num_epochs": "ten"'), f"{LOOP}.num_epochs: ", "give a whole number"),
    "a layer as optimizer": (
        config(f'"optimizer": {{"{DENSE}": {{"units": 1}}}}'),
        f"[0].optimizer.{DENSE}: ",
        "write one of tf.keras.optimizers",
    ),
    "Python's True": (
        config(loss='"loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}}'),
        "c.hjson:4: without quotes the text runs to the end of its line: ",
        "write true",
    ),
    # forms
    "two keys in a factory": (
        config('"optimizer": {"tf.keras.optimizers.Adam": {}, "tf.keras.optimizers.SGD": {}}'),
        "[0].optimizer: ",
        "keep one",
    ),
    "arguments beside the factory": (
        config('"optimizer": {"tf.keras.optimizers.Adam": {}, "learning_rate": 1}'),
        "[0].optimizer: ",
        "put its arguments inside",
    ),
    "an empty factory": (config('"optimizer": {}'), "[0].optimizer: ", "write a factory"),
    "a duplicate key": (config('"seed": 1, "seed": 2'), "[0].seed: ", "keep one of them"),
    "a missing key": (config(loss=""), "[0].loss: ", "the first cycle must say it"),
    "a missing argument": (
        config(model='"model": {"ktf.models.OneHeadNet": {}}'),
        f"{BASE}: ",
        'write "num_outputs": …',
    ),
    "a nesting too deep": (
        config(model=f'"model": {nested(30)}'),
        "[0].model.tf.keras.layers.TimeDistributed.layer.",
        "take it apart",
    ),
    "no cycle at all": ("[]", "c.hjson: ", "a configuration is a list of train cycles"),
    "an empty file": ("", "c.hjson: ", "a configuration is a list of train cycles"),
    "a bracket that is missing": (config()[:-1], "c.hjson:", "correct the syntax there"),
    # files that are missing
    "a directory of data": (
        config(data='"datasets": {"ktf.datasets.mnist.from_tfrecord": {"directory": "no/such"}}'),
        "[0].datasets.ktf.datasets.mnist.from_tfrecord: ",
        "correct",
    ),
    "a file of data": (
        config(data='"datasets": {"ktf.datasets.mnist.from_raw": {"path": "no/such.npz"}}'),
        "[0].datasets.ktf.datasets.mnist.from_raw: ",
        "correct",
    ),
    "a file of weights": (
        with_base('{"tf.keras.applications.MobileNetV2": {"weights": "no.h5", "include_top": false}}'),
        f"{BASE}.base_model.tf.keras.applications.MobileNetV2: ",
        "correct its arguments",
    ),
    # what is not allowed
    "a program": (
        config(model='"model": {"os.system": {"command": "echo it ran"}}'),
        "[0].model.os.system: ",
        "@export_config",
    ),
    "another package": (
        config(data='"datasets": {"mypackage.data": {}}'),
        "[0].datasets.mypackage.data: ",
        "--allow mypackage",
    ),
    "a Lambda layer": (
        with_base('{"tf.keras.layers.Lambda": {"function": "x"}}'),
        f"{BASE}.base_model.tf.keras.layers.Lambda: ",
        "export",
    ),
    "a file writer": (
        config(data='"datasets": {"tf.io.write_file": {}}'),
        "[0].datasets.tf.io.write_file: ",
        "--allow tf.io.write_file",
    ),
    "a serialized layer": (
        with_base('{"class_name": "Lambda", "config": {}}'),
        f"{BASE}.base_model: ",
        "write a factory instead",
    ),
    "a private name": (
        config('"optimizer": {"tf.keras.optimizers.Adam.__init__.__globals__": {}}'),
        "[0].optimizer.tf.keras.",
        "public names",
    ),
    # what only shows when it is built
    "a value that Keras refuses": (
        with_base(f'{{"tf.keras.Sequential": {{"layers": [{{"{DENSE}": {{"units": -1}}}}]}}}}'),
        f"{BASE}.base_model.tf.keras.Sequential.layers[0].{DENSE}: ",
        "correct its arguments",
    ),
    "a submodel that is not there": (
        with_loop('"freeze_submodels": ["base_model", "bse_model@x"]'),
        f"{LOOP}.freeze_submodels[1]: ",
        "base_model",
    ),
    "an unknown backend": (
        config('"checkpoint": {"backend": "hdf"}'),
        "[0].checkpoint.backend: ",
        "did you mean 'hdf5'?",
    ),
    # what the checkpointer and Large Model Support would refuse
    "an option that the backend has not": (
        config('"checkpoint": {"backend_options": {"bogus": 1}}'),
        "[0].checkpoint.backend_options: ",
        "has no such option",
    ),
    "an option that hdf5 has not, in a later cycle": (
        config(second='{"checkpoint": {"backend": "hdf5", "backend_options": {"design": "nope"}}}'),
        "[1].checkpoint.backend_options: ",
        "is not one of alignment",
    ),
    "an option that is not the user's": (
        config('"checkpoint": {"backend_options": {"threads": 2, "self": 1}}'),
        "[0].checkpoint.backend_options: ",
        "has no such option",
    ),
    "a plugin that is not there": (
        config('"checkpoint": {"backend": "plugin:nonexist"}'),
        "[0].checkpoint.backend: ",
        "not found",
    ),
    "a variant of a backend without variants": (
        config('"checkpoint": {"backend": "rankfile:x"}'),
        "[0].checkpoint.backend: ",
        "has no variants",
    ),
    "a direction without a metric": (
        config('"checkpoint": {"monitor": "max:", "keep_best": 1}'),
        "[0].checkpoint.monitor: ",
        "write 'max:METRIC'",
    ),
    "a path with a control character": (
        config('"checkpoint": {"directory": "a\\u0000b", "scratch": "a\\nb"}'),
        '[0].checkpoint.directory: "a\\u0000b"',
        '[0].checkpoint.scratch: "a\\nb" is not accepted',
    ),
    "a directory of Large Model Support without a name": (
        config('"lms": {"directory": ""}'),
        "[0].lms.directory: ",
        "give a path, or null",
    ),
    "a size that cannot be counted": (
        config(f'"lms": {{"memory_budget": "{"9" * 400}G"}}'),
        "[0].lms: memory_budget: ",
        "bytes, as a number",
    ),
    "a level that is no number": (config('"lms": {"serialization": ["-"]}'), "[0].lms: serialization: '-'", "such as"),
    "a level that is empty": (config('"lms": {"serialization": [""]}'), "[0].lms: serialization: ''", "such as"),
    "a slice of levels without a step": (
        config('"lms": {"serialization": ["::0"]}'),
        "[0].lms: serialization: '::0'",
        "such as",
    ),
}


def test_there_are_forty_of_them() -> None:
    assert len(BROKEN) >= 40


@pytest.mark.parametrize("what", BROKEN)
def test_it_is_told_with_its_place_and_the_remedy(what: str, train: Train, tmp_path: Path) -> None:
    text, place, remedy = BROKEN[what]
    (tmp_path / "c.hjson").write_text(text, encoding="utf-8")
    result = train("c.hjson", "--check")
    assert result.code == 2, result.err
    assert result.err.startswith("hpcckpt: error: c.hjson:")
    assert place in result.err
    assert remedy in result.err.split(place, 1)[1]
    assert "Traceback" not in result.err + result.out
    assert result.out == ""
    assert not list(tmp_path.glob("runs*"))


@pytest.mark.parametrize("what", ["a class", "a bracket that is missing", "a submodel that is not there"])
def test_programs_get_every_problem_on_its_own(what: str, train: Train, tmp_path: Path) -> None:
    text, place, remedy = BROKEN[what]
    (tmp_path / "c.hjson").write_text(text, encoding="utf-8")
    result = train("c.hjson", "--check", "--json")
    assert result.code == 2
    error = json.loads(result.out)["error"]
    assert error["kind"] == "train-config"
    assert any(place.startswith(f"{each['where']}"[: len(place) - 2]) for each in error["problems"])
    assert remedy in json.dumps(error, ensure_ascii=False)


def test_several_broken_things_are_told_at_once(train: Train, tmp_path: Path) -> None:
    text = config(
        '"optimizer": {"tf.keras.optimizers.Adan": {}}', '"metrics": [{"os.system": {}}]',
        model='"model": {"ktf.models.OneHeadNet": {"num_output": 10}}',
    )  # fmt: skip
    (tmp_path / "c.hjson").write_text(text, encoding="utf-8")
    lines = train("c.hjson", "--check").err.splitlines()
    assert lines[0] == "hpcckpt: error: c.hjson: 4 problems"
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [
        f"{BASE}.num_output", BASE, "[0].optimizer.tf.keras.optimizers.Adan", "[0].metrics[0].os.system",
    ]  # fmt: skip
