"""Factories are built innermost first; what cannot be built is told with its place, and no traceback is needed."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import NoSpaceError, OptionError
from hpcckpt.train.config.cycles import cycles
from hpcckpt.train.config.factories import Factory
from hpcckpt.train.config.factory_parse import parse
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError
from hpcckpt.train.names.allow_list import Catalogue
from hpcckpt.train.names.export_config import export_config

pytestmark = pytest.mark.one_case

CATALOGUE = Catalogue()


def factory(value: dict[str, Any], where: str = "[0].model") -> Factory:
    problems: list[ConfigProblem] = []
    found = parse(value, where, problems)
    assert not problems
    assert found is not None
    return found


def complaint(value: dict[str, Any], **given: Any) -> TrainConfigError:
    with pytest.raises(TrainConfigError) as caught:
        factory(value).build(CATALOGUE, **given)
    return caught.value


def test_models_in_models_and_lists_of_layers_are_built() -> None:
    value = {
        "tf.keras.Sequential": {
            "name": "outer",
            "layers": [
                {"tf.keras.Input": {"shape": [4]}},
                {
                    "tf.keras.Sequential": {
                        "name": "inner",
                        "layers": [{"tf.keras.layers.Dense": {"units": 3, "activation": "relu", "name": "first"}}],
                    }
                },
                {
                    "tf.keras.layers.Dense": {
                        "units": 2,
                        "kernel_regularizer": {"tf.keras.regularizers.L2": {"l2": 0.5}},
                    }
                },
            ],
        }
    }
    model = factory(value).build(CATALOGUE)
    assert model.layers[0].name == "inner"
    assert model.layers[0].layers[-1].activation is tf.keras.activations.relu
    assert float(model.layers[1].kernel_regularizer.l2) == 0.5
    assert model(np.ones((1, 4), "float32")).shape == (1, 2)


def test_a_factory_among_arguments_and_one_in_a_mapping_are_built() -> None:
    @export_config
    def taking(**kwargs: Any) -> dict[str, Any]:
        return kwargs

    value = {"taking": {"a": {"b": [{"taking": {"c": 1}}, 2]}, "text": "taking", "plain": {"x": 1, "y": {}}}}
    assert factory(value).build(CATALOGUE) == {
        "a": {"b": [{"c": 1}, 2]}, "text": "taking", "plain": {"x": 1, "y": {}},
    }  # fmt: skip


def test_a_reference_is_handed_over_uncalled() -> None:
    value = {"tf.keras.layers.Dense": {"units": 2, "activation": {"@": "tf.nn.relu"}}}
    assert factory(value).build(CATALOGUE).activation is tf.nn.relu


def test_each_build_makes_new_things() -> None:
    one = factory({"tf.keras.optimizers.SGD": {"learning_rate": {"tf.keras.optimizers.schedules.CosineDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 10}}}})  # fmt: skip
    assert one.build(CATALOGUE) is not one.build(CATALOGUE)


def test_further_arguments_give_way_to_those_of_the_configuration() -> None:
    @export_config
    def pair(a: int, b: int) -> tuple[int, int]:
        return a, b

    assert factory({"pair": {"b": 2}}).build(CATALOGUE, a=1, b=1) == (1, 2)


def test_shapes_and_what_has_a_tuple_as_its_default_are_given_as_tuples() -> None:
    @export_config
    def taking(input_shape: Any = None, sizes: Any = (1,), names: Any = None, target_shape: Any = None) -> list[Any]:
        return [input_shape, sizes, names, target_shape]

    value = {"taking": {"input_shape": [8, None, 3], "sizes": [1, 2], "names": ["a"], "target_shape": [[1], 2]}}
    assert factory(value).build(CATALOGUE) == [(8, None, 3), (1, 2), ["a"], [[1], 2]]
    tensorboard = {"tf.keras.callbacks.TensorBoard": {"log_dir": "x", "profile_batch": [10, 20]}}
    assert factory(tensorboard).build(CATALOGUE)


def test_weights_null_needs_no_network() -> None:
    value = {
        "tf.keras.applications.MobileNetV2": {
            "weights": None, "include_top": False, "input_shape": [32, 32, 3], "pooling": "avg", "alpha": 0.35,
        }
    }  # fmt: skip
    assert factory(value).build(CATALOGUE).output_shape == (None, 1280)


# -- what cannot be built --------------------------------------------------------------------------


def test_what_a_constructor_says_is_told_with_its_place() -> None:
    error = complaint({"tf.keras.Sequential": {"layers": [{"tf.keras.layers.Dense": {"units": -3}}]}})
    (problem,) = error.problems
    assert problem.where == "[0].model.tf.keras.Sequential.layers[0].tf.keras.layers.Dense"
    assert "units" in problem.text
    assert problem.remedy == "correct its arguments, units"
    assert "\n" not in str(error)


def test_everything_that_cannot_be_built_is_told_at_once() -> None:
    error = complaint(
        {"tf.keras.Sequential": {"layers": [
            {"tf.keras.layers.Dense": {"units": -3}},
            {"tf.keras.layers.Dropout": {"rate": 7}},
            {"tf.keras.layers.Lambda": {"function": "x"}},
        ]}}
    )  # fmt: skip
    assert [problem.where.rpartition("layers[")[2] for problem in error.problems] == [
        "0].tf.keras.layers.Dense", "1].tf.keras.layers.Dropout", "2].tf.keras.layers.Lambda",
    ]  # fmt: skip


def test_a_file_that_is_missing_is_told_with_the_remedy(tmp_path: Path) -> None:
    @export_config
    def reading(path: str) -> bytes:
        return Path(path).read_bytes()

    (problem,) = complaint({"reading": {"path": str(tmp_path / "no.bin")}}).problems
    assert problem.where == "[0].model.reading"
    assert f"{tmp_path}/no.bin" in problem.text
    assert problem.remedy.startswith("correct the path")


def test_a_failure_in_a_program_of_the_users_names_its_line() -> None:
    @export_config
    class Failing:
        def __init__(self) -> None:
            raise KeyError("units")  # this line

    text = complaint({"Failing": {}}).problems[0].text
    line = next(
        i
        for i, row in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1)
        if row.endswith("# this line")
    )
    assert text == f"KeyError: 'units' ({__file__}:{line})"


def test_our_own_errors_of_configuration_are_told_as_they_are_and_others_pass() -> None:
    @export_config
    def choosy() -> None:
        raise OptionError("size: 3 – a power of two")

    @export_config
    def full() -> None:
        raise NoSpaceError("the disk is full")

    assert str(complaint({"choosy": {}})) == (
        "[0].model.choosy: size: 3 – a power of two; correct its arguments, it has none"
    )
    with pytest.raises(NoSpaceError, match="the disk is full"):
        factory({"full": {}}).build(CATALOGUE)


def test_an_interrupt_is_no_matter_of_the_configuration() -> None:
    @export_config
    def waiting() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factory({"waiting": {}}).build(CATALOGUE)


def test_no_argument_that_keras_takes_is_called_wrong() -> None:
    """Classes are made again from their own configs, and what the check calls wrong there, Keras must refuse too."""
    from hpcckpt.train.config.signatures import call_problems
    from hpcckpt.train.names import keras_resolver

    n_classes, n_wrong = 0, 0
    for space in keras_resolver.NAMESPACES:
        for name in keras_resolver.open_names(space.split(".")) if space else ():
            cls = CATALOGUE.find(f"tf.keras.{space}.{name}")
            if not isinstance(cls, type):
                continue
            try:
                config = cls().get_config()
            except Exception:  # noqa: BLE001 - it needs arguments, or does not exist any more
                continue
            n_classes += 1
            for argument, value in config.items():
                if list(call_problems(cls, name, {argument: value}, name)):
                    n_wrong += 1
                    with pytest.raises((TypeError, ValueError)):
                        cls(**{argument: value})
    assert n_classes > 100
    assert n_wrong < 40


def test_deprecated_arguments_that_keras_still_takes_are_not_called_wrong() -> None:
    from hpcckpt.train.config.signatures import call_problems

    old = {"input_shape": [1], "input_dim": 3} if keras.__version__.startswith("3") else {
        "input_shape": [1], "batch_input_shape": [1, 1], "weights": None, "dynamic": False}  # fmt: skip
    assert not list(call_problems(tf.keras.layers.Dense, "Dense", {"units": 3, **old}, "x"))
    if not keras.__version__.startswith("3"):
        checkpoint = {"filepath": "x", "period": 3, "load_weights_on_restart": True}
        assert not list(call_problems(tf.keras.callbacks.ModelCheckpoint, "ModelCheckpoint", checkpoint, "x"))


# -- weights that Keras keeps ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*will be loaded as the default")  # Keras 3, of its sizes
def test_weights_come_from_the_cache_of_keras_and_else_it_is_told_where_to_put_them(
    seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base of the complex sample: ``weights`` is left out, so they are those of ImageNet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # no network
    monkeypatch.delenv("KERAS_HOME", raising=False)
    folder = tmp_path / ".keras" / "models"
    folder.mkdir(parents=True)
    if keras.__version__.startswith("3"):  # it has read the variables when it was imported
        monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(folder.parent))
    base_model = cycles(seeds / "complex.json")[0].model.kwargs["base_model"]
    name = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
    with pytest.raises(TrainConfigError) as caught:
        base_model.build(Catalogue())
    (problem,) = caught.value.problems
    assert problem.where == "[0].model.ktf.models.OneHeadNet.base_model.tf.keras.applications.MobileNetV2.weights"
    assert problem.text.startswith(f"{name} is not in {folder}, or not whole, and Keras cannot download it (")
    assert problem.remedy.startswith("fetch https://storage.googleapis.com/tensorflow/keras-applications/mobilenet_v2/")
    assert f"copy it to {folder}, or write" in problem.remedy

    base = tf.keras.applications.MobileNetV2((40, 40, 3), include_top=False, pooling="avg", weights=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' own format is another one by now
        base.save(folder / name)
    made = base_model.build(Catalogue())
    for one, other in zip(base.get_weights(), made.get_weights(), strict=True):
        assert np.array_equal(one, other)


OPTIMIZERS = ["SGD", "Adam", *(["legacy.Adam"] if keras.__version__.startswith("2.") else [])]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lr_is_refused_where_an_optimizer_drops_it(name: str) -> None:
    from hpcckpt.train.config.signatures import call_problems

    cls = functools.reduce(getattr, name.split("."), tf.keras.optimizers)
    problems = list(call_problems(cls, name, {"lr": 0.5}, "x"))
    assert len(problems) == (0 if name.startswith("legacy") else 1)
    assert all("'learning_rate'" in str(problem) for problem in problems)
