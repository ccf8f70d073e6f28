"""A run that resumes within an epoch sees exactly the images of the uninterrupted run, in this and later epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.keras.data.iterator_state import read_iterator
from hpcckpt.keras.data.pipeline_state import Pipeline
from hpcckpt.train.models import OneHeadNet
from tests.support.train.parts import Make, numbers, pairs, raw, records

BOTH = pytest.mark.parametrize("make", [raw, records], ids=lambda make: make.__name__)
N_STEPS = 12


def train_of(make: Make, path: Path) -> Any:
    return pairs(make, path, 2, batch_size=8)[1][0]


def rest(iterator: Any) -> list[list[int]]:
    return [numbers(batch) for batch in iterator]


@BOTH
@pytest.mark.parametrize("done", [0, 1, 5, N_STEPS - 1, N_STEPS])
def test_the_place_of_an_iterator_brings_back_the_rest_and_the_next_epoch(
    make: Make, done: int, mnist_npz: Path
) -> None:
    dataset = train_of(make, mnist_npz)
    rest(iter(dataset))
    iterator = iter(dataset)
    pipeline = Pipeline(iterator, is_array=False, data={})
    assert not pipeline.doubt
    for _ in range(done):
        next(iterator)
    place = pipeline.place(iterator)
    expected = rest(iterator), rest(iter(dataset))
    assert len(expected[0]) == N_STEPS - done

    again = train_of(make, mnist_npz)
    iter(again)  # the epoch that is over
    iterator = iter(again)
    Pipeline(iterator, is_array=False, data={}).go_to(iterator, place)
    assert (rest(iterator), rest(iter(again))) == expected


def test_the_state_holds_no_images_beyond_the_batches_that_were_made_ahead(mnist_npz: Path) -> None:
    iterator = iter(raw(mnist_npz, batch_size=8, force_rgb=True, image_size=56)[0])
    next(iterator)
    assert read_iterator(iterator).nbytes < 3 * 8 * 28 * 28 + 4000


class Stop(keras.callbacks.Callback):
    """Ends a run as a kill would, after N batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations.numpy()) == self.batches:
            raise KeyboardInterrupt


def train(path: Path, run: Path, make: Make, *callbacks: Any) -> Any:
    """Train for two epochs; return the weights and the callback."""
    keras.utils.set_random_seed(5)
    data, valid = make(path, batch_size=16)
    model = OneHeadNet(10)
    model.build((None, 28, 28, 1))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    backup = hc.keras.BackupAndRestore(run, delete_checkpoint=False, every_n_batches=5, iterator="exact", verbose=0)
    try:
        model.fit(data, epochs=2, verbose=0, shuffle=False, validation_data=valid, callbacks=[backup, *callbacks])
    except KeyboardInterrupt:
        backup.close()
    return model.get_weights(), backup


@BOTH
@pytest.mark.parametrize("killed_at", [7, 12, 17])
def test_a_training_that_was_killed_ends_with_the_same_bits(
    make: Make, killed_at: int, mnist_npz: Path, tmp_path: Path
) -> None:
    expected, _ = train(mnist_npz, tmp_path / "straight", make)
    train(mnist_npz, tmp_path / "run", make, Stop(killed_at))
    weights, backup = train(mnist_npz, tmp_path / "run", make)
    assert backup.restored is not None
    assert backup.step == 24
    assert all(np.array_equal(one, other) for one, other in zip(weights, expected, strict=True))
