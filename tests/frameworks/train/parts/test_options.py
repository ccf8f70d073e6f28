"""What dataset functions take, and what images look like that come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import OptionError
from hpcckpt.train.datasets import digits, mnist, sharing, synthetic
from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.images import Images, Raw, mixed_order
from hpcckpt.train.datasets.pipelines import from_arrays
from tests.support.train.parts import Make, epoch, flat, pairs, raw, records

BOTH = pytest.mark.parametrize("make", [raw, records], ids=lambda make: make.__name__)


@BOTH
def test_images_are_floats_from_0_to_1_and_labels_are_numbers(make: Make, mnist_npz: Path) -> None:
    train, valid = make(mnist_npz, batch_size=8)
    for dataset in (train, valid):
        images, labels = next(iter(dataset))
        assert (images.dtype.name, images.shape[1:], labels.dtype.name) == ("float32", (28, 28, 1), "int64")
        assert 0 <= float(images.numpy().min()) <= float(images.numpy().max()) <= 1


@BOTH
def test_each_image_keeps_its_label(make: Make, mnist_npz: Path) -> None:
    for images, labels in make(mnist_npz, batch_size=8)[0]:
        assert [round(float(image[0, 0, 0]) * 255) % 10 for image in images.numpy()] == labels.numpy().tolist()


@BOTH
def test_a_share_for_validation_is_taken_off_the_images_for_training(make: Make, mnist_npz: Path) -> None:
    train, valid = make(mnist_npz, batch_size=8, validation=0.25)
    trained, validated = set(flat(epoch(train))), set(flat(epoch(valid)))
    assert (len(validated), trained & validated) == (50, set())
    assert validated <= set(range(200))


def test_arrays_and_records_set_the_same_images_aside(mnist_npz: Path) -> None:
    of_raw, of_records = (flat(epoch(make(mnist_npz, validation=0.25)[1])) for make in (raw, records))
    assert of_raw == of_records


def test_what_is_set_aside_follows_no_pattern(mnist_npz: Path) -> None:
    labels = [number % 10 for number in flat(epoch(raw(mnist_npz, validation=0.25)[1]))]
    assert set(labels) == set(range(10))  # the labels follow each other: every fourth image would be of five classes


@BOTH
def test_a_limit_is_of_training_alone(make: Make, mnist_npz: Path) -> None:
    train, valid = make(mnist_npz, batch_size=8, limit=40)
    assert len(set(flat(epoch(train))) | set(flat(epoch(train)))) == 40
    assert len(flat(epoch(valid))) == 40


@BOTH
def test_force_rgb_gives_three_equal_channels(make: Make, mnist_npz: Path) -> None:
    images, _ = next(iter(make(mnist_npz, force_rgb=True)[0]))
    assert images.shape[1:] == (28, 28, 3)
    assert np.array_equal(images[..., 0], images[..., 2])


@BOTH
def test_image_size_scales(make: Make, mnist_npz: Path) -> None:
    train, valid = make(mnist_npz, image_size=40, force_rgb=True)
    assert train.element_spec[0].shape[1:] == valid.element_spec[0].shape[1:] == (40, 40, 3)
    (small, _), (large, _) = (next(iter(data)) for data in (make(mnist_npz)[1], valid))
    assert np.array_equal(tf.image.resize(small, (40, 40)), large[..., :1])


def test_classes_are_chosen_and_counted_anew(mnist_npz: Path) -> None:
    train, valid = mnist.from_raw(mnist_npz, batch_size=4, classes=[7, 2])
    for images, labels in (*train, *valid):
        digits_there = [round(float(image[0, 0, 0]) * 255) % 10 for image in images.numpy()]
        assert [[7, 2][label] for label in labels.numpy()] == digits_there
    assert len(flat(epoch(valid))) == 8


WRONG = [
    ({"batch_size": 0}, r"batch_size: 0 – a positive number"),
    ({"batch_size": 300}, r"batch_size: 300 on each of 1 ranks needs 300 images, and there are 200"),
    ({"validation": 1.5}, r"validation: 1.5 – a share"),
    ({"validation": 0.001}, r"validation: 0.001 of 200 images leaves nothing"),
    ({"limit": -1}, r"limit: -1"),
    ({"image_size": "40"}, r"image_size: '40'"),
    ({"seed": -1}, r"seed: -1"),
    ({"seed": True}, r"seed: True"),
]


@BOTH
@pytest.mark.parametrize(("options", "text"), WRONG, ids=lambda value: str(value))
def test_an_option_that_makes_no_sense_is_named(make: Make, options: Any, text: str, mnist_npz: Path) -> None:
    with pytest.raises(OptionError, match=text):
        make(mnist_npz, **options)


def test_all_options_that_make_no_sense_are_named_at_once(mnist_npz: Path) -> None:
    with pytest.raises(OptionError, match=r"batch_size: 0.*limit: 0.*seed: 1.5"):
        mnist.from_raw(mnist_npz, batch_size=0, limit=0, seed=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [[], [10], [1, 1], [-1]])
def test_classes_that_there_are_not_are_refused(classes: list[int], mnist_npz: Path) -> None:
    with pytest.raises(OptionError, match=r"classes: .* some of 0 to 9, each once"):
        mnist.from_raw(mnist_npz, classes=classes)


@BOTH
def test_too_few_images_for_the_ranks_are_an_error_on_each(make: Make, mnist_npz: Path) -> None:
    with pytest.raises(OptionError, match="on each of 3 ranks needs 300 images, and there are 200"):
        pairs(make, mnist_npz, 3, batch_size=100)
    with pytest.raises(OptionError, match="2 images are too few for 3 ranks"):
        pairs(make, mnist_npz, 3, batch_size=1, validation=0.01)


def test_what_a_parser_must_not_return_is_named(mnist_npz: Path) -> None:
    good = Images(np.zeros((4, 2, 2, 1), np.uint8), np.arange(4))
    for bad, text in (
        (Images(good.pixels.astype(np.float32), good.labels), "pixels are not bytes in 4 dimensions"),
        (Images(good.pixels, np.arange(3)), "not one label for each image"),
        (Images(good.pixels, np.arange(1, 5)), "not one of 4 classes"),
        (Images(good.pixels[:0], good.labels[:0]), "there are no images"),
    ):
        with pytest.raises(OptionError, match=f"mine: train: .*{text}.*see to it in its parser"):
            from_arrays(Raw(bad, None, 4), Feeding(batch_size=1), "mine")


def test_the_order_without_rhyme_is_the_same_everywhere_for_ever() -> None:
    assert mixed_order(12).tolist() == MIXED
    assert sorted(mixed_order(1797)) == list(range(1797))


MIXED = [2, 4, 6, 8, 5, 10, 1, 11, 7, 0, 9, 3]


def test_digits_and_synthetic_images_take_the_same_options_as_mnist() -> None:
    with sharing(0, 1):
        for make in (digits.from_raw, synthetic.from_raw, digits.from_tfrecord, synthetic.from_tfrecord):
            names = make.__code__.co_varnames[: make.__code__.co_argcount + make.__code__.co_kwonlyargcount]
            assert {"batch_size", "validation", "seed"} <= set(names)
