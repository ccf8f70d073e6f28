"""Which images make which batch: dealt to the ranks, in another order in each epoch, identical for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.support.train.parts import Make, epoch, flat, pairs, raw, records

BOTH = pytest.mark.parametrize("make", [raw, records], ids=lambda make: make.__name__)


@BOTH
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_all_ranks_together_see_no_image_twice_in_an_epoch(make: Make, n_ranks: int, mnist_npz: Path) -> None:
    seen = [flat(epoch(train)) for train, _ in pairs(make, mnist_npz, n_ranks, batch_size=8)]
    together = [number for one in seen for number in one]
    assert len(set(together)) == len(together)
    assert len(together) > 200 - 8 * n_ranks - (4 if make is records else 0)
    assert set(together) <= set(range(200))


@BOTH
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_all_ranks_have_as_many_batches_as_is_said_and_all_are_full(make: Make, n_ranks: int, mnist_npz: Path) -> None:
    found = [(int(train.cardinality()), epoch(train)) for train, _ in pairs(make, mnist_npz, n_ranks, batch_size=8)]
    assert {n for n, _ in found} == {len(batches) for _, batches in found}
    assert len({n for n, _ in found}) == 1
    assert {len(batch) for _, batches in found for batch in batches} == {8}


@BOTH
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_each_image_for_validation_is_on_one_rank_once(make: Make, n_ranks: int, mnist_npz: Path) -> None:
    seen = [flat(epoch(valid)) for _, valid in pairs(make, mnist_npz, n_ranks, batch_size=8)]
    assert sorted(number for one in seen for number in one) == list(range(200, 240))


@BOTH
def test_each_epoch_has_an_order_of_its_own(make: Make, mnist_npz: Path) -> None:
    train, valid = make(mnist_npz, batch_size=8)
    first, second = flat(epoch(train)), flat(epoch(train))
    assert first != second
    assert flat(epoch(valid)) == flat(epoch(valid))


@BOTH
def test_the_order_of_all_epochs_follows_from_the_seed(make: Make, mnist_npz: Path) -> None:
    def three_epochs(seed: int) -> list[Any]:
        train, _ = make(mnist_npz, batch_size=8, seed=seed)
        return [epoch(train) for _ in range(3)]

    assert three_epochs(3) == three_epochs(3)
    assert three_epochs(3) != three_epochs(4)


@BOTH
def test_the_order_is_mixed_well(make: Make, mnist_npz: Path) -> None:
    train, _ = make(mnist_npz, batch_size=8)
    places = [0] * 200
    for _ in range(30):
        for place, number in enumerate(flat(epoch(train))):
            places[number] += place
    means = [total / 30 for total in places]
    assert 60 < min(means) < max(means) < 140  # uniform: 99.5 ± 10.5, so 3.7 sigma


@BOTH
def test_ranks_with_different_seeds_of_tensorflow_still_deal_from_one_order(make: Make, mnist_npz: Path) -> None:
    seen: list[int] = []
    for rank in range(2):
        tf.random.set_seed(100 + rank)
        train, _ = pairs(make, mnist_npz, 2, batch_size=8)[rank]
        seen += flat(epoch(train))
    assert len(set(seen)) == len(seen)


def test_what_is_in_a_step_of_all_ranks_does_not_depend_on_how_many_they_are(mnist_npz: Path) -> None:
    (alone,) = (epoch(train) for train, _ in pairs(raw, mnist_npz, 1, batch_size=24))
    three = [epoch(train) for train, _ in pairs(raw, mnist_npz, 3, batch_size=8)]
    together = [sorted(one + two + other) for one, two, other in zip(*three, strict=True)]
    assert together == [sorted(step) for step in alone]


def test_where_files_can_be_dealt_each_rank_reads_its_own(mnist_npz: Path) -> None:
    seen = [set(flat(epoch(train))) for train, _ in pairs(records, mnist_npz, 2, batch_size=5)]
    (mnist_npz.with_suffix(".records") / "train-00002-of-00004.tfrecord").unlink()
    assert [len(one) for one in seen] == [100, 100]
    readable = []
    for train, _ in pairs_as_they_are(mnist_npz):
        try:
            readable.append(set(flat(epoch(train))))
        except tf.errors.NotFoundError:
            readable.append(None)
    assert readable.count(None) == 1


def pairs_as_they_are(path: Path) -> list[Any]:
    """Return the datasets of two ranks although a file has gone since they were opened."""
    from hpcckpt.train.datasets.feeding import Feeding
    from hpcckpt.train.datasets.sharing import Share
    from hpcckpt.train.datasets.tfrecords import reading
    from hpcckpt.train.datasets.tfrecords.index import read_index

    directory = path.with_suffix(".records")
    index = read_index(directory, "")
    feedings = [Feeding(batch_size=5, share=Share(rank, 2)) for rank in range(2)]
    parts = [reading._parts(directory, index, feeding) for feeding in feedings]
    return [(reading._training(part[0], index, feeding), None) for part, feeding in zip(parts, feedings, strict=True)]
