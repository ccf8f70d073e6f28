"""How often the shuffles of a ``tf.data`` pipeline have drawn an order: read and set, without drawing.

All iterators of a shuffle share one generator, and each draws an order from it when it is made: for an epoch, for a
round of a repetition, for a validation on the same data.  An iterator's state holds how often that was, but only while
the shuffle has data to hand out: when all has been read ahead, it is gone, and with it the order of the next round.
So each shuffle gets a probe: an iterator of it that is never read, whose state always holds the count.

1. A probe draws once when it is made, before anything is read from the pipeline; the count is set back.
2. Its state holds how often all iterators of the shuffle have drawn.
3. A state with another count is written into it, and the generator continues from there.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcckpt.errors import StateError
from hpcckpt.keras.data.iterator_state import datasets_of, read_iterator, upstream, write_iterator
from hpcckpt.state.tree import Array

_RANDOM = {"_ShuffleDataset": "_reshuffle_each_iteration", "_RandomDataset": "_rerandomize"}
"""Random datasets, and the attribute that is true if each of their iterators draws again."""
_MARK = "_hpcckpt_seeds"
_KEEPING = {"CacheDataset", "_SnapshotDataset"}
_DRAWING_OPERATIONS = (b"Shuffle", b"RandomDataset")
_STATEFUL = re.compile(
    r"PyFunc|GeneratorDataset|^(Random(?!Dataset|IndexShuffle)|Stateful[SUTRB]|TruncatedNormal|Multinomial|Rng)"
)
"""Operations whose state is outside of iterators; TensorFlow reports that only while they have data left."""
_COUNT = b"epoch_num_random_samples"
"""TensorFlow's name for the count of draws in an iterator's state."""
_ELEMENT = b"num_components"
"""The entry of each slot in a shuffle's buffer."""
_SEPARATOR = b"@@"
_MORE, _MAX_DIGITS = 0x80, 10
"""How lengths are written: the mark of a byte that is not the last one, and how many bytes there are at most."""
_IGNORE = 1
_UNKNOWN = "TensorFlow does not say how often a shuffle has drawn"


class ShuffleState:
    """The shuffles of a pipeline that has not been read from.

    Parameters
    ----------
    dataset : tf.data.Dataset
        The pipeline.

    Attributes
    ----------
    seeds : list of list of int
        The two of each shuffle.

    Raises
    ------
    StateError
        If the counts cannot be read and set.
    """

    def __init__(self, dataset: Any) -> None:
        self.seeds = [_seeds(one) for one in datasets_of(dataset) if _is_random(one)]
        drawing = [one for one in datasets_of(dataset) if _draws(one)]
        self._per_draw = _count_per_draw() if drawing else 0
        self._probes = [_Probe(one, self._per_draw) for one in drawing]
        self._is_plain = _is_plain(dataset)

    def read(self) -> list[int]:
        """Return how often each shuffle has drawn. Independent."""
        return [one.read() for one in self._probes]

    def write(self, counts: Sequence[int]) -> None:
        """Set how often each shuffle has drawn. Independent."""
        for one, count in zip(self._probes, counts, strict=True):
            one.write(count)

    def take_back(self) -> None:
        """Have each shuffle draw the order again that it has drawn last. Independent."""
        self.write([count - self._per_draw for count in self.read()])

    def are_in(self, state: Array) -> bool:
        """Return True if an iterator's state holds all counts; reading them is slow where buffers are large."""
        return self._is_plain and state.tobytes().count(_COUNT) == len(self.seeds)


class _Probe:
    """An iterator of a shuffle that is never read.

    Parameters
    ----------
    dataset : tf.data.Dataset
        The shuffle.
    per_draw : int
        To be subtracted from the count: what the probe itself has drawn.
    """

    def __init__(self, dataset: Any, per_draw: int) -> None:
        self._iterator = _unread(dataset)
        parts = _parts(self._state())
        self._empty = list(itertools.takewhile(lambda part: _ELEMENT not in _entries(part), parts))
        if per_draw:
            self.write(_count_in(self._empty) - per_draw)

    def read(self) -> int:
        """Return how often the shuffle has drawn. Independent."""
        return _count_in(_parts(self._state()))

    def write(self, count: int) -> None:
        """Set how often the shuffle has drawn. Independent."""
        write_iterator(self._iterator, _packed([_with_count(part, count) for part in self._empty]))

    def _state(self) -> Array:
        return read_iterator(self._iterator, is_ignoring=True)


@functools.cache
def _count_per_draw() -> int:
    """Return by how much one draw increases the count, after checking that it can be read and set.

    Raises
    ------
    StateError
        If it cannot.
    """
    import tensorflow as tf

    dataset = tf.data.Dataset.range(1).shuffle(1, seed=1)
    probe = _Probe(dataset, 0)
    once = probe.read()
    _unread(dataset)
    twice = probe.read()
    probe.write(once)
    if not 0 < once < twice or probe.read() != once:
        raise StateError(_UNKNOWN)
    return twice - once


def doubt_of(dataset: Any) -> str:
    """Return why the position in a pipeline cannot be restored, despite its iterators' state; empty if it can."""
    every = list(datasets_of(dataset))
    if any(_is_random(one) and not any(_seeds(one)) for one in every):
        return "the pipeline was shuffled before a seed was set"
    if any(type(one).__name__ in _KEEPING and any(map(_draws, upstream(one))) for one in every):
        return (
            "a cache keeps the order of the first epoch, which is not in an iterator's state: cache before you shuffle"
        )
    if any(map(_is_shuffled, _captured(every))):
        return "a function of the pipeline reads another one that is shuffled"
    stateful = sorted(filter(_STATEFUL.search, _operations(every)))
    return f"{stateful[0]} is stateful" if stateful else ""


def share_a_shuffle(one: Any, other: Any) -> bool:
    """Return True if two pipelines draw from the same generator."""
    drawing = {id(dataset) for dataset in datasets_of(one) if _draws(dataset)}
    return any(id(dataset) in drawing for dataset in datasets_of(other))


def mark_as_random(dataset: Any, seeds: Sequence[int]) -> None:
    """Mark a dataset without a specific class as one whose iterators each draw an order, from these seeds."""
    setattr(dataset, _MARK, list(seeds))


def _is_random(dataset: Any) -> bool:
    return type(dataset).__name__ in _RANDOM or hasattr(dataset, _MARK)


def _draws(dataset: Any) -> bool:
    """Return True if each iterator of a dataset draws another order."""
    return _is_random(dataset) and bool(getattr(dataset, _RANDOM.get(type(dataset).__name__, ""), True))


def _is_plain(dataset: Any) -> bool:
    """Return True if a pipeline has one iterator of each shuffle at most, and makes no others in its functions."""
    import tensorflow as tf

    every = [dataset, *upstream(dataset)]
    functions = [one for each in every for one in getattr(each, "_functions", list)()]
    makes_more = any(isinstance(one.output_structure, tf.data.DatasetSpec) for one in functions)
    return not makes_more and len({id(one) for one in every}) == len(every)


def _seeds(dataset: Any) -> list[int]:
    return getattr(dataset, _MARK, None) or [int(getattr(dataset, name, 0)) for name in ("_seed", "_seed2")]


def _captured(every: Sequence[Any]) -> Iterator[Any]:
    """Yield the pipelines that functions of datasets read, and datasets of unknown origin."""
    import tensorflow as tf

    for dataset in every:
        if type(dataset).__name__ == "_VariantDataset" and not _is_random(dataset):
            yield dataset._variant_tensor
        for wrapper in getattr(dataset, "_functions", list)():
            yield from (held for held in wrapper.function.captured_inputs if held.dtype == tf.variant)


def _operations(every: Sequence[Any]) -> set[str]:
    """Return the kinds of operations in the functions of datasets."""
    functions = [one.function for each in every for one in getattr(each, "_functions", list)()]
    graphs = [function.graph.as_graph_def() for function in functions]
    inner = [graph.library.function for graph in graphs]
    nodes = [graph.node for graph in graphs] + [one.node_def for library in inner for one in library]
    return {node.op for some in nodes for node in some}


def _is_shuffled(variant: Any) -> bool:
    """Return True if a dataset draws anywhere, or cannot be inspected."""
    import tensorflow as tf

    try:
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE).numpy()
    except (tf.errors.OpError, ValueError):
        return True
    return any(operation in graph for operation in _DRAWING_OPERATIONS)


def _unread(dataset: Any) -> Any:
    """Return an iterator of a dataset, without any automatic prefetch."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_warm_start = False
    try:
        return iter(dataset.with_options(options))
    except tf.errors.OpError as error:
        raise StateError(_UNKNOWN) from error


# -- states as TensorFlow writes them: parts, each of which has a name, names of entries, and their values -----------


def _parts(state: Array) -> Iterator[Any]:
    """Yield the parts of a state: all lengths first, then the parts; a large buffer has many."""
    from tensorflow.core.framework.tensor_pb2 import TensorProto, VariantTensorDataProto

    parsed = TensorProto.FromString(state.tobytes())
    content, count = parsed.tensor_content, parsed.tensor_shape.dim[0].size
    ends = np.flatnonzero(np.frombuffer(content, np.uint8, min(len(content), _MAX_DIGITS * count)) < _MORE)[:count] + 1
    at, first = (int(ends[-1]), 0) if count else (0, 0)
    for end in ends.tolist():
        length = _number(content[first:end])
        yield VariantTensorDataProto.FromString(content[at : at + length])
        at, first = at + length, end


def _number(digits: bytes) -> int:
    """Return a number whose bytes hold seven bits each, the lowest first, and all but the last a mark. Pure."""
    return sum((digit & ~_MORE) << 7 * place for place, digit in enumerate(digits))


def _entries(part: Any) -> list[bytes]:
    """Return the names of entries, without their prefixes."""
    return [entry.rpartition(b":")[2] for entry in part.metadata.split(_SEPARATOR)[1:]]


def _count_in(parts: Iterable[Any]) -> int:
    """Return how often a shuffle had drawn, from the parts of its state."""
    part = next((part for part in parts if _COUNT in _entries(part)), None)
    if part is None:
        raise StateError(_UNKNOWN)
    return int(_values(part)[_entries(part).index(_COUNT)])


def _values(part: Any) -> list[Any]:
    """Return the values of a shuffle's part, all numbers, which TensorFlow packs into one."""
    import tensorflow as tf

    types = [tf.int64] * len(_entries(part))
    try:
        packed = tf.io.parse_tensor(part.tensors[0].SerializeToString(), tf.variant)
        values = tf.raw_ops.UncompressElement(compressed=packed, output_types=types, output_shapes=[()] * len(types))
    except (tf.errors.OpError, ValueError, IndexError) as error:
        raise StateError(_UNKNOWN) from error
    return [value.numpy() for value in values]


def _with_count(part: Any, count: int) -> Any:
    """Return a part of a shuffle that has drawn `count` times, with an empty buffer."""
    import tensorflow as tf

    entries = _entries(part)
    values = dict(zip(entries, _values(part), strict=True)) if _COUNT in entries else dict.fromkeys(entries, 0)
    numbers = [count if name == _COUNT else values[name] for name in entries]
    made = type(part)(type_name=part.type_name, metadata=part.metadata)
    made.tensors.extend(tf.make_tensor_proto(number, tf.int64) for number in numbers)
    return made


def _packed(parts: Sequence[Any]) -> Array:
    from tensorflow.core.framework.tensor_pb2 import TensorProto
    from tensorflow.core.framework.types_pb2 import DT_VARIANT

    state = TensorProto(dtype=DT_VARIANT, variant_val=parts)
    state.tensor_shape.dim.add(size=len(parts))
    return np.frombuffer(state.SerializeToString(), np.uint8)
