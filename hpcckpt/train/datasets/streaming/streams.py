"""Datasets of examples that can be read in any order, by their number.

Stages of a training dataset, for each rank::

    1. numbers     this rank's runs of an epoch, one after another; the only part that a position consists of
    2. read        where these examples are in the order of the epoch; their encoded bytes, from storage
    3. decode      in parallel, in order
    4. batch, and two batches ahead
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hpcckpt.errors import OptionError
from hpcckpt.keras.data.pipeline_state import mark_as_seekable
from hpcckpt.keras.data.shuffle_state import ShuffleState
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.feeding import N_AHEAD, Feeding
from hpcckpt.train.datasets.ordering import epochs
from hpcckpt.train.datasets.pipelines import Pair, finish, made_ahead
from hpcckpt.train.datasets.streaming.decoding import Decode
from hpcckpt.train.datasets.streaming.verifying import first_damage, mark_searchable

_WHITE = 255
_N_SEARCHED = 2 + N_AHEAD
"""Batches from which on a damaged example is searched: more are not read ahead."""
_N_READ_AHEAD = 16
"""Runs that are read while others are decoded, where reading is not parallel."""


@dataclass(frozen=True, slots=True)
class Part:
    """Examples that can be read by their number.

    Attributes
    ----------
    n : int
        How many.
    read : callable
        Takes the number of an example, and how many; returns its encoded bytes, its label (int64), and its name. For
        more than one: those of so many examples from there on, as vectors.
    name : callable
        Takes the number of an example; returns its name: a file, or a place in one.
    run : int
        How many follow each other on storage, and are read at once.
    is_parallel : bool
        Whether several are read at once.
    """

    n: int
    read: Callable[[Any, int], tuple[Any, Any, Any]]
    name: Callable[[Any], Any]
    run: int = 1
    is_parallel: bool = True


def streamed(train: Part, valid: Part, decode: Decode, feeding: Feeding, identity: Any) -> Pair:
    """Return datasets of examples on storage, as `from_arrays` does of arrays. Independent.

    Parameters
    ----------
    train, valid : Part
        To train with, in another order in each epoch, and to validate with, one by one and in order.
    decode : callable
        See `decoder`.
    feeding : Feeding
        How to hand the images out.
    identity : JSON value
        What the examples are, the same wherever they are: a position in others is refused.

    Returns
    -------
    tuple
        As of `from_arrays`. The images of a step of all ranks are the same for any number of ranks, if the total batch
        size is the same; and a run on another number of ranks resumes within an epoch without reading what was read.
    """
    feeding.check_validation(valid.n)
    if not is_whole(train.run, 1) or feeding.batch_size % train.run:
        raise OptionError(f"run: {train.run!r} – a number of records that divides the batch size, {feeding.batch_size}")
    return _Training(train, decode, feeding, _digest(identity, train)).dataset(), _validation(valid, decode, feeding)


def _digest(identity: Any, train: Part) -> int:
    """Return a number from 1 to 2^63 that differs for other examples. Pure."""
    text = json.dumps([identity, train.n, train.run], sort_keys=True)
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1) or 1


class _Training:
    """The stages of a training dataset; those that begin within an epoch share the source of its order."""

    def __init__(self, part: Part, decode: Decode, feeding: Feeding, digest: int) -> None:
        self._part, self._decode, self._feeding = part, decode, feeding
        self._n_runs = part.n // part.run
        self._n_steps = feeding.n_steps(self._n_runs * part.run)
        self._per_step = feeding.batch_size // part.run
        self._drawn = epochs(feeding.order, digest)

    def dataset(self) -> Any:
        made = self._from_batch(0)
        mark_as_seekable(made, self._from_batch)
        mark_searchable(made, self._first_damage)
        return made

    def _from_batch(self, batch: int) -> Any:
        """Return the dataset that begins with a batch of an epoch.

        Numbers that come before are counted, not used, so positions mean the same in all these datasets. The first
        number, -1, is always skipped: TensorFlow removes a stage that skips nothing, and positions would not fit.
        """
        n_mine = self._n_steps * self._per_step
        numbers = self._drawn.flat_map(lambda drawn: tf.data.Dataset.range(-1, n_mine).map(lambda i: (i, drawn)))
        counted = numbers.apply(tf.data.experimental.assert_cardinality(n_mine + 1))
        mine = counted.skip(1 + batch * self._per_step)
        batches = self._decoded(mine).batch(self._per_step, drop_remainder=True)
        return made_ahead(batches, self._look(), is_read_again=True)

    def _decoded(self, numbers: Any) -> Any:
        if self._part.is_parallel:
            return numbers.map(lambda *number: self._decode_all(*self._read(*number)), tf.data.AUTOTUNE)
        return numbers.map(self._read).prefetch(_N_READ_AHEAD).map(self._decode_all, tf.data.AUTOTUNE)

    def _read(self, number: Any, drawn: Any) -> tuple[Any, Any, Any]:
        return self._part.read(self._first_of(number, drawn), self._part.run)

    def _first_of(self, number: Any, drawn: Any) -> Any:
        """Return the first example of a run of this rank, by its number in the order of the epoch."""
        rank, size = self._feeding.share
        run = tf.random.experimental.index_shuffle(number * size + rank, drawn, self._n_runs - 1)
        n_spare = self._part.n - self._n_runs * self._part.run
        shift = tf.math.floormod(drawn[0], n_spare + 1)  # which examples are left out differs from epoch to epoch
        return run * self._part.run + shift

    def _decode_all(self, encoded: Any, labels: Any, names: Any) -> tuple[Any, Any]:
        if self._part.run == 1:
            return self._decode(encoded, names), labels
        decoded = tf.map_fn(lambda each: self._decode(*each), (encoded, names), fn_output_signature=tf.uint8)
        return decoded, labels

    def _first_damage(self, batch: int) -> str:
        """Return the first example from a batch of the last epoch on that cannot be read, of those read ahead."""
        state = ShuffleState(self._drawn)
        state.take_back()
        drawn = next(iter(self._drawn))
        runs = range(batch * self._per_step, min(batch + _N_SEARCHED, self._n_steps) * self._per_step)
        firsts = (int(self._first_of(tf.constant(number, tf.int64), drawn)) for number in runs)
        examples = (first + number for first in firsts for number in range(self._part.run))
        return first_damage(self._part, self._decode, examples)

    def _look(self) -> Callable[[Any, Any], tuple[Any, Any]]:
        look, n = finish(_WHITE, self._feeding), self._feeding.batch_size
        if self._part.run == 1:
            return look
        return lambda images, labels: look(tf.reshape(images, (n, *images.shape[2:])), tf.reshape(labels, (n,)))


def _validation(part: Part, decode: Decode, feeding: Feeding) -> Any:
    rank, size = feeding.share
    numbers = tf.data.Dataset.range(part.n).shard(size, rank)

    def decoded(encoded: Any, label: Any, name: Any) -> tuple[Any, Any]:
        return decode(encoded, name), label

    if part.is_parallel:
        images = numbers.map(lambda number: decoded(*part.read(number, 1)), tf.data.AUTOTUNE)
    else:
        images = numbers.map(lambda number: part.read(number, 1)).prefetch(_N_READ_AHEAD).map(decoded, tf.data.AUTOTUNE)
    made = made_ahead(images.batch(feeding.batch_size), finish(_WHITE, feeding), is_read_again=True)
    mark_searchable(made, lambda _: first_damage(part, decode, range(rank, part.n, size)))
    return made
