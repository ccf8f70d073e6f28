"""The allow-list: what a configuration may name, and many ways to break out of it, each refused with what to do."""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from hpcckpt.train import ktf, models
from hpcckpt.train.config.factories import Factory
from hpcckpt.train.config_errors import ConfigProblem, RefusedError, TrainConfigError
from hpcckpt.train.names import keras_resolver, package_resolver
from hpcckpt.train.names.allow_list import Catalogue, canonical
from hpcckpt.train.names.export_config import export_config
from hpcckpt.train.names.keras_resolver import NAMESPACES

pytestmark = pytest.mark.one_case

IS_KERAS_3 = keras.__version__.startswith("3")
Find = Callable[..., list[ConfigProblem]]


def refused(name: str, allow: tuple[str, ...] = (), *, is_called: bool = True) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        Catalogue(allow).find(name, is_called=is_called)
    assert caught.value.text
    assert caught.value.remedy
    assert "\n" not in f"{caught.value.text}{caught.value.remedy}"
    return caught.value


# -- what is open ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "thing"),
    [
        ("tf.keras.layers.Dense", tf.keras.layers.Dense),
        ("keras.layers.Dense", tf.keras.layers.Dense),
        ("tensorflow.keras.layers.Dense", tf.keras.layers.Dense),
        ("tf.keras.Sequential", tf.keras.Sequential),
        ("tf.keras.models.Sequential", tf.keras.Sequential),
        ("tf.keras.Input", tf.keras.Input),
        ("tf.keras.optimizers.Adam", tf.keras.optimizers.Adam),
        ("tf.optimizers.Adam", tf.keras.optimizers.Adam),
        ("tf.losses.MeanSquaredError", tf.keras.losses.MeanSquaredError),
        ("tf.keras.optimizers.schedules.CosineDecay", tf.keras.optimizers.schedules.CosineDecay),
        ("tf.keras.metrics.SparseCategoricalAccuracy", tf.keras.metrics.SparseCategoricalAccuracy),
        ("tf.keras.callbacks.TensorBoard", tf.keras.callbacks.TensorBoard),
        ("tf.keras.callbacks.EarlyStopping", tf.keras.callbacks.EarlyStopping),
        ("tf.keras.applications.MobileNetV2", tf.keras.applications.MobileNetV2),
        ("tf.keras.applications.resnet50.ResNet50", tf.keras.applications.ResNet50),
        ("tf.keras.initializers.HeNormal", tf.keras.initializers.HeNormal),
        ("tf.keras.regularizers.L2", tf.keras.regularizers.L2),
        ("tf.keras.regularizers.l2", tf.keras.regularizers.l2),
        ("tf.keras.constraints.MaxNorm", tf.keras.constraints.MaxNorm),
        ("tf.keras.mixed_precision.LossScaleOptimizer", tf.keras.mixed_precision.LossScaleOptimizer),
        ("tf.data.TFRecordDataset", tf.data.TFRecordDataset),
    ],
)
def test_parts_of_models_and_trainings_are_open(name: str, thing: Any) -> None:
    assert Catalogue().find(name) is thing


@pytest.mark.parametrize(
    "name",
    ["tf.nn.relu", "tf.math.log", "tf.keras.activations.relu", "tf.keras.losses.mean_squared_error",
     "tf.keras.metrics.mean_absolute_error"],
)  # fmt: skip
def test_functions_are_handed_over_not_called(name: str) -> None:
    thing: Any = keras if name.startswith("tf.keras.") else tf
    for part in name.removeprefix("tf.").removeprefix("keras.").split("."):
        thing = getattr(thing, part)
    assert Catalogue().find(name, is_called=False) is thing
    assert f'{{"@": "{name}"}}' in refused(name).remedy


@pytest.mark.parametrize(
    "name",
    [
        "hpcckpt.train.KerasTrainLoop",
        "ktf.train.KerasTrainLoop",
        "ktf.KerasTrainLoop",
        "ktf.models.OneHeadNet",
        "ktf.train.models.OneHeadNet",
        "ktf.models.networks.SmallConvNet",
        "hpcckpt.train.datasets.digits.from_raw",
        "ktf.datasets.mnist.from_tfrecord",
    ],
)
def test_what_is_ours_is_open_by_all_its_names(name: str) -> None:
    found = Catalogue().find(name)
    assert found.__name__ == name.rpartition(".")[2]
    assert found.__module__.startswith("hpcckpt.train.")


def test_everything_our_packages_publish_for_configurations_is_found() -> None:
    import hpcckpt.train.losses
    import hpcckpt.train.models

    for package in (hpcckpt.train.losses, hpcckpt.train.models, hpcckpt.train.models.networks):
        names = package_resolver.open_names(package)
        assert set(names) == set(package.__all__)
        for name in names:
            if inspect.isclass(getattr(package, name)):
                assert Catalogue().find(f"{package.__name__}.{name}") is getattr(package, name)


def test_aliases() -> None:
    same = {
        "tf.keras.losses.X": ("keras", "losses", "X"),
        "tf.losses.X": ("keras", "losses", "X"),
        "keras.X": ("keras", "X"),
        "ktf.train.X": ("hpcckpt", "train", "X"),
        "ktf.models.X": ("hpcckpt", "train", "models", "X"),
        "hpcckpt.train.X": ("hpcckpt", "train", "X"),
        "tf.io.X": ("tensorflow", "io", "X"),
    }
    assert {name: canonical(name) for name in same} == same


# -- breaking out ----------------------------------------------------------------------------------

REFUSED = {
    # other libraries, directly and through what Keras, TensorFlow and we import
    "os.system": "'os' is no root",
    "builtins.eval": "'builtins' is no root",
    "subprocess.Popen": "'subprocess' is no root",
    "numpy.load": "'numpy' is no root",
    "importlib.import_module": "'importlib' is no root",
    "tf.os.system": "there is no 'os' in tf",
    "tf.keras.os.system": "there is no 'os' in tf.keras",
    "tf.keras.layers.os.system": "there is no 'os' in tf.keras.layers",
    "tf.compat.v1.gfile.Open": "is not open to configurations",
    "tensorflow.python.platform.gfile.GFile": "there is no 'python' in tf",
    "tensorflow.core.x": "",
    "keras.src.layers.Lambda": "",
    "keras.api.layers.Dense": "",
    "keras.src.utils.file_utils.os.system": "",
    "hpcckpt.train.config.factories.re.compile": "there is no 'config'",
    "hpcckpt.train.run.environment.os.system": "there is no 'run'",
    "hpcckpt.train.models.importlib.import_module": "there is no 'importlib'",
    "hpcckpt.train.datasets.importlib.import_module": "there is no 'importlib'",
    "hpcckpt.train.models.configured.base_config": "there is no 'configured'",
    "hpcckpt.tools.convert.read_torch.read": "is not open",
    "hpcckpt.native.plugins.load": "is not open",
    "hpcckpt.tmci.plugins.load": "is not open",
    "hpcckpt.load": "is not open",
    "ktf.os.system": "there is no 'os'",
    # private names
    "tf.keras.__class__": "'__class__' is no public name",
    "tf.keras.layers.Dense.__init__.__globals__": "'__init__' is no public name",
    "tf.keras.layers.__builtins__.eval": "'__builtins__' is no public name",
    "tf.keras.__internal__.layers.BaseRandomLayer": "'__internal__' is no public name",
    "keras._tf_keras.keras.layers.Dense": "'_tf_keras' is no public name",
    "tf.keras.layers._Dense": "'_Dense' is no public name",
    "hpcckpt.train.datasets._FOLDERS.append": "'_FOLDERS' is no public name",
    # what belongs to a class
    "tf.keras.Sequential.from_config": "",
    "tf.keras.layers.Dense.from_config": "is a class, and what belongs to it cannot be named",
    "tf.keras.Model.load_weights": "",
    "tf.data.Dataset.from_generator": "is not open",
    "tf.data.Dataset.load": "is not open",
    "hpcckpt.train.models.OneHeadNet.from_config": "is no package, and what belongs to it cannot be named",
    "hpcckpt.train.KerasTrainLoop.fit": "what belongs to hpcckpt.train.KerasTrainLoop cannot be named",
    # what fetches, loads, writes, or builds whatever it is told
    "tf.keras.utils.get_file": "it downloads, writes files",
    "tf.keras.utils.get_custom_objects": "it downloads, writes files",
    "tf.keras.utils.deserialize_keras_object": "it downloads, writes files",
    "tf.keras.utils.custom_object_scope": "it downloads, writes files",
    "tf.keras.utils.register_keras_serializable": "it downloads, writes files",
    "tf.keras.models.load_model": "it loads and saves models",
    "tf.keras.models.save_model": "it loads and saves models",
    "tf.keras.models.model_from_json": "it loads and saves models",
    "tf.keras.models.model_from_config": "",
    "tf.keras.models.clone_model": "it loads and saves models",
    "tf.keras.saving.load_model": "it loads and saves models",
    "tf.keras.saving.deserialize_keras_object": "it loads and saves models",
    "tf.keras.layers.deserialize": "",
    "tf.keras.optimizers.deserialize": "",
    "tf.keras.optimizers.get": "",
    "tf.keras.losses.deserialize": "",
    "tf.keras.activations.get": "",
    "tf.keras.initializers.deserialize": "",
    "tf.keras.datasets.imdb.load_data": "it downloads",
    "tf.keras.backend.function": "it reaches into Keras itself",
    "tf.keras.preprocessing.image.load_img": "is not open",
    "tf.keras.export.ExportArchive": "is not open",
    "tf.keras.mixed_precision.set_global_policy": "is not open",
    "tf.keras.applications.imagenet_utils.decode_predictions": "is not open",
    "tf.io.read_file": "tf.io.read_file is not open to configurations",
    "tf.io.write_file": "tf.io.write_file is not open to configurations",
    "tf.io.gfile.rmtree": "is not open to configurations",
    "tf.py_function": "is not open to configurations",
    "tf.numpy_function": "is not open to configurations",
    "tf.load_op_library": "is not open to configurations",
    "tf.load_library": "is not open to configurations",
    "tf.saved_model.load": "is not open to configurations",
    "tf.data.experimental.load": "is not open",
    "tf.data.experimental.TFRecordWriter": "is not open",
    "tf.data.experimental.service.DispatchServer": "is not open",
    "tf.config.experimental_connect_to_cluster": "is not open",
    "tf.debugging.experimental.enable_dump_debug_info": "is not open",
    "tf.summary.create_file_writer": "is not open",
    "hpcckpt.train.datasets.digits.convert": "hpcckpt.train.datasets.digits.convert is not open",
    "hpcckpt.train.datasets.share": "is not open",
    "hpcckpt.train.Environment": "hpcckpt.train.Environment is not open to configurations",
    "hpcckpt.train.export_config": "is not open",
    # what carries code
    "tf.keras.layers.Lambda": "it carries code, and a configuration runs none",
    "keras.layers.Lambda": "it carries code",
    "tf.keras.callbacks.LambdaCallback": "it carries code",
    "tf.keras.callbacks.LearningRateScheduler": "it carries code",
    # callbacks that do more than look
    "tf.keras.callbacks.BackupAndRestore": "it removes a directory",
    "tf.keras.callbacks.RemoteMonitor": "it sends data to any address",
    # no such names
    "tf": "nothing of the name 'tf' is exported",
    "tf.": "has an empty part",
    ".tf": "has an empty part",
    "tf..keras": "has an empty part",
    "tf.keras": "",
    "tf.keras.layers": "tf.keras.layers is a module",
    "hpcckpt.train": "is not open",
    "hpcckpt.train.models": "hpcckpt.train.models is a module",
    "tf.keras.layers.Dense()": "is no public name",
    "tf.keras.layers.Dense; import os": "is no public name",
    "tf keras": "nothing of the name",
    "": "nothing of the name",
    "tf.nn": "",
    "tf.nn.experimental.general_dropout": "",
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_else_may_be_called(name: str) -> None:
    assert REFUSED[name] in refused(name).text


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_else_may_be_handed_over(name: str) -> None:
    refused(name, is_called=False)


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 3 only")
@pytest.mark.parametrize("name", ["TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"])
def test_layers_of_keras_3_that_load_or_carry_code_are_refused(name: str) -> None:
    if hasattr(tf.keras.layers, name):
        assert "is not open to configurations" in refused(f"tf.keras.layers.{name}").text


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 3 only")
@pytest.mark.parametrize(
    "name",
    [
        "tf.keras.wrappers.SKLearnClassifier",
        "tf.keras.tree.map_structure",
        "tf.keras.ops.vectorized_map",
        "tf.keras.legacy.saving.serialize_keras_object",
        "tf.keras.callbacks.OrbaxCheckpoint",
        "tf.keras.distribution.initialize",
    ],
)
def test_what_is_new_in_keras_3_is_not_open_by_itself(name: str) -> None:
    refused(name)


def test_a_class_made_of_a_carrier_of_code_is_refused_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Harmless(tf.keras.layers.Lambda):
        pass

    Harmless.__module__ = "keras.src.layers.harmless"
    monkeypatch.setattr(tf.keras.layers, "Harmless", Harmless, raising=False)
    assert "carries code" in refused("tf.keras.layers.Harmless").text


def test_what_only_passes_through_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign(tf.keras.layers.Layer):
        pass

    monkeypatch.setattr(tf.keras.layers, "Foreign", Foreign, raising=False)
    monkeypatch.setattr(tf.keras.layers, "system", os, raising=False)
    monkeypatch.setattr(tf.keras.layers, "Path", Path, raising=False)
    assert "is not Keras' own but" in refused("tf.keras.layers.Foreign").text
    refused("tf.keras.layers.system")
    refused("tf.keras.layers.system.system")
    refused("tf.keras.layers.Path")


def things_that_are_open() -> list[tuple[str, Any]]:
    spaces = [space.split(".") if space else [] for space in NAMESPACES]
    names = [".".join(["tf.keras", *space, name]) for space in spaces for name in keras_resolver.open_names(space)]
    return [(name, Catalogue().find(name)) for name in names]


def test_what_is_open_in_keras_is_a_part_of_a_model_or_a_training() -> None:
    kinds = ["layers.Layer", "losses.Loss", "metrics.Metric", "optimizers.Optimizer", "optimizers.legacy.Optimizer"]
    kinds += ["callbacks.Callback", "initializers.Initializer", "regularizers.Regularizer", "constraints.Constraint"]
    kinds += ["optimizers.schedules.LearningRateSchedule"]
    bases = tuple(found for found in map(keras_resolver.base, kinds) if found is not None)
    assert len(bases) >= len(kinds) - 1
    others = {
        name for name, thing in things_that_are_open() if not (inspect.isclass(thing) and issubclass(thing, bases))
    }
    known = {
        "tf.keras.Input", "tf.keras.layers.Input", "tf.keras.layers.InputSpec", "tf.keras.regularizers.l1_l2",
        "tf.keras.mixed_precision.Policy", "tf.keras.mixed_precision.DTypePolicy",
        "tf.keras.mixed_precision.LossScaleOptimizer", "tf.keras.random.SeedGenerator",
    }  # fmt: skip
    builders = {name for name in others if name.startswith("tf.keras.applications.")}
    assert others - builders <= known
    assert len(builders) >= 40
    assert len(things_that_are_open()) > 250


# -- what an argument can do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "serialized",
    [
        {"class_name": "Lambda", "config": {"function": "x"}},
        {"module": "os", "class_name": "function", "config": "system", "registered_name": "system"},
        {"class_name": "__lambda__", "config": {"value": "4wEA"}},
        {"class_name": "Dense", "config": {}},
    ],
)
def test_what_keras_would_build_of_an_argument_is_refused(
    serialized: dict[str, Any], cycle: Callable[..., Any], problems_of: Find
) -> None:
    for value in (serialized, [serialized], {"a": serialized}, {"a": [{"b": serialized}]}):
        arguments = {"units": 3, "activation": value}
        model = {"tf.keras.Sequential": {"layers": [{"tf.keras.layers.Dense": arguments}]}}
        found = problems_of([cycle(model=model)])
        assert any("Keras would build what a mapping with 'class_name' says" in problem.text for problem in found)
        assert all(problem.where.startswith("[0].model.tf.keras.Sequential.layers[0]") for problem in found)


def test_the_arguments_of_a_factory_are_no_serialized_object_either(
    cycle: Callable[..., Any], problems_of: Find
) -> None:
    model = {"tf.keras.Sequential": {"class_name": "Lambda", "config": {}}}
    assert "no arguments but Keras' serialized form" in problems_of([cycle(model=model)])[0].text


def test_a_text_is_never_looked_up() -> None:
    for text in ("os.system", "tf.nn.relu", "__import__('os')"):
        factory = Factory("tf.keras.regularizers.L2", {"l2": text})
        with pytest.raises(TrainConfigError, match="L2"):  # Keras: it wants a number
            factory.build(Catalogue())


@pytest.mark.parametrize("name", ["/home/me/.bashrc", "~/.profile", "x.py", "../.ssh/authorized_keys", "x.csv/.bashrc"])
def test_a_table_is_written_to_nothing_that_could_be_run(name: str) -> None:
    factory = Factory("tf.keras.callbacks.CSVLogger", {"filename": name}, "[0].train_loop.X.callbacks[0]")
    with pytest.raises(TrainConfigError, match=r"CSVLogger\.filename: .* let it end with one of \.csv") as caught:
        factory.build(Catalogue())
    assert caught.value.problems[0].where == "[0].train_loop.X.callbacks[0].tf.keras.callbacks.CSVLogger.filename"
    assert Factory("tf.keras.callbacks.CSVLogger", {"filename": "runs/log.csv"}).build(Catalogue())


def test_a_refused_factory_is_not_built_even_if_nobody_checked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(os, "system", called.append)
    monkeypatch.setattr(builtins, "eval", called.append)
    for name in ("os.system", "builtins.eval", "posix.system"):
        for factory in (Factory(name, {"command": "true"}), Factory("tf.keras.layers.Dense", {"units": Factory(name)})):
            with pytest.raises(TrainConfigError, match="is no root that configurations may name"):
                factory.build(Catalogue())
    assert not called


def test_checking_a_configuration_imports_nothing_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("print('it ran')", encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from hpcckpt.train.names.allow_list import Catalogue\nfrom hpcckpt.train.config_errors import RefusedError\n"
        "for name in ('evil.x', 'evil', 'tf.evil.x', 'tf.keras.evil.x', 'hpcckpt.train.evil.x', 'ktf.evil.x'):\n"
        "    try: Catalogue().find(name)\n"
        "    except RefusedError: print('refused')\n"
    )
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["refused"] * 6


# -- what is said ----------------------------------------------------------------------------------


def test_a_bare_name_is_not_sent_to_a_package_that_is_allowed_already() -> None:
    assert refused("my_data", ("json",)).remedy.startswith("export it in a package that is allowed")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tf.keras.optimizers.Adan", "there is no 'Adan' in tf.keras.optimizers; did you mean 'Adam'?"),
        ("tf.keras.aplicatons.MobileNetV2", "there is no 'aplicatons' in tf.keras; did you mean 'applications'?"),
        ("tf.kears.layers.Dense", "there is no 'kears' in tf; did you mean 'keras'?"),
        ("tff.keras.layers.Dense", "'tff' is no root that configurations may name; did you mean 'tf'?"),
        ("tf.keras.layers.Adam", "there is no 'Adam' in tf.keras.layers; did you mean 'tf.keras.optimizers.Adam'?"),
        ("tf.keras.Dense", "there is no 'Dense' in tf.keras; did you mean 'tf.keras.layers.Dense'?"),
        ("Adam", "nothing of the name 'Adam' is exported; did you mean 'tf.keras.optimizers.Adam'?"),
        ("OneHeadNet", "nothing of the name 'OneHeadNet' is exported; did you mean 'hpcckpt.train.models.OneHeadNet'?"),
        ("ktf.models.OneHedNet", "there is no 'OneHedNet' in hpcckpt.train.models; did you mean 'OneHeadNet'?"),
        ("ktf.train.KerasTrainLop", "there is no 'KerasTrainLop' in hpcckpt.train; did you mean 'KerasTrainLoop'?"),
        ("ktf.model.OneHeadNet", "there is no 'model' in hpcckpt.train; did you mean 'models'?"),
        ("ktf.datasets.digit.from_raw", "there is no 'digit' in hpcckpt.train.datasets; did you mean 'digits'?"),
        ("ktf.datasets.digits.from_tfrecords", "in hpcckpt.train.datasets.digits; did you mean 'from_tfrecord'?"),
        (
            "ktf.datasets.digits.afnist.from_tfrecord",
            "no 'afnist' in hpcckpt.train.datasets.digits; did you mean 'affnist'?",
        ),
        ("hpcckpt.train.LeNet5", "there is no 'LeNet5' in hpcckpt.train; did you mean 'hpcckpt.train.models.LeNet5'?"),
        ("tf.keras.metrics.sparse_categorical_accuracy", 'write {"tf.keras.metrics.SparseCategoricalAccuracy": {}}'),
        ("mypackage.Net", "start with --allow mypackage if you trust this file"),
        ("KerasTrainLoop", "is exported; did you mean 'hpcckpt.train.KerasTrainLoop'?"),
        ("my_data", "is exported; if a package of yours exports it (@export_config), start with --allow PACKAGE"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest_right_one(name: str, says: str) -> None:
    error = refused(name)
    assert says in f"{error.text}; {error.remedy}"


@pytest.mark.parametrize(
    "name",
    [
        "ktf.KerasTrainLoop",
        "ktf.train.KerasTrainLoop",
        "ktf.models.OneHeadNet",
        "ktf.models.networks.SmallResNet",
        "ktf.models.losses.SmoothedSparseCategoricalCrossentropy",
        "ktf.losses.SmoothedSparseCategoricalCrossentropy",
        "ktf.datasets.digits.affnist.from_tfrecord",
    ],
)
def test_a_name_of_ktf_means_the_same_in_configurations_and_programs(name: str) -> None:
    parts = name.split(".")[1:]
    home = ktf if len(parts) > 1 else ktf.train
    assert functools.reduce(getattr, parts, home) is Catalogue().find(name)


def test_programs_have_no_name_by_ktf_that_hpcckpt_has_not() -> None:
    assert {"Environment", "export_config"} < set(dir(ktf.train))
    assert dir(ktf.models) == sorted([*models.__all__, "losses"])
    with pytest.raises(AttributeError, match=r"module 'ktf\.train' has no attribute 'trainer'"):
        _ = ktf.train.trainer


def test_nobody_is_told_to_allow_all_of_python() -> None:
    assert "--allow" not in refused("os.system").remedy


def test_a_bare_name_is_told_with_the_nearest_exported_one() -> None:
    @export_config
    class MyCustomModel:
        pass

    assert Catalogue().find("MyCustomModel") is MyCustomModel
    assert refused("MyCustomModle").remedy == "did you mean 'MyCustomModel'?"


# -- opening more ----------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's package: its own class, one of others, a module below, an exported function."""
    name = f"package_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        "import os\nfrom collections import OrderedDict\nfrom hpcckpt.train import export_config\n"
        "class Net:\n    def __init__(self, size=1): self.size = size\n"
        "    @classmethod\n    def of(cls, size): return cls(size)\n"
        "class _Private: pass\n"
        "@export_config\ndef exported_one(): return 1\n"
        "ANSWER = 42\n",
        encoding="utf-8",
    )
    (tmp_path / name / "more.py").write_text(
        "from . import Net\nfrom hpcckpt.train import export_config\nclass Other: pass\n"
        "@export_config\ndef exported_below(): return 2\n",
        encoding="utf-8",
    )
    (tmp_path / name / "broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_root_that_is_allowed_is_open(package: str) -> None:
    catalogue = Catalogue([package])
    assert catalogue.find(f"{package}.Net")(size=3).size == 3
    assert catalogue.find(f"{package}.Net.of")(size=3).size == 3
    assert catalogue.find(f"{package}.more.Other").__name__ == "Other"
    assert catalogue.find(f"{package}.more.Net").__name__ == "Net"
    assert catalogue.find("exported_one")() == 1


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("os.system", "is the module os"),
        ("OrderedDict", "is not defined there but in collections"),
        ("_Private", "'_Private' is no public name"),
        ("ANSWER", "is not defined there but in nothing"),
        ("more", "is no class or function"),
        ("Nte", "there is no 'Nte'"),
        ("broken.X", "broken cannot be imported: No module named 'nothing_of_this_name'"),
        ("missing.X", "there is no 'missing'"),
        ("Net.of.im_func.x", "there is no 'im_func'"),
    ],
)
def test_a_root_that_is_allowed_opens_only_what_is_its_own(rest: str, says: str, package: str) -> None:
    assert says in refused(f"{package}.{rest}", (package,)).text


def test_one_thing_alone_can_be_allowed(package: str) -> None:
    catalogue = Catalogue([f"{package}.Net", "tf.keras.callbacks.LambdaCallback", "tf.io.gfile"])
    assert catalogue.find(f"{package}.Net")
    assert catalogue.find("tf.keras.callbacks.LambdaCallback") is tf.keras.callbacks.LambdaCallback
    assert catalogue.find("tf.io.gfile.exists") is tf.io.gfile.exists
    with pytest.raises(RefusedError, match="is no root"):
        catalogue.find(f"{package}.more.Other")
    with pytest.raises(RefusedError, match="it carries code"):
        catalogue.find("tf.keras.layers.Lambda")


def test_a_module_that_is_allowed_exports(package: str) -> None:
    with pytest.raises(RefusedError, match="exported_below"):
        Catalogue([package]).find("exported_below")
    assert Catalogue([f"{package}.more.Other"]).find("exported_below")() == 2
    with pytest.raises(TrainConfigError, match=r"broken: cannot be imported: .*nothing_of_this_name"):
        Catalogue([f"{package}.broken"])


@pytest.mark.parametrize(
    ("root", "says"),
    [("no_such_package", "--allow no_such_package: there is no such module; install it, or put its directory"),
     ("a b", "--allow a b: is no dotted path of public names"), ("", "is no dotted path"), ("_x", "is no dotted path")],
)  # fmt: skip
def test_a_root_that_cannot_be_allowed(root: str, says: str) -> None:
    with pytest.raises(TrainConfigError, match="--allow") as caught:
        Catalogue([root])
    assert says in str(caught.value)


def test_a_root_whose_import_fails_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_root.py").write_text("raise ValueError('not today')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TrainConfigError, match="--allow failing_root: cannot be imported: ValueError: not today"):
        Catalogue(["failing_root"])
