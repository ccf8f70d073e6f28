"""What the tests of data sets share: which images a dataset hands out, by the number that is in each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.train.datasets import mnist, sharing

Make = Callable[..., Any]


def numbers(batch: Any) -> list[int]:
    """Return the numbers of the images in a batch, as `mnist_npz` has them."""
    images = batch[0].numpy()
    return [round(float(image[0, 0, 0]) * 255) for image in images]


def epoch(dataset: Any) -> list[list[int]]:
    """Return the numbers of the images in each batch of an epoch."""
    return [numbers(batch) for batch in dataset]


def flat(batches: list[list[int]]) -> list[int]:
    """Return the numbers of an epoch in one list."""
    return [number for batch in batches for number in batch]


def raw(path: Path, **options: Any) -> Any:
    """Return datasets of the arrays of a file."""
    return mnist.from_raw(path, **options)


def records(path: Path, **options: Any) -> Any:
    """Return datasets of TFRecords made of a file, beside it."""
    directory = path.with_suffix(".records")
    mnist.convert(directory, 4, path=path)
    return mnist.from_tfrecord(directory, **options)


def pairs(make: Make, path: Path, n_ranks: int, **options: Any) -> list[Any]:
    """Return what each of N ranks gets, made one after the other."""
    found = []
    make(path, batch_size=1)  # whatever one rank does for all is done
    for rank in range(n_ranks):
        with sharing(rank, n_ranks, comm=SerialCommunicator()):
            found.append(make(path, **options))
    return found
