"""Folders of images and shards of TFRecords: read in an order that is computed, from any position in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.errors import OptionError
from hpcckpt.keras.callbacks import fit_backup
from hpcckpt.keras.data.data_source import DataSource
from hpcckpt.keras.data.pipeline_state import Pipeline
from hpcckpt.train import Environment, view
from hpcckpt.train.datasets import folders, shards, sharing
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError
from hpcckpt.train.datasets.shards import index
from tests.support.paths import ROOT
from tests.support.train.parts import epoch, flat, numbers

N, N_CLASSES, N_VALID = 120, 3, 24
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 images of 8×8 pixels, each with its number in it, as folders and as shards."""
    place = tmp_path_factory.mktemp("images")
    for number in range(N):
        path = place / "raw" / f"class {number * N_CLASSES // N}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(np.full((8, 8, 3), number, np.uint8)).numpy())
    folders.convert(place / "shards", 3, source=place / "raw")
    return place


def of_folders(place: Path, **options: Any) -> Any:
    """Return datasets of the files."""
    return folders.from_raw(place / "raw", image_size=8, **options)


def of_shards(place: Path, **options: Any) -> Any:
    """Return datasets of the shards, record by record."""
    return shards.from_tfrecord(place / "shards", image_size=8, **options)


def of_runs(place: Path, **options: Any) -> Any:
    """Return datasets of the shards, two records at a time."""
    return shards.from_tfrecord(place / "shards", image_size=8, run=2, **options)


ALL = pytest.mark.parametrize("make", [of_folders, of_shards, of_runs], ids=lambda make: make.__name__)


def epochs_of(make: Make, place: Path, n_ranks: int) -> list[Any]:
    """Return the batches of two epochs, and those for validation, of each rank; 12 images are a step of all ranks."""
    found = []
    for rank in range(n_ranks):
        with sharing(rank, n_ranks, comm=SerialCommunicator()):
            train, valid = make(place, batch_size=12 // n_ranks)
        assert int(train.cardinality()) == (N - N_VALID) // 12
        found.append((epoch(train), epoch(train), epoch(valid)))
    return found


@ALL
def test_ranks_share_each_epoch_and_any_number_of_them_has_the_same_steps(make: Make, place: Path) -> None:
    (alone,), three = epochs_of(make, place, 1), epochs_of(make, place, 3)
    for number in (0, 1):
        together = [sorted(flat(list(step))) for step in zip(*(rank[number] for rank in three), strict=True)]
        assert together == [sorted(step) for step in alone[number]]
        assert len(set(flat(alone[number]))) == N - N_VALID
    assert alone[0] != alone[1]
    validated = sorted(flat([flat(rank[2]) for rank in three]))
    assert validated == sorted(flat(alone[2]))
    assert sorted(flat(alone[0]) + validated) == list(range(N))


@ALL
def test_a_position_is_small_and_brings_back_the_rest_and_the_next_epoch(make: Make, place: Path) -> None:
    def iterator_of() -> tuple[Any, Any, Pipeline]:
        train = make(place, batch_size=4)[0]
        iter(train)  # the epoch that is over
        iterator = iter(train)
        pipeline = Pipeline(iterator, is_array=False, data={})
        assert not pipeline.doubt
        return train, iterator, pipeline

    train, iterator, pipeline = iterator_of()
    first = [numbers(next(iterator)) for _ in range(5)]
    position = pipeline.place(iterator)
    assert position.nbytes < 4096
    expected = [numbers(batch) for batch in iterator], epoch(train)

    train, iterator, pipeline = iterator_of()
    pipeline.go_to(iterator, position)
    assert ([numbers(batch) for batch in iterator], epoch(train)) == expected

    train, iterator, pipeline = iterator_of()  # by the number of a batch, as with another number of ranks
    assert pipeline.seek(iterator, 3)
    assert [numbers(next(iterator)) for _ in range(2)] == first[3:]
    position = pipeline.place(iterator)
    assert ([numbers(batch) for batch in iterator], epoch(train)) == expected

    train, iterator, pipeline = iterator_of()  # what was saved after that
    pipeline.go_to(iterator, position)
    assert ([numbers(batch) for batch in iterator], epoch(train)) == expected


def test_the_position_in_other_images_is_refused(place: Path, tmp_path: Path) -> None:
    iterator = iter(of_folders(place, batch_size=4)[0])
    position = Pipeline(iterator, is_array=False, data={}).place(iterator)
    os.symlink(place / "raw", tmp_path / "raw")
    iterator = iter(of_folders(tmp_path, batch_size=4)[0])
    Pipeline(iterator, is_array=False, data={}).go_to(iterator, position)  # the same images elsewhere
    iterator = iter(of_folders(place, batch_size=4, limit=95)[0])
    with pytest.raises(hc.errors.StateError, match="other seeds"):
        Pipeline(iterator, is_array=False, data={}).go_to(iterator, position)


# -- in a fit --------------------------------------------------------------------------------------


class Recorder(keras.Model):
    """Learns nothing, and remembers what it was given."""

    seen: list[list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, images: Any, training: bool | None = None) -> Any:
        del training
        return self.dense(tf.reshape(images, (-1, 192)))

    def train_step(self, data: Any) -> dict[str, Any]:
        if tf.executing_eagerly():
            Recorder.seen.append(numbers(data))
            if len(Recorder.seen) == Recorder.stops_after:
                raise KeyboardInterrupt
        return {"loss": tf.constant(0.0)}

    stops_after = 0


def fit_recorded(place: Path, run: Path, stops_after: int = 0) -> list[list[int]]:
    Recorder.seen, Recorder.stops_after = [], stops_after
    keras.utils.set_random_seed(5)
    model = Recorder()
    model(np.zeros((1, 8, 8, 3), np.float32))
    model.compile("sgd", run_eagerly=True)
    backup = hc.keras.BackupAndRestore(run, delete_checkpoint=False, every_n_batches=3, verbose=0)
    try:
        model.fit(of_shards(place, batch_size=8)[0], epochs=2, verbose=0, shuffle=False, callbacks=[backup])
    except KeyboardInterrupt:
        backup.close()
    return Recorder.seen


def test_another_number_of_ranks_resumes_at_the_next_image(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fit_recorded(place, tmp_path / "straight")
    assert len(expected) == 24
    fit_recorded(place, tmp_path / "run", 5)
    restore, n_read = fit_backup.restore, []

    def as_of_two_ranks(*arguments: Any) -> Any:
        restored, is_forked = restore(*arguments)
        steps = restored.objects["steps"] // 2  # two ranks have half as many in an epoch
        return replace(restored, n_ranks=2, objects={**restored.objects, "steps": steps}), is_forked

    monkeypatch.setattr(fit_backup, "restore", as_of_two_ranks)
    monkeypatch.setattr(DataSource, "_read", lambda _, __, count: n_read.append(count))
    resumed = fit_recorded(place, tmp_path / "run")
    assert resumed == expected[6:]  # two ranks have trained on three batches each
    assert not any(n_read)


def configured(place: Path, **options: Any) -> list[dict[str, Any]]:
    """Return a cycle that trains on the folders."""
    small = {"ktf.models.networks.SmallConvNet": {"filters": [4]}}
    return [
        {
            "datasets": {
                "ktf.datasets.folders.from_raw": {
                    "directory": str(place / "raw"), "batch_size": 8, "image_size": 8, **options
                }
            },
            "model": {"ktf.models.OneHeadNet": {"num_outputs": N_CLASSES, "base_model": small}},
            "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
            "train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": 1}},
            "checkpoint": {"every_n_batches": 5},
            "seed": 1,
        }
    ]  # fmt: skip


def test_a_configuration_names_it_and_its_level_is_exact(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Environment(tmp_path / "run").run(configured(place))
    assert "level=exact iterator=saved" in capfd.readouterr().err


def test_a_training_that_fails_of_an_image_names_it(place: Path, tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / "raw" / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        path.write_bytes(tf.io.encode_jpeg(noise).numpy())
    whole = path.read_bytes()
    for damaged in (whole[:-99], whole[:60] + bytes(140) + whole[200:]):  # the second begins and ends as it should
        path.write_bytes(damaged)
        with pytest.raises(DatasetDamagedError, match=r"class 1/39\.jpg.*replace it"):
            Environment(tmp_path / "run", verbose=0).run(configured(tmp_path))
        with pytest.raises(DatasetDamagedError, match=r"class 1/39\.jpg: cannot be decoded"):
            folders.from_raw(tmp_path / "raw", 4, verify=True)


# -- shards and their index ------------------------------------------------------------------------


@pytest.fixture
def copy(place: Path, tmp_path: Path) -> Path:
    """The shards, to be damaged."""
    (tmp_path / "shards").mkdir()
    for path in (place / "shards").iterdir():
        (tmp_path / "shards" / path.name).write_bytes(path.read_bytes())
    return tmp_path


SHARD = "train-00001-of-00003.tfrecord"


def test_files_are_searched_once_and_what_was_found_is_where_tensorflow_finds_it(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copy / "shards"
    (found,) = index.read_shards(directory, ["*.tfrecord"])
    assert [len(shard.offsets) for shard in found] == [40, 40, 40]
    records = [len(record.numpy()) + 16 for record in tf.data.TFRecordDataset(str(directory / SHARD))]
    assert found[1].offsets.tolist() == [0, *np.cumsum(records)[:-1]]
    monkeypatch.setattr(index, "offsets_in", lambda path: pytest.fail(f"{path} is read again"))
    assert index.read_shards(directory, ["*.tfrecord"]) == [found]
    assert [len(each) for each in index.read_shards(directory, ["*.tfrecord", "train-00002*"])] == [2, 1]


def test_a_directory_that_cannot_be_written_to_is_searched_each_time(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "shards" / index.FILE).unlink()
    before = sorted((copy / "shards").iterdir())

    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(index.files, "rename", refuse)
    train, _ = of_shards(copy, batch_size=8)
    assert int(train.cardinality()) == 12
    assert sorted((copy / "shards").iterdir()) == before


def test_a_cut_shard_is_refused_with_its_name_with_and_without_an_index(copy: Path) -> None:
    path = copy / "shards" / SHARD
    nbytes = path.stat().st_size
    os.truncate(path, nbytes - 5)
    with pytest.raises(DatasetDamagedError, match=rf"{SHARD}: has {nbytes - 5} bytes, not {nbytes}: copy these files"):
        of_shards(copy)
    (copy / "shards" / index.FILE).unlink()
    text = rf"{SHARD}: record 39 at byte \d+ ends at byte {nbytes}, and the file at {nbytes - 5}: copy the file again"
    with pytest.raises(DatasetDamagedError, match=text):
        of_shards(copy)
    path.write_bytes(b"no records at all")
    with pytest.raises(DatasetDamagedError, match=rf"{SHARD}: there is no TFRecord at byte 0"):
        of_shards(copy)


# -- what is refused -------------------------------------------------------------------------------


def test_folders_that_are_no_data_set_are_refused_with_what_to_do(place: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="is not there: give a directory with a folder for each class"):
        folders.from_raw(tmp_path / "no")
    with pytest.raises(DatasetNotFoundError, match="has no folders: make one for each class"):
        folders.from_raw(tmp_path)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "notes.txt").touch()
    with pytest.raises(DatasetDamagedError, match=r"cats: has no images .*: remove the folder, or put images there"):
        folders.from_raw(tmp_path)
    (tmp_path / "cats" / "1.JPG").touch()
    with pytest.raises(DatasetDamagedError, match=r"do not have the same folders \(cats, class 0, .*give both"):
        folders.from_raw(place / "raw", valid_directory=tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 97}, "97 on each of 1 ranks needs 97 images, and there are 96"),
        ({"run": 3, "batch_size": 8}, "run: 3 .* divides the batch size, 8"),
        ({"image_size": [8]}, r"image_size: \[8\]"),
        ({"channels": 2}, "channels: 2 – 1 or 3"),
        ({"train": "sub/*"}, "a pattern of file names"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str, place: Path) -> None:
    with pytest.raises(OptionError, match=text):
        shards.from_tfrecord(place / "shards", **{"image_size": 8, **options})


def test_fewer_images_than_ranks_are_refused(place: Path) -> None:
    with (
        sharing(0, 25, comm=SerialCommunicator()),
        pytest.raises(OptionError, match="24 images are too few for 25 ran"),
    ):
        of_folders(place, batch_size=1)


# -- what it looks like ----------------------------------------------------------------------------


def test_images_of_other_sizes_are_scaled_or_cut_and_grey_ones_get_colours(tmp_path: Path) -> None:
    image = np.zeros((4, 8, 1), np.uint8)
    image[:, :4] = 200
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    scaled, cut = (folders.from_raw(tmp_path, 1, 0.5, image_size=4, crop=crop)[0] for crop in (False, True))
    for dataset in (scaled, cut):
        batch = next(iter(dataset))[0].numpy()
        assert batch.shape == (1, 4, 4, 3)
        np.testing.assert_allclose(batch[0, :, :, 0], np.tile([200, 200, 0, 0], (4, 1)) / 255, atol=0.01)


def test_a_contact_sheet_shows_images_with_the_names_of_their_classes(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    page = (ROOT / "docs" / "train-parts.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```hjson\n(.*?)```", page, re.DOTALL)
    config = tmp_path / "photos.hjson"
    config.write_text(shown.replace("data/photos", str(place / "raw")), encoding="utf-8")
    assert view.main([str(config), "-o", str(tmp_path / "sheet.png"), "-n", "10", "--columns", "4"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'sheet.png'}: 10 images\n"
    height, width, _ = tf.io.decode_png((tmp_path / "sheet.png").read_bytes()).shape
    assert (width, height) == (480, 414)
    assert of_shards(place)[0].class_names == ["class 0", "class 1", "class 2"]
    assert view.main([str(config), "-o", str(tmp_path / "no.png"), "--cycle", "2"]) == 2
    assert "has 1 cycles" in capsys.readouterr().err
    assert view.main([str(config), "-o", str(tmp_path / "no" / "sheet.png")]) == 1
    assert capsys.readouterr().err.startswith(f"hpcckpt: error: write {tmp_path / 'no' / 'sheet.png'}: No such file")
