"""Datasets of a directory of TFRecords.

Files in another order in each epoch, some at a time, records taken from them in turn, one of `shuffle_buffer` drawn.
Where the files can be dealt evenly each rank reads its own, others in each epoch; else each reads all files, and
leaves out the others' records before it looks into them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from hpcckpt.train.datasets.feeding import Feeding
from hpcckpt.train.datasets.images import n_for_training
from hpcckpt.train.datasets.ordering import epochs, shuffled, shuffled_range
from hpcckpt.train.datasets.pipelines import Pair, finish, made_ahead
from hpcckpt.train.datasets.sharing import ranks
from hpcckpt.train.datasets.tfrecords.converting import Recipe, make_once
from hpcckpt.train.datasets.tfrecords.index import Index, Shard, check_files, read_index

_N_OPEN = 4
"""Files that are read by turns."""
_N_IN_TURN = 16
"""Records of one before the next has its turn."""


class RecordRange(NamedTuple):
    """Records of a file that follow each other."""

    path: str
    first: int
    n_records: int


def from_records(
    recipe: Recipe, directory: str | os.PathLike[str], feeding: Feeding, *, is_converting: bool, is_thorough: bool
) -> Pair:
    """Return datasets of a directory of TFRecords, like `from_arrays`. Collective.

    Parameters
    ----------
    recipe : Recipe
        The data set in it.
    directory : path_like
        The directory; every rank must see it.
    feeding : Feeding
        How to batch the images.
    is_converting : bool
        Whether to make the directory if it does not exist.
    is_thorough : bool
        Whether to read all files first, and compare their checksums.

    Raises
    ------
    DatasetNotFoundError, DatasetDamagedError
        If the directory does not exist, or differs from its index.
    """
    place = Path(directory)
    index = _opened(recipe, place, is_converting=is_converting, is_thorough=is_thorough)
    train, valid = _parts(place, index, feeding)
    return _training(train, index, feeding), _validation(valid, index, feeding)


def _opened(recipe: Recipe, directory: Path, *, is_converting: bool, is_thorough: bool) -> Index:
    """Return the index of a directory whose files every rank sees. Collective."""
    remedy = f"{recipe.remedy(directory)}, or give convert=true"

    def open_or_make() -> Index:
        if is_converting:
            return make_once(recipe, directory)
        index = read_index(directory, remedy)
        check_files(directory, index, remedy, is_thorough=is_thorough)
        return index

    with ranks() as comm:
        index = comm.on_root(f"open the TFRecords of {recipe.name}", open_or_make)
        shared = f"{remedy}; every rank must see it, so it has to be on a file system that they share"
        comm.agree(
            f"see the TFRecords of {recipe.name}", lambda: check_files(directory, index, shared, is_thorough=False)
        )
    return index


# -- which records -------------------------------------------------------------------------------


def _parts(directory: Path, index: Index, feeding: Feeding) -> tuple[list[RecordRange], list[RecordRange]]:
    """Return what is for training and for validation."""
    n_all = sum(shard.n_records for shard in index.train)
    if index.valid and feeding.validation is None:
        valid = _within(directory, index.valid, 0, sum(shard.n_records for shard in index.valid))
        return _within(directory, index.train, 0, feeding.limited(n_all)), valid
    cut = n_for_training(n_all, feeding.share_of_validation)
    train = _within(directory, index.train, 0, feeding.limited(cut))
    return train, _within(directory, index.train, cut, n_all)


def _within(directory: Path, shards: Sequence[Shard], begin: int, end: int) -> list[RecordRange]:
    """Return the records from number `begin` to `end` of all files together."""
    parts, first = [], 0
    for shard in shards:
        low, high = max(begin - first, 0), min(end - first, shard.n_records)
        if low < high:
            parts.append(RecordRange(str(directory / shard.file), low, high - low))
        first += shard.n_records
    return parts


def _is_even(parts: Sequence[RecordRange], size: int) -> bool:
    """Return True if all ranks read the same number of files, whose numbers of records differ by at most one."""
    counts = [part.n_records for part in parts]
    return len(parts) % size == 0 and max(counts) - min(counts) <= 1


# -- datasets ------------------------------------------------------------------------------------


def _training(parts: Sequence[RecordRange], index: Index, feeding: Feeding) -> Any:
    rank, size = feeding.share
    is_by_file = _is_even(parts, size)
    fewest = size * sum(sorted(part.n_records for part in parts)[: len(parts) // size])
    n_steps = feeding.n_steps(fewest if is_by_file else sum(part.n_records for part in parts))

    def epoch(numbers: Any) -> Any:
        files = shuffled_range(len(parts), numbers)
        mine = files.shard(size, rank) if is_by_file else files
        records = mine.map(_lookup(parts)).interleave(_read, cycle_length=_N_OPEN, block_length=_N_IN_TURN)
        return shuffled(records if is_by_file else records.shard(size, rank), feeding.shuffle_buffer, numbers)

    records = epochs(feeding.order).flat_map(epoch)
    batches = records.batch(feeding.batch_size, drop_remainder=True).take(n_steps).map(_parser(index))
    counted = batches.apply(tf.data.experimental.assert_cardinality(n_steps))
    return made_ahead(counted, finish(index.white, feeding))


def _validation(parts: Sequence[RecordRange], index: Index, feeding: Feeding) -> Any:
    rank, size = feeding.share
    n_valid = sum(part.n_records for part in parts)
    feeding.check_validation(n_valid)
    files = tf.data.Dataset.range(len(parts)).map(_lookup(parts))
    records = files.flat_map(_read).shard(size, rank)
    n_steps = -(-len(range(rank, n_valid, size)) // feeding.batch_size)
    batches = records.batch(feeding.batch_size).map(_parser(index))
    counted = batches.apply(tf.data.experimental.assert_cardinality(n_steps))
    return made_ahead(counted, finish(index.white, feeding))


def _lookup(parts: Sequence[RecordRange]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what turns the number of a part into a path, and which records."""
    columns = [tf.constant(column) for column in zip(*parts, strict=True)]
    columns[1:] = [tf.cast(column, tf.int64) for column in columns[1:]]
    return lambda number: tuple(tf.gather(column, number) for column in columns)


def _read(path: Any, first: Any, n_records: Any) -> Any:
    return tf.data.TFRecordDataset(path).skip(first).take(n_records)


def _parser(index: Index) -> Callable[[Any], tuple[Any, Any]]:
    """Return what turns a batch of records into bytes and labels."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(records, features)
        pixels = tf.io.decode_raw(found["image"], tf.uint8)
        return tf.reshape(pixels, (records.shape[0] or -1, *index.shape)), found["label"]

    return parse
