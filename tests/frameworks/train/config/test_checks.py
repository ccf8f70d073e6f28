"""Names and arguments of all factories are checked before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
import tensorflow as tf

from hpcckpt.train.config.argument_types import type_text
from hpcckpt.train.config.cycles import cycles
from hpcckpt.train.config.signatures import takes
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError
from hpcckpt.train.names.allow_list import Catalogue
from hpcckpt.train.names.export_config import export_config

Find = Callable[..., list[ConfigProblem]]
Make = Callable[..., dict[str, Any]]
DENSE = "tf.keras.layers.Dense"


@pytest.fixture
def told(problems_of: Find, cycle: Make) -> Callable[..., list[str]]:
    """What is said of a cycle with changes, in words."""
    return lambda **changes: [str(problem) for problem in problems_of([cycle(**changes)])]


def sequential(*layers: Any) -> dict[str, Any]:
    return {"tf.keras.Sequential": {"layers": list(layers)}}


def test_a_cycle_in_which_nothing_is_wrong(told: Callable[..., list[str]]) -> None:
    assert told() == []


@pytest.mark.parametrize("sample", ["simple", "complex"])
def test_nothing_is_wrong_in_the_samples(sample: str, seeds: Any, problems_of: Find) -> None:
    assert problems_of(seeds / f"{sample}.json") == []


def test_form_names_and_arguments_are_told_at_once(cycle: Make) -> None:
    raw = [cycle(optimizer={"tf.keras.optimizers.Adan": {}}, optimizr={}, seed=-1), {"metrics": ["acurac", 3]}]
    with pytest.raises(TrainConfigError) as caught:
        cycles(raw, catalogue=Catalogue())
    assert {problem.where for problem in caught.value.problems} == {
        "[0].optimizr", "[0].seed", "[0].optimizer.tf.keras.optimizers.Adan", "[1].metrics[0]", "[1].metrics[1]",
    }  # fmt: skip


def test_what_is_inherited_is_told_once(cycle: Make, problems_of: Find) -> None:
    found = problems_of([cycle(optimizer={"tf.keras.optimizers.Adan": {}}, loss="mxe"), {}, {}])
    assert [problem.where for problem in found] == ["[0].optimizer.tf.keras.optimizers.Adan", "[0].loss"]


def test_everything_is_told_at_once(problems_of: Find, cycle: Make) -> None:
    raw = [
        cycle(
            model={"ktf.models.OneHeadNet": {
                "base_model": {"tf.keras.applications.MobileNetV3": {"include_tops": False}}, "num_output": 10}},
            metrics=[{"tf.keras.metrics.SparseCategoricalAcurac": {}}, "acurac"],
        ),
        {"optimizer": {"tf.keras.optimizers.Adam": {"learning_rat": 0.1}},
         "train_loop": {"ktf.train.KerasTrainLoop": {"callbacks": [{"tf.keras.callbacks.TensorBord": {}}]}}},
    ]  # fmt: skip
    assert [problem.where for problem in problems_of(raw)] == [
        "[0].model.ktf.models.OneHeadNet.num_output",
        "[0].model.ktf.models.OneHeadNet",
        "[0].model.ktf.models.OneHeadNet.base_model.tf.keras.applications.MobileNetV3",
        "[0].metrics[0].tf.keras.metrics.SparseCategoricalAcurac",
        "[0].metrics[1]",
        "[1].optimizer.tf.keras.optimizers.Adam.learning_rat",
        "[1].train_loop.ktf.train.KerasTrainLoop.callbacks[0].tf.keras.callbacks.TensorBord",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model": sequential({DENSE: {"unit": 3}})},
            "layers[0].tf.keras.layers.Dense.unit: Dense takes no such argument; did you mean 'units'?",
        ),
        (
            {"model": sequential({DENSE: {}})},
            "layers[0].tf.keras.layers.Dense: Dense needs 'units'; write \"units\": … among its arguments",
        ),
        ({"optimizer": {"tf.keras.optimizers.Adam": {"learnin_rate": 1}}}, "did you mean 'learning_rate'?"),
        (
            {"loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logit": True}}},
            "SparseCategoricalCrossentropy takes no such argument; did you mean 'from_logits'?",
        ),
        (
            {"train_loop": {"ktf.train.KerasTrainLoop": {"epochs": 3}}},
            "KerasTrainLoop.epochs: KerasTrainLoop takes no such argument; did you mean 'num_epochs'?",
        ),
        (
            {"train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": "ten"}}},
            "[0].train_loop.ktf.train.KerasTrainLoop.num_epochs: 'ten' is not accepted; give a whole number",
        ),
        ({"train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": 2.5}}}, "num_epochs: 2.5 is not accepted"),
        ({"train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": True}}}, "num_epochs: True is not accepted"),
        (
            {"train_loop": {"ktf.train.KerasTrainLoop": {"freeze_submodels": "base"}}},
            "freeze_submodels: 'base' is not accepted; give a list",
        ),
        (
            {"datasets": {"ktf.datasets.digits.from_raw": {"batch_size": "64"}}},
            "[0].datasets.ktf.datasets.digits.from_raw.batch_size: '64' is not accepted; give a whole number",
        ),
        ({"datasets": {"ktf.datasets.digits.from_raw": {"bach_size": 64}}}, "did you mean 'batch_size'?"),
        ({"model": {"ktf.models.OneHeadNet": {"num_outputs": [10]}}}, "num_outputs: a list; give a whole number"),
        (
            {"model": {"ktf.models.OneHeadNet": {"num_outputs": 10, "dropot": 0.1}}},
            "[0].model.ktf.models.OneHeadNet.dropot: OneHeadNet takes no such argument; did you mean 'dropout'?",
        ),
        (
            {"optimizer": {DENSE: {"units": 3}}},
            "tf.keras.layers.Dense is a layer, no optimizer; write one of tf.keras.optimizers",
        ),
        ({"model": {DENSE: {"units": 3}}}, "is a layer, no model; write one of hpcckpt.train.models or tf.keras.appl"),
        ({"model": {"tf.keras.optimizers.Adam": {}}}, "is an optimizer, no model"),
        ({"loss": {"tf.keras.metrics.MeanSquaredError": {}}}, "is a metric, no loss; write one of tf.keras.losses"),
        ({"metrics": [{"tf.keras.losses.MeanSquaredError": {}}]}, "is a loss, no metric"),
        (
            {"train_loop": {"tf.keras.callbacks.TensorBoard": {}}},
            "is a callback, no train loop; write one of hpcckpt.tr",
        ),
        ({"datasets": {"tf.keras.Sequential": {}}}, "is a model, no dataset"),
        ({"loss": "mean_squared_eror"}, "[0].loss: Keras has no loss 'mean_squared_eror'; did you mean"),
        ({"loss": "get"}, "[0].loss: Keras has no loss 'get'"),
        ({"loss": "tf"}, "[0].loss: Keras has no loss 'tf'"),
        ({"metrics": ["acurac"]}, "[0].metrics[0]: Keras has no metric 'acurac'"),
        ({"loss": {"@": "tf.keras.losses.Mean"}}, "there is no 'Mean' in tf.keras.losses"),
        (
            {"loss": {"@": "tf.keras.losses.MeanSquaredError"}},
            '[0].loss.@: tf.keras.losses.MeanSquaredError is a class, and is only named here; write {"tf.keras.losses',
        ),
        ({"metrics": [{"@": "tf.keras.metrics.Mean"}]}, "[0].metrics[0].@: tf.keras.metrics.Mean is a class"),
    ],
)
def test_each_problem_names_its_place_and_the_remedy(
    changes: dict[str, Any], says: str, told: Callable[..., list[str]]
) -> None:
    found = told(**changes)
    assert any(says in each for each in found), found


@pytest.mark.parametrize("metric", ["accuracy", "acc", "mse", "sparse_categorical_accuracy", "AUC",
                                    {"@": "tf.keras.metrics.mean_absolute_error"},
                                    {"tf.keras.metrics.TopKCategoricalAccuracy": {"k": 2}}])  # fmt: skip
def test_metrics_by_name_by_function_and_by_class(metric: Any, told: Callable[..., list[str]]) -> None:
    assert told(metrics=[metric]) == []


@pytest.mark.parametrize("loss", ["mse", "sparse_categorical_crossentropy", "MeanSquaredError", None,
                                  {"@": "tf.keras.losses.mean_squared_error"}])  # fmt: skip
def test_losses_by_name_by_function_and_none(loss: Any, told: Callable[..., list[str]]) -> None:
    assert told(loss=loss) == []


def test_a_metric_that_a_program_registered_with_keras_is_known_by_name(told: Callable[..., list[str]]) -> None:
    import keras

    @keras.saving.register_keras_serializable(package="checks_test")
    def my_metric(y_true: Any, y_pred: Any) -> Any:
        return y_true - y_pred

    assert told(metrics=["checks_test>my_metric"])[0].startswith("[0].metrics[0]: Keras has no metric")
    with tf.keras.utils.custom_object_scope({"my_metric": my_metric}):
        expected = [] if keras.__version__.startswith("2") else ["[0].metrics[0]"]  # Keras 3 knows its own by name only
        assert [each.partition(":")[0] for each in told(metrics=["my_metric"])] == expected


# -- what is exported ------------------------------------------------------------------------------


def test_the_sample_of_a_users_own_model(told: Callable[..., list[str]]) -> None:
    from hpcckpt.train.models import OneHeadNet

    @export_config
    class MyCustomModel(OneHeadNet):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(num_outputs=10, **kwargs)

    assert told(model={"MyCustomModel": {"name": "my_hello_world_model"}}) == []
    assert told(model={"MyCustomModle": {}}) == [
        "[0].model.MyCustomModle: nothing of the name 'MyCustomModle' is exported; did you mean 'MyCustomModel'?"
    ]


def test_arguments_of_a_users_own_function_are_checked(told: Callable[..., list[str]]) -> None:
    @export_config
    def my_datasets(batch_size: int, path: str = "x") -> None: ...

    assert told(datasets={"my_datasets": {"batch_size": 3}}) == []
    assert told(datasets={"my_datasets": {"batch_sizes": 3}}) == [
        "[0].datasets.my_datasets.batch_sizes: my_datasets takes no such argument; did you mean 'batch_size'?",
        "[0].datasets.my_datasets: my_datasets needs 'batch_size'; write \"batch_size\": … among its arguments",
    ]


def test_what_a_users_own_class_hands_on_is_left_to_it(told: Callable[..., list[str]]) -> None:
    @export_config
    class Own(tf.keras.Model):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            self.unit = kwargs.pop("namee", None)
            super().__init__(**kwargs)

    assert told(model={"Own": {"namee": 3, "anything": 4}}) == []


def test_what_takes_arguments_by_position_only_cannot_be_called(told: Callable[..., list[str]]) -> None:
    @export_config
    def positional(a: int, /) -> None: ...

    assert "positional takes 'a' by position only; wrap it" in told(datasets={"positional": {}})[0]


def test_an_exported_name_in_the_arguments_is_a_factory_and_a_misspelt_one_is_told(
    told: Callable[..., list[str]],
) -> None:
    @export_config
    class MyLayer(tf.keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, units: int) -> None:
            super().__init__()

    assert told(model=sequential({"MyLayer": {"units": 3}})) == []
    assert told(model=sequential({"MyLayer": {}}))[0].endswith('write "units": … among its arguments')
    assert told(model=sequential({"MyLayr": {"units": 3}})) == [
        "[0].model.tf.keras.Sequential.layers[0].MyLayr: nothing of this name is exported; did you mean 'MyLayer'?"
    ]


def test_an_exported_loss_given_as_a_text_is_told_how_to_write_it(told: Callable[..., list[str]]) -> None:
    @export_config
    def my_loss(y_true: Any, y_pred: Any) -> Any: ...

    assert 'what you exported is written {"my_loss": {}}, or {"@": "my_loss"} uncalled' in told(loss="my_loss")[0]
    assert told(loss={"@": "my_loss"}) == []


# -- signatures ------------------------------------------------------------------------------------


def test_a_class_takes_what_those_above_it_take() -> None:
    class Above:
        def __init__(self, a: int, b: int = 2) -> None: ...

    class Between(Above):
        pass

    class Below(Between):
        def __init__(self, c: int, **kwargs: Any) -> None: ...

    assert (set(takes(Below).parameters), takes(Below).required) == ({"a", "b", "c"}, ("c",))
    assert takes(Below).is_open  # it is a user's, and may do what it likes with what it gets
    assert not takes(Between).is_open
    assert takes(Between).required == ("a",)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "a whole number"),
        (float | None, "a number or null"),
        (Literal["a", "b"], '"a" or "b"'),
        (Sequence[str], "a list"),
        (Mapping[str, int], "a mapping"),
        (str | list[str], "a text or a list"),
        (bool, "true or false"),
    ],
)
def test_types_in_words(hint: Any, text: str) -> None:
    assert type_text(hint) == text


def test_a_custom_loop_without_a_step_is_reported_with_its_place(told: Callable[..., list[str]]) -> None:
    from hpcckpt.train import CustomTrainLoop

    @export_config
    class Stepless(CustomTrainLoop):
        """Has no step either."""

    @export_config
    class Stepping(CustomTrainLoop):
        def train_step(self, batch: Any) -> Any:
            return {}

    for name in ("ktf.train.CustomTrainLoop", "hpcckpt.train.CustomTrainLoop", "Stepless"):
        (problem,) = told(train_loop={name: {"num_epochs": 1}})
        assert problem.startswith(f"[0].train_loop.{name}: {name} has no train_step; name ktf.train.KerasTrainLoop, or")
    assert told(train_loop={"Stepping": {"num_epochs": 1}}) == []
