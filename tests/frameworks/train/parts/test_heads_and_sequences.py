"""Models of several heads, of sequences and of triplets, ResNets; losses and batch processors that belong to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import OptionError
from hpcckpt.keras.model.layers import named_weights
from hpcckpt.train import batches
from hpcckpt.train.batches.labels import centre_of
from hpcckpt.train.batches.triplet import partners
from hpcckpt.train.losses import TripletLoss, WeightedLoss, per_head, triplet_accuracy
from hpcckpt.train.models import EncoderDecoderNet, MultiHeadNet, OneHeadNet, TripletNet
from hpcckpt.train.models.networks import ResNet, SequenceDecoder, SequenceEncoder, SmallConvNet
from hpcckpt.train.run.submodels import find

IMAGES = np.random.default_rng(1).random((3, 12, 12, 1)).astype(np.float32)
TRIPLETS = np.random.default_rng(2).random((2, 3, 12, 12, 1)).astype(np.float32)


def coder() -> Any:
    encoder = SequenceEncoder(6, depth=2, dropout=0.1, name="encoder")
    return EncoderDecoderNet(encoder, SequenceDecoder(12, length=12, units=6, depth=2, name="decoder"))


CASES: dict[str, tuple[Callable[[], Any], Any, Any, str]] = {
    "several heads": (
        lambda: MultiHeadNet({"digit": 10, "centre": 2}, ResNet([1, 1], 4, name="base_model"), dropout=0.1),
        IMAGES, {"digit": (3, 10), "centre": (3, 2)}, "base_model@layer2_block1@shortcut@conv",
    ),
    "bottlenecks": (lambda: OneHeadNet(7, ResNet([2, 1], 4, bottleneck=True)), IMAGES, (3, 7), "base_model@layer1_block2@conv3"),
    "sequences": (coder, IMAGES, (3, 12, 12), "decoder@layer2"),
    "rows classified": (lambda: OneHeadNet(4, SequenceEncoder(5)), IMAGES, (3, 4), "base_model@layer1"),
    "triplets": (lambda: TripletNet(5, SmallConvNet([3])), TRIPLETS, (2, 3, 5), "embedding"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "inputs", "shape", "path"), CASES.values(), ids=CASES)
def test_a_model_is_built_saved_and_loaded_and_its_parts_are_found(
    make: Callable[[], Any], inputs: Any, shape: Any, path: str, tmp_path: Path
) -> None:
    model, other = make(), make()
    for each in (model, other):
        each.build((None, *inputs.shape[1:]))
    assert [weight.path for weight in named_weights(model)] == [weight.path for weight in named_weights(other)]
    assert find(model, path).weights
    expected = model(inputs)
    found = {name: tuple(part.shape) for name, part in expected.items()} if isinstance(shape, dict) else expected.shape
    assert found == shape
    again = type(model).from_config(json.loads(json.dumps(model.get_config())))
    again.build((None, *inputs.shape[1:]))
    again.set_weights(model.get_weights())
    model.save(tmp_path / "model.keras")
    for copy in (again, keras.models.load_model(tmp_path / "model.keras")):
        tf.nest.map_structure(np.testing.assert_array_equal, copy(inputs), expected)


@pytest.mark.parametrize(("depth", "n_trained"), [(18, 11_176_512), (50, 23_508_032)])
def test_a_published_depth_has_as_many_weights_as_published(depth: int, n_trained: int) -> None:
    model = ResNet(depth, small_images=False)
    model.build((None, 224, 224, 3))
    assert sum(int(np.prod(weight.shape)) for weight in model.trainable_weights) == n_trained


def test_what_cannot_be_built_is_named() -> None:
    for make, text in (
        (lambda: ResNet(19), r"ResNet: depth: 19 – one of 18, 34, 50, 101, 152, or a list"),
        (lambda: ResNet([1, 0]), r"ResNet: depth: \[1, 0\] – a positive number each"),
        (lambda: MultiHeadNet({}), r"MultiHeadNet: heads: \[\] – plain names"),
        (lambda: MultiHeadNet({"a": 0}), r"MultiHeadNet: heads.a: 0 – a positive number"),
        (lambda: EncoderDecoderNet(SequenceEncoder(3), "no"), r"EncoderDecoderNet: decoder: str – a Keras model"),
        (lambda: TripletLoss(0), r"TripletLoss: margin: 0 – a positive number"),
        (lambda: per_head({"a": "mse"}, {"b": 2}), r"per_head: weights.b: .*heads are a"),
    ):
        with pytest.raises(OptionError, match=text):
            make()


# -- losses --------------------------------------------------------------------------------------


def test_the_triplet_loss_and_its_accuracy() -> None:
    vectors = np.array([[[0, 0], [0, 1], [2, 0]], [[0, 0], [1, 0], [0, 1]]], np.float32)
    loss = TripletLoss(margin=0.5)
    assert loss.call(np.zeros(2), vectors).numpy().tolist() == [0.0, 0.5]  # 1 - 4 + 0.5 is below 0; 1 - 1 + 0.5
    assert float(loss(np.zeros(2), vectors)) == 0.25
    assert triplet_accuracy(np.zeros(2), vectors).numpy().tolist() == [1.0, 0.0]
    again = keras.losses.deserialize(keras.losses.serialize(TripletLoss(0.2)))
    assert isinstance(again, TripletLoss)
    assert again.margin == 0.2


def test_heads_have_their_losses_weights_and_metrics() -> None:
    model = MultiHeadNet({"digit": 4, "centre": 2}, SmallConvNet([2]))
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mean = keras.losses.MeanSquaredError()
    metrics = per_head({"digit": ["accuracy"], "centre": [keras.metrics.MeanAbsoluteError(name="distance")]})
    model.compile("sgd", per_head({"digit": sparse, "centre": mean}, {"centre": 10}), metrics=metrics)
    labels = {"digit": np.array([0, 1, 3]), "centre": np.ones((3, 2), np.float32)}
    found = model.evaluate(IMAGES, labels, return_dict=True, verbose=0)
    outputs = model(IMAGES)
    expected = float(sparse(labels["digit"], outputs["digit"])) + 10 * float(mean(labels["centre"], outputs["centre"]))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert {"digit_accuracy", "centre_distance"} <= set(found)
    again = keras.losses.deserialize(keras.losses.serialize(WeightedLoss(mean, 10)))
    assert float(again(labels["centre"], outputs["centre"])) == pytest.approx(
        10 * float(mean(labels["centre"], outputs["centre"]))
    )


# -- batch processors ----------------------------------------------------------------------------


def test_a_triplet_is_an_image_the_next_one_of_its_class_and_the_next_one_of_another() -> None:
    labels = tf.constant([7, 2, 7, 7, 5], tf.int64)
    assert partners(labels).numpy().tolist() == [[0, 2, 1], [1, 1, 2], [2, 3, 4], [3, 0, 4], [4, 4, 0]]
    images = tf.reshape(tf.range(5.0), (5, 1, 1, 1))
    train, valid = batches.triplets((tf.data.Dataset.from_tensors((images, labels)), None))
    ((found, anchors),) = train
    assert (found.shape, valid) == ((5, 3, 1, 1, 1), None)
    assert found.numpy()[2].ravel().tolist() == [2, 3, 4]
    assert np.array_equal(anchors, labels)


def test_labels_are_computed_from_images() -> None:
    images = np.zeros((2, 5, 9, 1), np.float32)
    images[0, 0, 8], images[1, 1:4, 2] = 1, 0.5
    assert np.allclose(centre_of(images), [[-1, 1], [0, -0.5]])
    data = tf.data.Dataset.from_tensors((images, np.array([3, 4])))
    ((_, labels),) = batches.classes_and_centres((data, data))[1]
    assert labels["digit"].numpy().tolist() == [3, 4]
    assert np.array_equal(labels["centre"], centre_of(images))
    ((_, rows),) = batches.rows((data, None))[0]
    assert np.array_equal(rows, images[:, ::-1, :, 0])
