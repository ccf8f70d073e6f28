"""Models: what they give, what Keras can make of their configs, and that their parts are found by path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import OptionError
from hpcckpt.keras.model.layers import named_weights
from hpcckpt.train import models
from hpcckpt.train.models import LeNet5, OneHeadNet
from hpcckpt.train.models.components import ConvBlock, PatchEmbedding, ResidualStage, TransformerBlock
from hpcckpt.train.models.networks import SmallConvNet, SmallResNet, SmallTransformer
from hpcckpt.train.run.submodels import find, freeze
from tests.support import examples

Build = Callable[[], Any]
IMAGES = np.random.default_rng(1).random((3, 28, 28, 1)).astype(np.float32)


def mobile_net() -> Any:
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, include_top=False, weights=None)


BUILDS: dict[str, tuple[Build, int]] = {
    "LeNet5": (LeNet5, 10),
    "OneHeadNet": (lambda: OneHeadNet(7, dropout=0.4), 7),
    "OneHeadNet of SmallResNet": (lambda: OneHeadNet(7, SmallResNet((8, 16), name="base_model")), 7),
    "OneHeadNet of SmallTransformer": (lambda: OneHeadNet(7, SmallTransformer(dim=8, dropout=0.1)), 7),
    "SmallConvNet": (lambda: SmallConvNet((8, 12), normalization="batch", pooling="mean"), 12),
    "SmallConvNet, flat": (lambda: SmallConvNet((4, 6)), 6 * 7 * 7),
    "SmallResNet": (lambda: SmallResNet((8, 16), n_blocks=2, normalization="group"), 16),
    "SmallTransformer": (lambda: SmallTransformer(14, dim=8, depth=1), 8),
}
EACH = pytest.mark.parametrize(("build", "n_outputs"), BUILDS.values(), ids=BUILDS)


def built(build: Build) -> Any:
    model = build()
    model.build((None, 28, 28, 1))
    return model


@EACH
def test_a_model_gives_a_vector_for_each_image(build: Build, n_outputs: int) -> None:
    assert built(build)(IMAGES).shape == (3, n_outputs)


@EACH
def test_a_config_is_plain_and_makes_the_same_model(build: Build, n_outputs: int) -> None:
    model = built(build)
    config = json.loads(json.dumps(model.get_config()))
    again = type(model).from_config(config)
    again.build((None, 28, 28, 1))
    again.set_weights(model.get_weights())
    assert np.array_equal(again(IMAGES), model(IMAGES))
    assert json.loads(json.dumps(again.get_config())) == config


@EACH
def test_keras_saves_a_model_in_its_own_file_and_loads_it_without_its_class(
    build: Build, n_outputs: int, tmp_path: Path
) -> None:
    model = built(build)
    expected = model(IMAGES)
    model.save(tmp_path / "model.keras")
    assert np.array_equal(keras.models.load_model(tmp_path / "model.keras")(IMAGES), expected)


@EACH
def test_names_in_checkpoints_do_not_depend_on_what_was_built_before(build: Build, n_outputs: int) -> None:
    first, second = ([weight.path for weight in named_weights(built(build))] for _ in range(2))
    assert first == second
    assert not any("_1" in path for path in first)


@EACH
def test_a_checkpoint_with_its_architecture_is_loaded_without_being_built_first(
    build: Build, n_outputs: int, tmp_path: Path
) -> None:
    model = built(build)
    model.compile("sgd", "mse")
    saving = hc.keras.ModelCheckpoint(tmp_path / "run" / "{epoch}", save_weights_only=False)
    model.fit(IMAGES, np.zeros((3, n_outputs), np.float32), verbose=0, callbacks=[saving])
    loaded = hc.keras.load_model(tmp_path / "run")
    assert np.array_equal(loaded(IMAGES), model(IMAGES))


LOADING = """\
import sys
import hpcckpt.keras
model = hpcckpt.keras.load_model(sys.argv[1])
print(type(model).__module__, type(model.base_model).__name__)
"""


def test_a_program_that_imports_no_models_loads_them_without_being_told(tmp_path: Path) -> None:
    model = built(lambda: OneHeadNet(7, SmallTransformer(14, dim=8, depth=1)))
    model.compile("sgd", "mse")
    saving = hc.keras.ModelCheckpoint(tmp_path / "run" / "{epoch}", save_weights_only=False)
    model.fit(IMAGES, np.zeros((3, 7), np.float32), verbose=0, callbacks=[saving])
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "hpcckpt.train.models.one_head_net SmallTransformer\n", done.stderr


@EACH
def test_a_frozen_part_comes_back_frozen(build: Build, n_outputs: int) -> None:
    model = built(build)
    (part, *_) = [layer for layer in model._flatten_layers(include_self=False, recursive=False) if layer.weights]
    if isinstance(part, keras.Model):  # layers of Keras' own keep it themselves
        part.trainable = False
        again = type(model).from_config(model.get_config())
        if isinstance(model, OneHeadNet):
            again.build((None, 28, 28, 1))
            assert len(again.trainable_weights) == len(model.trainable_weights) < len(model.weights)


# -- parts ---------------------------------------------------------------------------------------

PATHS = {
    "base_model": SmallResNet,
    "base_model@stem@conv": keras.layers.Conv2D,
    "base_model@layer1": ResidualStage,
    "base_model@layer2@resample": ConvBlock,
    "base_model@layer1@block1@conv2@norm": keras.layers.BatchNormalization,
    "head": keras.layers.Dense,
}


@pytest.mark.parametrize(("path", "kind"), PATHS.items(), ids=PATHS)
def test_parts_are_found_by_path(path: str, kind: type) -> None:
    model = built(lambda: OneHeadNet(10, SmallResNet((4, 8))))
    assert type(find(model, path)) is kind


@pytest.mark.parametrize(
    ("network", "path"),
    [
        (SmallConvNet, "base_model@block3@conv"),
        (SmallTransformer, "base_model@block2@attention"),
        (SmallTransformer, "base_model@patches@position"),
    ],
)
def test_parts_of_other_networks_are_found_too(network: Any, path: str) -> None:
    assert find(built(lambda: OneHeadNet(10, network())), path).weights


def test_a_part_has_the_same_weights_under_any_head() -> None:
    one, other = (built(lambda n=n: OneHeadNet(n, SmallConvNet(name="mine"))) for n in (3, 10))
    names = [[weight.path for weight in named_weights(model.base_model)] for model in (one, other)]
    assert names[0] == names[1]
    other.base_model.set_weights(one.base_model.get_weights())
    assert np.array_equal(other.base_model(IMAGES), one.base_model(IMAGES))


@pytest.mark.parametrize("normalization", ["none", "batch", "group", "layer"])
def test_a_frozen_base_is_the_same_to_the_bit_after_training(normalization: str) -> None:
    model = built(lambda: OneHeadNet(2, SmallResNet((4, 8), normalization=normalization)))
    freeze(model, ["base_model"])
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before, head = model.base_model.get_weights(), model.head.get_weights()
    model.fit(IMAGES, np.array([0, 1, 1]), epochs=2, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.base_model.get_weights(), strict=True))
    assert not np.array_equal(head[0], model.head.get_weights()[0])


# -- the layer below a head -------------------------------------------------------------------------


def test_a_base_of_keras_own_that_gives_images_is_averaged() -> None:
    model = OneHeadNet(10, mobile_net())
    model.build((None, 32, 32, 3))
    images = np.random.default_rng(2).random((2, 32, 32, 3)).astype(np.float32)
    features = model.base_model(images)
    assert len(features.shape) == 4
    assert np.allclose(model(images), model.head(np.mean(features, axis=(1, 2))), atol=1e-5)
    assert find(model, "base_model") is model.base_model


def test_dropout_is_in_training_alone() -> None:
    keras.utils.set_random_seed(1)
    model = built(lambda: OneHeadNet(50, dropout=0.9))
    assert np.array_equal(model(IMAGES), model(IMAGES, training=False))
    assert not np.array_equal(model(IMAGES, training=True), model(IMAGES, training=False))


def test_lenet5_is_the_one_of_the_examples() -> None:
    model, example = built(LeNet5), examples.load("lenet5").lenet5()
    assert [w.shape for w in model.get_weights()] == [w.shape for w in example.get_weights()]
    assert model.count_params() == 431_080
    example.set_weights(model.get_weights())
    assert np.array_equal(model(IMAGES), example(IMAGES))


def test_a_class_of_the_users_may_derive_from_one_head_net() -> None:
    class Mine(OneHeadNet):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(num_outputs=10, **kwargs)

    assert built(lambda: Mine(name="my_hello_world_model"))(IMAGES).shape == (3, 10)


WRONG: list[tuple[Build, str]] = [
    (lambda: OneHeadNet(0), "OneHeadNet: num_outputs: 0 – a positive number"),
    (lambda: OneHeadNet(10, dropout=1), "OneHeadNet: dropout: 1 – from 0 to below 1"),
    (lambda: OneHeadNet(10, "MobileNetV2"), "OneHeadNet: base_model: str – a Keras model, or nothing"),
    (lambda: LeNet5("10"), "LeNet5: num_outputs: '10'"),
    (lambda: SmallConvNet([]), r"SmallConvNet: filters: \[\] – a positive number each"),
    (lambda: SmallConvNet(pooling="avg"), "SmallConvNet: pooling: 'avg' – one of flat, mean, max"),
    (lambda: SmallConvNet(normalization="bach"), "normalization: 'bach' – one of none, batch, group, layer"),
    (lambda: SmallResNet([8, 0], n_blocks=0), r"filters: \[8, 0\] – a positive number each; .*n_blocks: 0"),
    (lambda: TransformerBlock(10, n_heads=4), "dim: 10 – a multiple of n_heads, 4"),
    (lambda: PatchEmbedding(0, 8), "patch_size: 0"),
    (lambda: SmallTransformer(dropout=-0.1), "dropout: -0.1"),
]


@pytest.mark.parametrize(("build", "text"), WRONG, ids=[text[:30] for _, text in WRONG])
def test_an_argument_that_makes_no_sense_is_named(build: Build, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "epochs", "rate"),
    [(SmallConvNet, 3, 0.003), (lambda: SmallResNet(normalization="group"), 6, 0.003), (SmallTransformer, 8, 0.001)],
    ids=["conv", "res", "attention"],
)
def test_each_network_learns(network: Any, epochs: int, rate: float) -> None:
    """Whatever the seed: numbers that round otherwise, as on other processors, train otherwise too."""
    from hpcckpt.train.datasets import synthetic

    keras.utils.set_random_seed(3)
    train, valid = synthetic.from_raw(16, n_images=640, size=28, channels=1, n_classes=4)
    model = built(lambda: OneHeadNet(4, network()))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    accuracy = model.fit(train, epochs=epochs, validation_data=valid, shuffle=False, verbose=0).history["val_accuracy"]
    assert accuracy[-1] > 0.9


def test_everything_public_is_there() -> None:
    for package in (models, models.networks, models.components):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            getattr(package, "nothing")  # noqa: B009 - looks as an import would
