"""Synthetic images as ``tf.data`` datasets."""

from __future__ import annotations

import os

from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.pipelines import Pair, from_arrays
from hpcckpt.train.datasets.synthetic.parser import parse
from hpcckpt.train.datasets.synthetic.raw_to_tfrecord import recipe
from hpcckpt.train.datasets.tfrecords.reading import from_records


def from_raw(
    batch_size: int = 64,
    validation: float | None = None,
    *,
    n_images: int = 2000,
    size: int = 32,
    channels: int = 3,
    n_classes: int = 10,
    variant: int = 0,
    seed: int | None = None,
) -> Pair:
    """Return synthetic images as datasets to train and to validate with. Collective.

    Parameters
    ----------
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        The share of the images to validate with; by default 0.2.
    n_images, size, channels, n_classes, variant : int
        Which images; see `parse`.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64.

    Raises
    ------
    OptionError
        If an argument makes no sense.
    """
    feeding = Feeding(batch_size=batch_size, validation=validation, seed=seed)
    return from_arrays(parse(n_images, size, channels, n_classes, variant), feeding, "synthetic")


def from_tfrecord(
    directory: str | os.PathLike[str],
    batch_size: int = 64,
    validation: float | None = None,
    *,
    n_images: int = 2000,
    size: int = 32,
    channels: int = 3,
    n_classes: int = 10,
    variant: int = 0,
    seed: int | None = None,
    shuffle_buffer: int = 1024,
    convert: bool = False,
    verify: bool = False,
) -> Pair:
    """Return synthetic images as datasets to train and to validate with, read from TFRecords. Collective.

    Parameters
    ----------
    directory : path_like
        Where ``raw_to_tfrecord`` put it; every rank must see it.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        The share of the images to validate with; by default 0.2.
    n_images, size, channels, n_classes, variant : int
        Which images to make where `convert` says so; see `parse`.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.
    shuffle_buffer : int
        Records among which each rank draws its next one. It is part of every checkpoint: small for large images.
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
    feeding = Feeding(batch_size=batch_size, validation=validation, seed=seed, shuffle_buffer=shuffle_buffer)
    made_with = {"n_images": n_images, "size": size, "channels": channels, "n_classes": n_classes, "variant": variant}
    return from_records(recipe(**made_with), directory, feeding, is_converting=convert, is_thorough=verify)
