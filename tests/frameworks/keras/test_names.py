"""Names do not depend on what else a process has built."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from hpcckpt.errors import StateError
from hpcckpt.keras.model.naming import Namer, snake_case, stem
from hpcckpt.state.tree import flatten
from tests.support.keras.models import IS_KERAS_3, lenet5, names, nested, recurrent, rows, small

pytestmark = pytest.mark.one_case


@pytest.mark.parametrize("make", [lenet5, small, nested, recurrent])
def test_a_model_built_twice_has_the_same_names(make: Any) -> None:
    first = names(make())
    assert names(make()) == first


def test_lenet5_with_adam_has_8_weights_17_optimizer_variables_and_the_learning_rate() -> None:
    found = names(lenet5())
    assert sum(name.startswith("model/") for name in found) == 8
    assert sum(name.startswith("optimizer/") for name in found) == 17 + 1
    assert "optimizer/learning_rate" in found


def test_slots_are_named_after_their_weights() -> None:
    slot = "momentum" if IS_KERAS_3 else "m"
    shapes = {name: leaf.declaration.spec.shape for name, leaf in flatten({"model": lenet5()}).tensors.items()}
    for weight in ("conv2d/kernel", "conv2d_1/bias", "dense/kernel", "dense_1/bias"):
        assert shapes[f"optimizer/{slot}/{weight}"] == shapes[f"model/{weight}"]


def test_fit_building_the_optimizer_and_restore_building_it_give_the_same_names(fit: Any) -> None:
    trained, fresh = small(), small()
    fit(trained, rows(), 1)
    assert names(trained) == names(fresh)


def test_names_that_the_user_chose_stay() -> None:
    found = names(nested())
    assert "model/sequential/chosen/kernel" in found
    assert "model/sequential/dense/kernel" in found


def test_a_shared_layer_is_saved_once() -> None:
    found = names(nested())
    assert [name for name in found if name.endswith("kernel")] == [
        "model/dense/kernel", "model/dense_1/kernel", "model/sequential/chosen/kernel", "model/sequential/dense/kernel",
    ]  # fmt: skip


def test_subclassed_models_wrapped_layers_and_bare_weights_have_names() -> None:
    found = names(recurrent())
    for name in ("scale", "dense/kernel", "dense_1/kernel", "multi_head_attention/query/kernel"):
        assert f"model/{name}" in found
    for way in ("forward", "backward"):
        assert f"model/bidirectional/{way}_lstm/lstm_cell/recurrent_kernel" in found


def test_every_weight_of_the_model_is_there_and_no_metric() -> None:
    model = recurrent()
    metric = {id(variable) for variable in model.seen.variables}
    weights = [weight for weight in model.weights if id(weight) not in metric]
    assert sum("seed_generator" not in name for name in names(model)) == len(weights)


def test_a_frozen_layer_keeps_its_names_and_kinds() -> None:
    model = small()
    before = [leaf.declaration.spec for leaf in flatten(model).tensors.values()]
    model.layers[0].trainable = False
    assert [leaf.declaration.spec for leaf in flatten(model).tensors.values()] == before


def test_an_unbuilt_model_says_what_to_do() -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(StateError, match=r"dense.*model\.build\(input_shape\)"):
        flatten({"model": model})


def test_an_unbuilt_optimizer_says_what_to_do() -> None:
    with pytest.raises(StateError, match=r"optimizer\.build\(model\.trainable_variables\)"):
        flatten({"optimizer": keras.optimizers.Adam()})


def test_a_bare_model_and_a_model_called_model_have_the_same_names() -> None:
    model = small()
    assert list(flatten(model).tensors) == list(flatten({"model": model}).tensors)


def test_two_models_stand_apart_with_their_optimizers() -> None:
    found = list(flatten({"critic": small("sgd"), "actor": small("sgd")}).tensors)
    assert "actor/optimizer/iteration" in found
    assert "critic/dense/kernel" in found


def test_an_optimizer_that_the_model_holds_besides_is_not_forgotten() -> None:
    model = small("sgd")
    model.second = keras.optimizers.SGD(0.25, momentum=0.9)
    model.second.build(model.trainable_variables)
    slot = "momentum" if IS_KERAS_3 else "m"
    assert {"second/learning_rate", f"second/{slot}/dense/kernel"} <= set(names(model))


def optimizers() -> list[Any]:
    """Return optimizers whose variables are hard to find, each in another way."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    return [
        keras.optimizers.Nadam(), keras.optimizers.Adam(schedule),
        keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True),
        keras.optimizers.Adafactor(), keras.optimizers.RMSprop(centered=True, momentum=0.9), keras.optimizers.Ftrl(),
        keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam()),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(optimizers())))
def test_every_variable_of_an_optimizer_is_there_under_one_stable_name(number: int, fit: Any) -> None:
    model = small(optimizers()[number])
    fit(model, rows(10), 1)
    found = names(model)
    own = model.optimizer.variables
    assert sum(name.startswith("optimizer/") for name in found) >= len(own() if callable(own) else own)
    assert found == names(small(optimizers()[number]))


@pytest.mark.usefixtures("keras_2")
def test_legacy_optimizers_have_their_hyperparameters_and_slots() -> None:
    found = set(names(small(keras.optimizers.legacy.SGD(0.1, momentum=0.9))))
    assert {"optimizer/learning_rate", "optimizer/hyper/momentum", "optimizer/momentum/dense/kernel"} <= found


@pytest.mark.usefixtures("keras_2")
def test_hidden_state_of_keras_2_optimizers_is_there() -> None:
    assert "optimizer/u_product" in names(small("nadam"))
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam())
    assert {"optimizer/loss_scale/current_loss_scale", "optimizer/loss_scale/good_steps"} <= set(names(small(scaled)))


def test_stems_and_counts() -> None:
    assert snake_case("BatchNormalization") == "batch_normalization"
    assert stem("conv2d_17", "Conv2D") == "conv2d"
    assert stem("conv2d_tall", "Conv2D") == "conv2d_tall"
    assert stem("model_3", "Functional") == stem("functional_3", "Functional") == "functional"
    namer = Namer()
    assert [namer.take(name) for name in ("a", "a", "a_1", "a")] == ["a", "a_1", "a_1_1", "a_2"]


def test_numpy_arrays_beside_a_model_stay_what_they_are() -> None:
    assert "extra" in flatten({"model": small(), "extra": np.zeros(2)}).tensors
