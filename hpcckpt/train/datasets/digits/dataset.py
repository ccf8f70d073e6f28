"""scikit-learn's digits as ``tf.data`` datasets."""

from __future__ import annotations

import os

from hpcckpt.train.datasets.digits.parser import parse
from hpcckpt.train.datasets.digits.raw_to_tfrecord import RECIPE
from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.pipelines import Pair, from_arrays
from hpcckpt.train.datasets.tfrecords.reading import from_records


def from_raw(
    batch_size: int = 64,
    validation: float | None = None,
    *,
    limit: int | None = None,
    force_rgb: bool = False,
    image_size: int | None = None,
    seed: int | None = None,
) -> Pair:
    """Return the digits as datasets to train and to validate with. Collective.

    Parameters
    ----------
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        The share of the images to validate with; by default 0.2.
    limit : int, optional
        Train on at most this many images.
    force_rgb : bool
        Three channels in place of one.
    image_size : int, optional
        Height and width to scale the images to, from 8.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64.

    Raises
    ------
    PackageMissingError
        If scikit-learn is not installed.
    OptionError
        If an argument makes no sense.
    """
    feeding = Feeding(
        batch_size=batch_size, validation=validation, limit=limit, force_rgb=force_rgb, image_size=image_size, seed=seed
    )
    return from_arrays(parse(), feeding, "digits")


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
    """Return the digits as datasets to train and to validate with, read from TFRecords. Collective.

    Parameters
    ----------
    directory : path_like
        Where ``raw_to_tfrecord`` put it; every rank must see it.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        The share of the images to validate with; by default 0.2.
    limit : int, optional
        Train on at most this many images.
    force_rgb : bool
        Three channels in place of one.
    image_size : int, optional
        Height and width to scale the images to, from 8.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.
    shuffle_buffer : int
        Records among which each rank draws its next one. It is part of every checkpoint.
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
    return from_records(RECIPE, directory, feeding, is_converting=convert, is_thorough=verify)
