"""Losses that Keras does not have."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from hpcckpt.errors import OptionError
from hpcckpt.train.losses import SmoothedSparseCategoricalCrossentropy as Smoothed

LABELS = np.array([0, 3, 1, 3])
LOGITS = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
PROBABILITIES = (np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("smoothing", [0, 0.1, 0.7, 1])
@pytest.mark.parametrize(("from_logits", "predicted"), [(True, LOGITS), (False, PROBABILITIES)])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, np.newaxis], LABELS.astype(np.float32)])
def test_it_equals_keras_own_of_one_hot_labels(
    labels: Any, from_logits: bool, predicted: Any, smoothing: float
) -> None:
    theirs = keras.losses.CategoricalCrossentropy(from_logits=from_logits, label_smoothing=smoothing)
    expected = theirs(np.eye(4, dtype=np.float32)[LABELS], predicted)
    ours = Smoothed(from_logits=from_logits, label_smoothing=smoothing)(labels, predicted)
    assert float(ours) == pytest.approx(float(expected), rel=1e-5)


def test_impossible_certainty_is_a_large_loss_and_not_an_infinite_one() -> None:
    assert 5 < float(Smoothed(label_smoothing=0)(np.array([0]), np.array([[0.0, 1.0]], np.float32))) < 20


def test_labels_of_places_in_images_are_taken_too() -> None:
    labels, logits = np.zeros((2, 3, 3), np.int64), np.zeros((2, 3, 3, 5), np.float32)
    assert float(Smoothed(from_logits=True)(labels, logits)) == pytest.approx(np.log(5), rel=1e-5)


def test_weights_of_samples_count() -> None:
    loss = Smoothed(from_logits=True, reduction="sum")
    alone = loss(LABELS[:1], LOGITS[:1])
    assert float(loss(LABELS, LOGITS, sample_weight=[1, 0, 0, 0])) == pytest.approx(float(alone), rel=1e-5)


def test_keras_makes_it_anew_from_its_config() -> None:
    loss = Smoothed(from_logits=True, label_smoothing=0.3)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(again, Smoothed)
    assert float(again(LABELS, LOGITS)) == float(loss(LABELS, LOGITS))


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, True])
def test_a_share_that_is_none_is_refused(smoothing: Any) -> None:
    with pytest.raises(OptionError, match=r"label_smoothing: .* from 0 to 1"):
        Smoothed(label_smoothing=smoothing)


def test_a_model_learns_by_it() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.1), Smoothed(from_logits=True), metrics=["accuracy"])
    rows = np.eye(4, dtype=np.float32)
    model.fit(rows, np.arange(4), epochs=40, verbose=0)
    assert model.evaluate(rows, np.arange(4), verbose=0)[1] == 1
