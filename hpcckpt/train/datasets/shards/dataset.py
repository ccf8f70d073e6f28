"""Shards of TFRecords as ``tf.data`` datasets, each record read as it is needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcckpt.train.datasets.errors import DatasetNotFoundError
from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.images import n_for_training
from hpcckpt.train.datasets.pipelines import Pair
from hpcckpt.train.datasets.shards.index import Shard, read_classes, read_shards
from hpcckpt.train.datasets.sharing import ranks
from hpcckpt.train.datasets.streaming.decoding import decoder
from hpcckpt.train.datasets.streaming.streams import Part, streamed

_BUFFER_NBYTES = 1 << 16
"""Bytes that TensorFlow reads at once: about one image."""


def from_tfrecord(
    directory: str | os.PathLike[str],
    batch_size: int = 64,
    validation: float | None = None,
    *,
    train: str = "*.tfrecord",
    valid: str | None = None,
    image_key: str = "image",
    label_key: str = "label",
    first_label: int = 0,
    image_size: int | Sequence[int] = 224,
    channels: int = 3,
    crop: bool = False,
    run: int = 1,
    limit: int | None = None,
    seed: int | None = None,
) -> Pair:
    """Return shards of TFRecords as datasets to train and to validate with, read as they are needed. Collective.

    A record is an ``Example`` with an image, PNG or JPEG, and a label. The first time rank 0 searches the files for
    their records, reading 12 bytes of each, and keeps what it finds in ``records.npz`` beside them.

    Parameters
    ----------
    directory : path_like
        Where the files are; every rank must see it.
    batch_size : int
        Images in a batch **of each rank**: `n` ranks train on `n` times as many in a step.
    validation : float, optional
        The share of the records, at the end of the last files, to validate with; by default 0.2, or none of them if
        there are files for it.
    train : str
        The pattern of the files to train with.
    valid : str, optional
        That of files to validate with, which are not trained on.
    image_key, label_key : str
        The names of the features; ``image/encoded`` and ``image/class/label`` in ImageNet's usual shards.
    first_label : int
        The lowest label, which becomes 0.
    image_size : int or [height, width]
        What the images are scaled to.
    channels : int
        1 is grey, 3 is colour.
    crop : bool
        Keep the proportions of an image, and cut off what is too much.
    run : int
        Records that follow each other in a file are read together, so many: faster for small ones; they are then in
        the same batch.
    limit : int, optional
        Train on at most this many images.
    seed : int, optional
        Of the order, which is another one in each epoch; by default that of the training.

    Returns
    -------
    tuple of tf.data.Dataset
        Batches of images, float32 from 0 to 1 of shape (batch, height, width, channels), and of labels, int64. Both
        have `class_names`, empty if they are not known.

    Raises
    ------
    DatasetNotFoundError, DatasetDamagedError
        If there are no such files, or one of them is not whole; names it.
    OptionError
        If an argument makes no sense, or there are too few images.
    """
    feeding = Feeding(batch_size=batch_size, validation=validation, limit=limit, seed=seed)
    decode = decoder(image_size, channels, is_cropped=crop)
    patterns = [train] if valid is None else [train, valid]
    groups, classes = _opened(Path(directory), patterns)
    features = _Features(image_key, label_key, first_label)
    tables = [_Records(directory, shards, features) for shards in groups]
    n = len(tables[0])
    cut = n if valid is not None and validation is None else n_for_training(n, feeding.share_of_validation)
    to_train = tables[0].part(0, feeding.limited(cut), run)
    to_validate = tables[1].part(0, len(tables[1])) if cut == n else tables[0].part(cut, n)
    identity = [[[shard.file, shard.nbytes, len(shard.offsets)] for shard in shards] for shards in groups]
    pair = streamed(to_train, to_validate, decode, feeding, identity)
    for dataset in pair:
        dataset.class_names = classes
    return pair


def _opened(directory: Path, patterns: Sequence[str]) -> tuple[list[list[Shard]], list[str]]:
    """Return what rank 0 finds, if every rank sees it. Collective."""
    with ranks() as comm:
        groups, classes = comm.on_root(
            "open the shards", lambda: (read_shards(directory, patterns), read_classes(directory))
        )
        comm.agree("see the shards", lambda: _check_seen(directory, groups))
    return groups, classes


def _check_seen(directory: Path, groups: Sequence[Sequence[Shard]]) -> None:
    for path in (directory / shards[0].file for shards in groups):
        if not path.is_file():
            raise DatasetNotFoundError(
                f"{path} is not there: every rank must see the shards, so they have to be on a file system that they "
                "share"
            )


class _Features:
    """What a record holds."""

    def __init__(self, image_key: str, label_key: str, first_label: int) -> None:
        self._keys, self._first_label = (image_key, label_key), first_label
        image, label = tf.io.FixedLenFeature([], tf.string), tf.io.FixedLenFeature([], tf.int64)
        self._spec = {image_key: image, label_key: label}

    def parse(self, records: Any) -> tuple[Any, Any]:
        """Return the encoded images and the labels of records."""
        found = tf.io.parse_example(records, self._spec)
        image, label = (found[key] for key in self._keys)
        return image, label - self._first_label


class _Records:
    """The records of some shards, by their number."""

    def __init__(self, directory: str | os.PathLike[str], shards: Sequence[Shard], features: _Features) -> None:
        counts = np.array([len(shard.offsets) for shard in shards], np.int64)
        self._n, self._features = int(counts.sum()), features
        with tf.device("/CPU:0"):  # where pipelines run
            self._paths = tf.constant([os.fsencode(os.path.join(directory, shard.file)) for shard in shards])
            self._ends = tf.constant(np.cumsum(counts))
            self._offsets = tf.constant(np.concatenate([shard.offsets for shard in shards]))

    def __len__(self) -> int:
        return self._n

    def part(self, begin: int, end: int, run: int = 1) -> Part:
        """Return the records from one number to another."""

        def read(number: Any, n: int) -> tuple[Any, Any, Any]:
            return self._read(begin + number, n)

        return Part(end - begin, read, lambda number: self._names(begin + number), run, is_parallel=False)

    def _names(self, numbers: Any) -> Any:
        places = tf.searchsorted(self._ends, tf.reshape(numbers, [-1]), side="right")
        paths = tf.reshape(tf.gather(self._paths, places), tf.shape(numbers))
        return tf.strings.join([paths, ": the record at byte ", tf.as_string(tf.gather(self._offsets, numbers))])

    def _read(self, first: Any, run: int) -> tuple[Any, Any, Any]:
        """Read records that follow each other, in one file or across the end of some."""
        numbers = first + tf.range(run, dtype=tf.int64)
        places = tf.searchsorted(self._ends, numbers, side="right")
        begins = tf.gather(self._offsets, numbers)
        paths = self._paths[places[0] : places[-1] + 1]
        offsets = tf.concat([begins[:1], tf.zeros([places[-1] - places[0]], tf.int64)], 0)
        records = self._from(paths, offsets).take(run).batch(run, drop_remainder=True).get_single_element()
        images, labels = self._features.parse(records)
        names = self._names(numbers)
        return (images, labels, names) if run > 1 else (images[0], labels[0], names[0])

    @staticmethod
    def _from(paths: Any, offsets: Any) -> Any:
        """Return the records of files, of each from a byte on."""
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=paths,
            compression_type=tf.constant(""),
            buffer_size=tf.constant(_BUFFER_NBYTES, tf.int64),
            byte_offsets=offsets,
        )
        return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
