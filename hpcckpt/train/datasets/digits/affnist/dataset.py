"""affNIST, generated, as ``tf.data`` datasets."""

from __future__ import annotations

import os
from pathlib import Path

from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.train.datasets.digits.affnist.parser import N_IMAGES, TITLES, Originals, at_hand, parse
from hpcckpt.train.datasets.digits.affnist.raw_to_tfrecord import origin, recipe
from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.pipelines import Pair, from_arrays
from hpcckpt.train.datasets.sharing import on_root
from hpcckpt.train.datasets.tfrecords.converting import is_taken
from hpcckpt.train.datasets.tfrecords.index import read_index
from hpcckpt.train.datasets.tfrecords.reading import from_records


def from_raw(
    batch_size: int = 64,
    validation: float | None = None,
    *,
    n_images: int = N_IMAGES,
    variant: int = 0,
    originals: Originals | None = None,
    force_rgb: bool = False,
    image_size: int | None = None,
    seed: int | None = None,
) -> Pair:
    """Return affNIST, generated in memory, as datasets to train and to validate with. Collective.

    Parameters
    ----------
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        A share of the images for training to validate with; by default those of originals that are not trained on.
    n_images, variant, originals : int, int, str
        Which images; see `parse`.
    force_rgb : bool
        Three channels in place of one.
    image_size : int, optional
        Height and width to scale the images to, from 40.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64.

    Raises
    ------
    DatasetNotFoundError
        If there are no digits to generate it from.
    OptionError
        If an argument makes no sense.
    """
    feeding = Feeding(
        batch_size=batch_size, validation=validation, force_rgb=force_rgb, image_size=image_size, seed=seed
    )
    found: Originals = on_root("find digits", at_hand) if originals is None else originals
    raw = parse(n_images, variant, found)
    on_root("tell what was generated", lambda: write_wrapped(f"hpcckpt: affnist: generated from {TITLES[found]}"))
    return from_arrays(raw, feeding, "affnist")


def from_tfrecord(
    affnist_tfrecord_dir: str | os.PathLike[str],
    batch_size: int = 64,
    validation: float | None = None,
    *,
    n_images: int = N_IMAGES,
    variant: int = 0,
    originals: Originals | None = None,
    limit: int | None = None,
    force_rgb: bool = False,
    image_size: int | None = None,
    seed: int | None = None,
    shuffle_buffer: int = 1024,
    convert: bool = True,
    verify: bool = False,
) -> Pair:
    """Return affNIST, generated, as datasets to train and to validate with, read from TFRecords. Collective.

    Rank 0 writes on standard error that the images are generated, and from what.

    Parameters
    ----------
    affnist_tfrecord_dir : path_like
        Where ``raw_to_tfrecord`` put it; every rank must see it.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        A share of the images for training to validate with; by default those of originals that are not trained on.
    n_images, variant, originals : int, int, str
        Which images to make if there are none; see `parse`.
    limit : int, optional
        Train on at most this many images.
    force_rgb : bool
        Three channels in place of one.
    image_size : int, optional
        Height and width to scale the images to, from 40.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.
    shuffle_buffer : int
        Records among which each rank draws its next one. It is part of every checkpoint, 1.6 kB each.
    convert : bool
        Generate the images if the directory is not there, or empty.
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
        If an argument makes no sense.
    """
    feeding = Feeding(
        batch_size=batch_size, validation=validation, limit=limit, force_rgb=force_rgb, image_size=image_size,
        seed=seed, shuffle_buffer=shuffle_buffer,
    )  # fmt: skip
    directory = Path(affnist_tfrecord_dir)
    is_absent = on_root("look for affNIST", lambda: not is_taken(directory))
    is_made = convert and is_absent
    found: Originals = on_root("find digits", at_hand) if is_made and originals is None else originals or "mnist"
    made = recipe(n_images, variant, found)
    pair = from_records(made, directory, feeding, is_converting=is_made, is_thorough=verify)
    on_root("tell what is read", lambda: write_wrapped(origin(directory, read_index(directory, made.command))))
    return pair
