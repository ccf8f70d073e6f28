"""Resumed behind any batch, a training reads on in the very batches that the one without interruption reads."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from hpcckpt.errors import OptionError
from hpcckpt.format.layout import step_dirname
from hpcckpt.keras import BackupAndRestore
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.train.run.seeding import repeatable
from tests.support.keras import pipelines
from tests.support.keras.models import IS_KERAS_3
from tests.support.keras.pipelines import EXACT, LESS, N_BATCHES, Make

EPOCHS = 3
Batches = list[bytes]


def is_about_data(reason: str) -> bool:
    """Return True unless the reason is that `Reader` is run eagerly."""
    return not reason.startswith("run_eagerly")


class Diary:
    """What a model was given, batch by batch."""

    def __init__(self) -> None:
        self.batches: Batches = []


class Reader(keras.Sequential):  # type: ignore[misc]  # Keras has no types
    """Learns nothing, and writes down what it is given."""

    diary: Diary

    def train_step(self, data: Any) -> dict[str, Any]:
        self.diary.batches.append(b"".join(part.numpy().tobytes() for part in data))
        return {"loss": 0.0}

    def test_step(self, data: Any) -> dict[str, Any]:
        return {"loss": 0.0}


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    with repeatable(7):
        yield


def read(make: Make, *callbacks: Any, epochs: int = EPOCHS) -> Batches:
    """Train as a new process would; return the batches."""
    keras.utils.set_random_seed(7)
    model = Reader([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.diary = Diary()
    model.compile("sgd", "mse", run_eagerly=True)
    with warnings.catch_warnings():  # Keras 3 on data whose length it does not know
        warnings.simplefilter("ignore")
        model.fit(**make(), epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model.diary.batches


def saving(directory: Path, **options: Any) -> BackupAndRestore:
    """Return a callback that saves behind every batch, and keeps all."""
    kept = {"delete_checkpoint": False, "max_to_keep": None, "verbose": 0}
    return BackupAndRestore(directory, every_n_batches=1, **{**kept, **options})


def resuming(directory: Path, step: int) -> BackupAndRestore:
    """Return a callback that begins where another run was at a step."""
    return BackupAndRestore(directory / f"from {step}", verbose=0, fork_from=directory / "run" / step_dirname(step))


def wrong_points(make: Make, directory: Path, epochs: int = EPOCHS) -> list[int]:
    """Return behind which batches, of all but the last epoch, a resumed training reads on in others."""
    backup = saving(directory / "run")
    expected = read(make, backup, epochs=epochs)
    assert [*map(is_about_data, backup.reasons)] == [False]  # it is run eagerly, to see its batches
    steps = [step for step in step_numbers(directory / "run") if step <= len(expected) * (epochs - 1) // epochs]
    assert len(steps) == len(expected) * (epochs - 1) // epochs > 0
    return [step for step in steps if read(make, resuming(directory, step), epochs=epochs) != expected[step:]]


@pytest.mark.parametrize("make", EXACT, ids=lambda make: make.__name__)
def test_whatever_the_pipeline_the_batches_behind_any_batch_are_the_same(make: Make, tmp_path: Path) -> None:
    assert wrong_points(make, tmp_path) == []


UNTOUCHED = [
    pipelines.shuffle_batch_shuffle,
    pipelines.shuffles_one_behind_another,
    pipelines.of_steps(pipelines.endless, 5),
]


@pytest.mark.parametrize("make", UNTOUCHED, ids=lambda make: make.__name__)
def test_to_save_behind_every_batch_changes_no_order(make: Make, tmp_path: Path) -> None:
    assert read(make, saving(tmp_path / "run")) == read(make)


def iterators() -> int:
    return sum(type(each).__name__ == "OwnedIterator" for each in gc.get_objects())


@pytest.mark.parametrize("is_kept", [False, True], ids=["the callback goes too", "the callback is kept"])
def test_no_iterator_outlives_the_training_with_its_shuffle_buffer(is_kept: bool, tmp_path: Path) -> None:
    kept = [saving(tmp_path / "run") for _ in range(is_kept)]
    gc.collect()
    gc.disable()  # reference cycles stay
    try:
        before = iterators()
        read(pipelines.of_steps(pipelines.endless, 5), *(kept or [saving(tmp_path / "run")]))
        assert iterators() == before
    finally:
        gc.enable()


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2.15 ends the training where the data ends")
def test_data_that_begins_again_between_two_epochs_is_the_same(tmp_path: Path) -> None:
    def twice() -> dict[str, Any]:
        return pipelines.fed(pipelines.shuffled().batch(pipelines.SIZE).prefetch(2), N_BATCHES // 2)

    assert wrong_points(twice, tmp_path, epochs=5) == []


@pytest.mark.parametrize("make", LESS, ids=lambda make: make.__name__)
def test_where_the_place_cannot_be_brought_back_the_level_says_so_and_why(make: Make, tmp_path: Path) -> None:
    backup = saving(tmp_path / "run")
    read(make, backup, epochs=1)
    assert backup.level == "state"
    assert any(LESS[make] in reason for reason in backup.reasons), backup.reasons


@pytest.mark.parametrize("make", LESS, ids=lambda make: make.__name__)
def test_where_the_place_has_to_be_exact_and_cannot_be_it_is_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=LESS[make]):
        read(make, saving(tmp_path / "run", iterator="exact"))


def test_a_run_that_resumes_with_other_seeds_in_its_data_is_not_called_exact(tmp_path: Path) -> None:
    def reseeded() -> dict[str, Any]:
        tf.random.uniform(())  # the next to draw a seed draws another one
        return pipelines.endless(5)

    read(pipelines.of_steps(pipelines.endless, 5), saving(tmp_path / "run"), epochs=1)
    backup = resuming(tmp_path, 3)
    read(reseeded, backup)
    assert backup.level == "state"
    (reason,) = filter(is_about_data, backup.reasons)
    assert reason.startswith("this run has lost its place in the data: the position was saved by another")
    assert reason.endswith("it has other shuffles, or other seeds")
