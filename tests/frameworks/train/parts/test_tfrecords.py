"""TFRecords: written whole or not at all, once, by one rank, and checked when they are opened."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import OptionError, StorageError
from hpcckpt.train.datasets import mnist, sharing, synthetic
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError
from hpcckpt.train.datasets.mnist import raw_to_tfrecord
from hpcckpt.train.datasets.synthetic import raw_to_tfrecord as synthetic_to_tfrecord
from hpcckpt.train.datasets.tfrecords.converting import Recipe, convert_once
from hpcckpt.train.datasets.tfrecords.index import Index, read_index

SHARD = "train-00001-of-00004.tfrecord"


@pytest.fixture
def directory(mnist_npz: Path, tmp_path: Path) -> Path:
    """A directory of TFRecords."""
    return mnist.convert(tmp_path / "data" / "mnist", 4, path=mnist_npz)


def listing(directory: Path) -> dict[str, Any]:
    """Return what is in a directory, and when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def change_index(directory: Path, **values: Any) -> None:
    path = directory / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


# -- writing -------------------------------------------------------------------------------------


def test_the_index_says_what_is_in_each_file(directory: Path) -> None:
    index = read_index(directory, "")
    assert (index.name, index.shape, index.white, index.n_classes) == ("mnist", (28, 28, 1), 255, 10)
    assert [shard.n_records for shard in index.train] == [50] * 4
    assert [shard.n_records for shard in index.valid] == [10] * 4
    for shard in (*index.train, *index.valid):
        path = str(directory / shard.file)
        assert sum(1 for _ in tf.data.TFRecordDataset(path)) == shard.n_records
        assert os.path.getsize(path) == shard.nbytes


def test_records_are_plain_examples_that_anybody_can_read(directory: Path, mnist_npz: Path) -> None:
    record = next(iter(tf.data.TFRecordDataset(str(directory / SHARD)))).numpy()
    features = tf.train.Example.FromString(record).features.feature
    image = np.frombuffer(features["image"].bytes_list.value[0], np.uint8).reshape(28, 28)
    label = features["label"].int64_list.value[0]
    arrays = np.load(mnist_npz)
    assert np.array_equal(arrays["x_train"][image[0, 0]], image)
    assert arrays["y_train"][image[0, 0]] == label


def test_converting_twice_changes_nothing(directory: Path, mnist_npz: Path) -> None:
    before = listing(directory)
    mnist_npz.unlink()  # not even needed
    assert mnist.convert(directory, 4, path=mnist_npz) == directory
    assert listing(directory) == before


def test_rank_0_alone_converts_and_all_ranks_see_it(ranks: Any, run_dir: Path) -> None:
    parsed: list[int] = []

    def body(comm: Any) -> bool:
        recipe = Recipe("mine", lambda: parsed.append(comm.rank) or synthetic.parse(40, 4), "make mine")
        return (convert_once(recipe, run_dir, 2, comm) / "index.json").is_file()

    assert all(ranks(body))
    assert set(parsed) <= {0}


def test_an_error_of_the_parser_is_raised_on_all_ranks_and_leaves_nothing(ranks: Any, run_dir: Path) -> None:
    def fail() -> Any:
        raise DatasetNotFoundError("raw.bin is not there: fetch it")

    def body(comm: Any) -> bool:
        with pytest.raises(DatasetNotFoundError, match=r"raw\.bin is not there: fetch it"):
            convert_once(Recipe("mine", fail, "make mine"), run_dir, 2, comm)
        return run_dir.exists()

    assert not any(ranks(body))


def test_an_empty_directory_is_taken(mnist_npz: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert mnist.convert(tmp_path / "empty", 2, path=mnist_npz).joinpath("index.json").is_file()


def test_there_are_no_more_files_than_images(tmp_path: Path) -> None:
    index = read_index(synthetic.convert(tmp_path / "few", 50, n_images=6, size=4), "")
    assert [shard.n_records for shard in index.train] == [1] * 6


KILLED = """
import os, signal, sys
from hpcckpt.train.datasets import synthetic
from hpcckpt.train.datasets.tfrecords import converting

def fsync_or_die(path, fsync=converting.fsync_file):
    if "00002-of" in path.name:  # amid the shards
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(path)

converting.fsync_file = fsync_or_die
synthetic.convert(sys.argv[1], 4, n_images=40, size=8)
"""


@pytest.mark.slow
def test_a_conversion_that_is_killed_leaves_no_directory_and_the_next_one_makes_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(directory)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len([*tmp_path.glob(".tmp-*/*")]) == 3
    assert not directory.exists()
    synthetic.convert(directory, 4, n_images=40, size=4)
    synthetic.from_tfrecord(directory, 4, verify=True)


def test_a_disk_that_refuses_is_an_error_that_names_it_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, mnist_npz: Path, tmp_path: Path
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("hpcckpt.train.datasets.tfrecords.converting.fsync_file", refuse)
    with pytest.raises(StorageError, match=r"convert mnist to .*data.*train-00000-of-00002\.tfrecord.*Input/output"):
        mnist.convert(tmp_path / "data", 2, path=mnist_npz)
    assert [path.name for path in tmp_path.iterdir()] == ["mnist.npz"]


def test_whoever_comes_second_takes_what_the_first_one_made(
    monkeypatch: pytest.MonkeyPatch, mnist_npz: Path, tmp_path: Path
) -> None:
    whole = mnist.convert(tmp_path / "other", 2, path=mnist_npz)
    parse = raw_to_tfrecord.parse

    def slow(path: Any) -> Any:
        shutil.copytree(whole, tmp_path / "data")  # meanwhile
        return parse(path)

    monkeypatch.setattr(raw_to_tfrecord, "parse", slow)
    mnist.convert(tmp_path / "data", 4, path=mnist_npz)
    assert len(read_index(tmp_path / "data", "").train) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "mnist.npz", "other"]


# -- what is refused -----------------------------------------------------------------------------


def test_where_nothing_is_the_command_is_said(tmp_path: Path) -> None:
    text = re.escape(
        f"index.json is not there: python -m hpcckpt.train.datasets.mnist.raw_to_tfrecord {tmp_path / 'no'}"
    )
    with pytest.raises(DatasetNotFoundError, match=text + ".*convert=true"):
        mnist.from_tfrecord(tmp_path / "no")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (cut, f"{SHARD}: has \\d+ bytes, not \\d+"),
    (Path.unlink, f"{SHARD}: is not there"),
]


@pytest.mark.parametrize(("harm", "text"), DAMAGES, ids=["cut", "gone"])
def test_a_torn_directory_is_seen_when_it_is_opened(
    harm: Callable[[Path], Any], text: str, directory: Path, mnist_npz: Path
) -> None:
    harm(directory / SHARD)
    for use in (lambda: mnist.from_tfrecord(directory), lambda: mnist.convert(directory, path=mnist_npz)):
        with pytest.raises(DatasetDamagedError, match=f"{text}.*remove .*, and make it again: python -m"):
            use()


def test_a_byte_that_changed_is_seen_where_checksums_are_compared(directory: Path, damage: Any) -> None:
    damage.flip(directory / SHARD, 1000)
    text = f"{SHARD}: does not hold the bytes that were written"
    with pytest.raises(DatasetDamagedError, match=text):
        mnist.from_tfrecord(directory, verify=True)
    with pytest.raises(DatasetDamagedError, match=text):
        mnist.convert(directory)
    with pytest.raises(DatasetDamagedError, match=text):
        mnist.from_tfrecord(directory, convert=True)


BAD_INDEXES: list[tuple[dict[str, Any], str]] = [
    ({"format": "other"}, "format: is not"),
    ({"shape": [28, 28]}, "shape: is not height, width and channels"),
    ({"shape": [28, 28, 10**9]}, "shape: is not height"),
    ({"white": 0, "n_classes": "10"}, "white: .*n_classes: "),
    ({"train": []}, "train: is no list of files"),
    ({"train": [{"file": "../../x.tfrecord", "n_records": 1, "nbytes": 1, "crc32c": "0"}]}, r"train\[0\]: is no file"),
    ({"valid": [{"file": "/etc/passwd", "n_records": 1, "nbytes": 1, "crc32c": "0"}]}, r"valid\[0\]: is no file"),
    ({"train": [{"file": "a.tfrecord", "n_records": -1, "nbytes": 1, "crc32c": "0"}]}, r"train\[0\]: is no file"),
    ({"train": {"0": 1}, "valid": None, "source": 1}, "source: .*train: .*valid: "),
]


@pytest.mark.parametrize(("values", "text"), BAD_INDEXES, ids=lambda value: str(value)[:40])
def test_an_index_that_makes_no_sense_is_not_believed(values: Any, text: str, directory: Path) -> None:
    change_index(directory, **values)
    with pytest.raises(DatasetDamagedError, match=f"index.json: .*{text}"):
        mnist.from_tfrecord(directory)


@pytest.mark.parametrize(
    "text", [b"", b'{"format"', b"[" * 100_000, b"\xff\xfe"], ids=["empty", "torn", "deep", "bytes"]
)
def test_an_index_that_is_no_json_is_named(text: bytes, directory: Path) -> None:
    (directory / "index.json").write_bytes(text)
    with pytest.raises(DatasetDamagedError, match=r"index\.json is not an index"):
        mnist.from_tfrecord(directory)


def test_a_directory_of_other_things_is_left_alone(mnist_npz: Path) -> None:
    with pytest.raises(OptionError, match="holds other things than TFRecords; give another directory"):
        mnist.convert(mnist_npz.parent, path=mnist_npz)
    assert mnist_npz.exists()


def test_a_file_in_the_place_of_the_directory_is_left_alone(mnist_npz: Path) -> None:
    with pytest.raises(OptionError, match="holds other things"):
        mnist.convert(mnist_npz, path=mnist_npz)


def test_another_data_set_in_its_place_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds 'mnist', not 'synthetic' made with"):
        synthetic.convert(directory)
    synthetic.convert(tmp_path / "s", n_images=40, size=4)
    with pytest.raises(OptionError, match=r"'size': 4.*not.*'size': 5.*give another directory"):
        synthetic.from_tfrecord(tmp_path / "s", 8, n_images=40, size=5, convert=True)


@pytest.mark.parametrize("n_shards", [0, -1, True, 1.5])
def test_a_count_of_files_that_is_none_is_refused(n_shards: Any, mnist_npz: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"n_shards: .* a positive number of files"):
        mnist.convert(tmp_path / "data", n_shards, path=mnist_npz)


def test_all_ranks_hear_of_a_torn_directory(ranks: Any, mnist_npz: Path, directory: Path) -> None:
    cut(directory / SHARD)

    def body(comm: Any) -> bool:
        with sharing(comm.rank, comm.size, comm=comm), pytest.raises(DatasetDamagedError, match=SHARD):
            mnist.from_tfrecord(directory)
        return True

    assert all(ranks(body))


def test_a_rank_that_does_not_see_the_directory_is_named(ranks: Any, directory: Path) -> None:
    elsewhere = directory.with_name("of-another-node")
    if ranks.size == 1:
        pytest.skip("needs another rank")

    def body(comm: Any) -> bool:
        place = directory if comm.is_root else elsewhere
        with (
            sharing(comm.rank, comm.size, comm=comm),
            pytest.raises(DatasetDamagedError, match=r"\[ranks? 1.*is not there.*file system that they share"),
        ):
            mnist.from_tfrecord(place)
        return True

    assert all(ranks(body))


# -- programs ------------------------------------------------------------------------------------


def test_a_converter_is_a_program(mnist_npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "data"
    assert raw_to_tfrecord.main([str(target), "--shards", "2", "--data", str(mnist_npz)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert raw_to_tfrecord.main([str(tmp_path / "no"), "--data", str(tmp_path / "absent.npz")]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hpcckpt: error: " in captured.err
    assert "absent.npz is not there" in captured.err


def test_what_the_remedy_says_makes_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        synthetic.from_tfrecord(tmp_path / "s", 8, n_images=40, size=4)
    command = str(caught.value).partition("is not there: python -m ")[2].partition(", or ")[0].split()
    assert command[0] == "hpcckpt.train.datasets.synthetic.raw_to_tfrecord"
    assert synthetic_to_tfrecord.main(command[1:]) == 0
    train, _ = synthetic.from_tfrecord(tmp_path / "s", 8, n_images=40, size=4, verify=True)
    assert train.element_spec[0].shape == (8, 4, 4, 3)


def test_an_index_survives_its_own_text(directory: Path) -> None:
    index = read_index(directory, "")
    (directory / "index.json").write_text(index.to_json(), encoding="utf-8")
    assert read_index(directory, "") == index
    assert isinstance(index, Index)
