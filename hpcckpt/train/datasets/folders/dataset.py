"""Folders of images as ``tf.data`` datasets, read as they are needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcckpt.errors import Problem, list_problems
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError
from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.folders.listing import Listing, check_same_classes, list_folders
from hpcckpt.train.datasets.images import Integers, mixed_order, n_for_training
from hpcckpt.train.datasets.pipelines import Pair
from hpcckpt.train.datasets.sharing import ranks
from hpcckpt.train.datasets.streaming.decoding import decoder
from hpcckpt.train.datasets.streaming.streams import Part, streamed
from hpcckpt.train.datasets.streaming.verifying import unreadable


def from_raw(
    directory: str | os.PathLike[str],
    batch_size: int = 64,
    validation: float | None = None,
    *,
    valid_directory: str | os.PathLike[str] | None = None,
    image_size: int | Sequence[int] = 224,
    channels: int = 3,
    crop: bool = False,
    limit: int | None = None,
    seed: int | None = None,
    verify: bool = False,
) -> Pair:
    """Return folders of images as datasets to train and to validate with, read as they are needed. Collective.

    A folder is a class; labels count the folders, sorted by name. The files are PNG or JPEG. Memory holds their names,
    and the images of a few batches.

    Parameters
    ----------
    directory : path_like
        What the folders are in; every rank must see it.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        The share of the images to validate with; by default 0.2, or none of them if there is a `valid_directory`.
    valid_directory : path_like, optional
        Folders of the same names, with images to validate with.
    image_size : int or [height, width]
        What the images are scaled to.
    channels : int
        1 is grey, 3 is colour.
    crop : bool
        Keep the proportions of an image, and cut off what is too much.
    limit : int, optional
        Train on at most this many images.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.
    verify : bool
        Decode all images before the first batch.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64. Both
        have `class_names`.

    Raises
    ------
    DatasetNotFoundError, DatasetDamagedError
        If the directory is not there, a folder has no images, or, with `verify`, images cannot be decoded; names them.
    OptionError
        If an argument makes no sense, or there are too few images.
    """
    feeding = Feeding(batch_size=batch_size, validation=validation, limit=limit, seed=seed)
    decode = decoder(image_size, channels, is_cropped=crop)
    train, valid = _listed(Path(directory), None if valid_directory is None else Path(valid_directory))
    parts = _shared(train, feeding) if valid is None or validation is not None else _apart(train, valid, feeding)
    if verify:
        _verify([train] if valid is None else [train, valid])
    every = [train] if valid is None else [train, valid]
    pair = streamed(*parts, decode, feeding, [[each.classes, each.names] for each in every])
    for dataset in pair:
        dataset.class_names = list(train.classes)
    return pair


def _listed(directory: Path, valid_directory: Path | None) -> tuple[Listing, Listing | None]:
    """Return what rank 0 finds, if every rank sees it. Collective."""

    def listed() -> tuple[Listing, Listing | None]:
        train = list_folders(directory)
        valid = None if valid_directory is None else list_folders(valid_directory)
        if valid is not None:
            check_same_classes(train, valid)
        return train, valid

    with ranks() as comm:
        found = comm.on_root("list the images", listed)
        comm.agree("see the images", lambda: [_check_seen(each) for each in found if each is not None])
    return found


def _check_seen(listing: Listing) -> None:
    for path in (listing.paths[0], listing.paths[-1]):
        if not os.path.exists(os.path.join(os.fsencode(listing.directory), path)):
            raise DatasetNotFoundError(
                f"{os.path.join(listing.directory, os.fsdecode(path))} is not there: every rank must see the images, "
                "so they have to be on a file system that they share"
            )


def _shared(listing: Listing, feeding: Feeding) -> tuple[Part, Part]:
    """Return parts of the same folders."""
    order = mixed_order(len(listing))
    cut = n_for_training(len(listing), feeding.share_of_validation)
    return _part(listing, order[: feeding.limited(cut)]), _part(listing, order[cut:])


def _apart(train: Listing, valid: Listing, feeding: Feeding) -> tuple[Part, Part]:
    """Return parts that each have folders of their own."""
    order = mixed_order(len(train))[: feeding.limited(len(train))]
    return _part(train, order), _part(valid, mixed_order(len(valid)))


def _part(listing: Listing, order: Integers) -> Part:
    paths, labels = np.array(listing.paths, object), np.array(listing.labels, np.int64)
    with tf.device("/CPU:0"):  # where pipelines run
        files, classes = tf.constant(paths[order], tf.string), tf.constant(labels[order])
    prefix = os.path.join(os.fsencode(listing.directory), b"")

    def name(number: Any) -> Any:
        return tf.strings.join([prefix, tf.gather(files, number)])

    def read(number: Any, _: int) -> tuple[Any, Any, Any]:
        path = name(number)
        return tf.io.read_file(path), tf.gather(classes, number), path

    return Part(len(order), read, name)


def _verify(listings: Sequence[Listing]) -> None:
    """Decode all images, each rank a share of them. Collective."""
    paths = [os.path.join(os.fsencode(each.directory), path) for each in listings for path in each.paths]
    with ranks() as comm:
        mine = unreadable(paths[comm.rank :: comm.size])
        found = sorted(name for names in comm.allgather(mine) for name in names)
    if found:
        problems = [Problem(name, "cannot be decoded") for name in found]
        raise DatasetDamagedError(f"{list_problems(problems, 5)}: replace these files, or remove them")
