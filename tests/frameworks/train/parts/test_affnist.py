"""affNIST, generated: what the maps do, what the images are made from, and that it is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcckpt.errors import OptionError
from hpcckpt.train.datasets.digits import affnist
from hpcckpt.train.datasets.digits.affnist import affine, parser
from hpcckpt.train.datasets.errors import DatasetNotFoundError

DRAWS = np.random.default_rng(0).random((300, affine.N_DRAWS))


@pytest.fixture
def digits_as_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put bars where MNIST is kept: those for training have odd brightness, those for validation even."""
    arrays = {}
    for part, n, shade in (("train", 120, 201), ("test", 30, 100)):
        pixels = np.zeros((n, 28, 28), np.uint8)
        pixels[:, 4:24, 12:16] = shade
        arrays |= {f"x_{part}": pixels, f"y_{part}": np.arange(n, dtype=np.uint8) % 10}
    (tmp_path / "hpcckpt-examples").mkdir()
    np.savez(tmp_path / "hpcckpt-examples" / "mnist.npz", **arrays)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_map_that_changes_nothing_adds_a_margin_and_a_quarter_turn_turns() -> None:
    image = np.random.default_rng(1).integers(0, 256, (1, 28, 28), np.uint8)
    margin = np.pad(image[0], 6)
    still, turned = np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]])
    assert np.array_equal(affine.warped(image, still[np.newaxis], np.zeros((1, 2)), 40)[0], margin)
    assert np.array_equal(affine.warped(image, turned[np.newaxis], np.zeros((1, 2)), 40)[0], np.rot90(margin))
    moved = affine.warped(image, still[np.newaxis], np.array([[-6.0, 6.0]]), 40)[0]
    assert np.array_equal(moved[:28, 12:], image[0])


def test_maps_scale_shear_and_turn_within_the_limits_and_leave_digits_whole() -> None:
    linear = affine.matrices(DRAWS)
    areas = np.linalg.det(linear)  # neither a turn nor a shear changes an area
    assert 0.64 < areas.min() < 0.75 < 1.2 < areas.max() < 1.44
    bars = np.zeros((len(DRAWS), 28, 28), np.uint8)
    bars[:, 4:24, 8:20] = 255
    images = affine.mapped(bars, DRAWS).astype(float)
    inked = images.sum((1, 2)) / 255
    assert np.allclose(inked, 240 * areas, rtol=0.03)  # nothing of it is cut off
    rows = (images.sum(2) * np.arange(40)).sum(1) / images.sum((1, 2))
    assert rows.min() < 14 < 26 < rows.max()  # and it is moved about


def test_images_to_train_and_to_validate_with_come_from_different_originals(digits_as_mnist: None) -> None:
    raw = affnist.parse(600)
    assert raw.valid is not None
    assert (raw.train.pixels.shape, raw.valid.pixels.shape) == ((600, 40, 40, 1), (100, 40, 40, 1))
    assert (raw.train.pixels.max(), raw.valid.pixels.max()) == (201, 100)
    assert set(raw.train.labels) == set(range(10))
    assert np.array_equal(affnist.parse(60).train.pixels, raw.train.pixels[:60])
    assert not np.array_equal(affnist.parse(60, 1).train.pixels, raw.train.pixels[:60])
    with pytest.raises(OptionError, match=r"n_images: 5 .*variant: -1 .*originals: 'cars' – one of mnist, digits"):
        affnist.parse(5, -1, "cars")  # type: ignore[arg-type]


def test_it_is_generated_once_and_told_each_time(digits_as_mnist: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"data/affnist/index.json is not there: .*affnist.raw_to_tfrecord"):
        affnist.from_tfrecord("data/affnist", convert=False)
    train, valid = affnist.from_tfrecord("data/affnist", batch_size=20, n_images=90, force_rgb=True)
    told = (
        "the 90 training images in data/affnist are generated from MNIST; they are not the files of affNIST's authors"
    )
    assert capsys.readouterr().err == f"hpcckpt: affnist: {told}\n"
    assert (int(train.cardinality()), train.element_spec[0].shape) == (4, (20, 40, 40, 3))
    assert sum(len(labels) for _, labels in valid) == 15
    made = Path("data/affnist/index.json").stat().st_mtime_ns
    affnist.from_tfrecord("data/affnist")  # the 90 that are there, whatever is the default
    assert capsys.readouterr().err == f"hpcckpt: affnist: {told}\n"
    assert Path("data/affnist/index.json").stat().st_mtime_ns == made
    with pytest.raises(OptionError, match="holds 'affnist' made with .*'n_images': 90"):
        affnist.convert("data/affnist", n_images=91)


def test_without_mnist_it_is_made_from_digits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")

    def absent() -> Path:
        raise DatasetNotFoundError("MNIST is not installed: …")

    monkeypatch.setattr(parser, "cached", absent)
    affnist.convert(tmp_path / "affnist", 1, n_images=60)
    assert "are generated from scikit-learn's digits; they are not" in capsys.readouterr().err
    images, labels = next(iter(affnist.from_tfrecord(tmp_path / "affnist", batch_size=30)[0]))
    ink = images.numpy().mean((1, 2, 3))
    assert (images.shape, ink.min() > 0.02, set(labels.numpy()) <= set(range(10))) == ((30, 40, 40, 1), True, True)
