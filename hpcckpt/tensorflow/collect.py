"""What TensorFlow would save of an object and all that it refers to: the graph, and where each value comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcckpt.core.tensors import Kind
from hpcckpt.errors import StateError
from hpcckpt.keras.model.optimizers import is_optimizer
from hpcckpt.state.tf_variables import is_variable, tensorflow_variable
from hpcckpt.state.tree import Array, join
from hpcckpt.tensorflow.graph import GENERATOR, VARIABLE, Graph, Node, Value, bind, from_proto, tensor_name, value_key


def is_trackable(obj: Any) -> bool:
    """Return True if TensorFlow can track `obj`. Independent."""
    import tensorflow as tf

    return isinstance(obj, tf.__internal__.tracking.Trackable)


def is_table(obj: Any) -> bool:
    """Return True if `obj` is a lookup table that can change. Independent."""
    import tensorflow as tf

    return isinstance(obj, tf.lookup.experimental.MutableHashTable | tf.lookup.experimental.DenseHashTable)


def is_checkpoint(obj: Any) -> bool:
    """Return True if `obj` is a ``tf.train.Checkpoint``. Independent."""
    import tensorflow as tf

    return isinstance(obj, tf.train.Checkpoint | tf.compat.v1.train.Checkpoint)


@dataclass(frozen=True, slots=True)
class View:
    """An object as TensorFlow saves it.

    Parameters
    ----------
    root : object
        What is saved.
    graph_view : ObjectGraphView
        TensorFlow's own, which knows what a ``tf.train.Checkpoint`` was given beside its root.
    name : str
        What the names of the values begin with.
    """

    root: Any
    graph_view: Any
    name: str

    @classmethod
    def of(cls, obj: Any, name: str) -> View:
        """Return the view of an object. Independent."""
        import tensorflow as tf

        if is_checkpoint(obj):
            found = obj._saver._graph_view
            return cls(found.root, found, name)
        return cls(obj, tf.__internal__.tracking.ObjectGraphView(obj), name)

    def children(self, obj: Any) -> dict[str, Any]:
        """Return what an object refers to, by name. Independent."""
        return {name: child for name, child in self.graph_view.list_children(obj) if child is not None}


@dataclass(slots=True, eq=False)
class Gathered:
    """The state to save.

    Attributes
    ----------
    graph : tuple of Node
        The object graph.
    objects : dict of int to object
        The object of each node.
    values : dict of str to object
        Tensors, or functions that return them, by key.
    """

    graph: Graph
    objects: dict[int, Any]
    values: Mapping[str, Any]
    in_optimizers: set[int] = field(default_factory=set)
    random: set[int] = field(default_factory=set)

    def kind(self, number: int, name: str, full_name: str) -> Kind:
        """Return how ranks share a value, which an error calls `full_name`. Independent.

        Positions in data and random streams are per rank. Floating-point variables that are neither trained nor an
        optimizer's are statistics, which are not averaged: rank 0's are saved. All else is equal on all ranks.
        """
        obj = self.objects.get(number)
        if number in self.random or name in ("ITERATOR", GENERATOR):
            return "per-rank"
        if name != VARIABLE or not is_variable(obj):
            return "root"
        variable = tensorflow_variable(obj, full_name)
        is_statistic = variable.dtype.is_floating and not variable.trainable and number not in self.in_optimizers
        return "root" if is_statistic else "replicated"

    def table_digest(self, number: int) -> Array:
        """Return a digest of the entries of a table, in whatever order the table has them. Independent."""
        (value,) = self.graph[number].values.values()
        keys, entries = (self.values[key].numpy() for key in value.parts)
        rows = sorted(zip(_rows(keys), _rows(entries), strict=True))
        unused = _unused_keys(self.objects[number])
        digest = hashlib.blake2b(repr([row for row in rows if row[0] not in unused]).encode(), digest_size=16)
        return np.frombuffer(digest.digest(), np.uint8)


def _rows(array: Any) -> list[bytes]:
    return [repr(row).encode() if array.dtype.hasobject else np.asarray(row).tobytes() for row in array]


def _unused_keys(table: Any) -> set[bytes]:
    """Return the keys by which a ``DenseHashTable`` marks its entries as unused, as `_rows` does."""
    import tensorflow as tf

    marks = [getattr(table, name, None) for name in ("_empty_key", "_deleted_key")]
    keys = [tf.reshape(tf.convert_to_tensor(mark, table.key_dtype), [1, -1]) for mark in marks if mark is not None]
    return {row for key in keys for row in _rows(key.numpy())}


def gather(view: View) -> Gathered:
    """Return the state that TensorFlow would save. Independent.

    Raises
    ------
    StateError
        If it cannot be saved, or not eagerly.
    """
    import tensorflow as tf
    from tensorflow.python.checkpoint import save_util

    if not tf.executing_eagerly():
        raise StateError("nothing has a value while a graph is built: save and restore outside of tf.function")
    try:
        tensors, _, registered, proto = save_util.serialize_graph_view(view.graph_view)
    except tf.errors.FailedPreconditionError as error:
        names = [name for name, obj in _iterators(view) if name and not _can_save(obj)]
        what = f"{', '.join(names[:5])}: TensorFlow cannot save it" if names else "TensorFlow cannot save it"
        raise StateError(f"{what}: {' '.join(str(error.message).split())[:200]}") from error
    if registered:
        raise StateError(
            f"objects that TensorFlow saves in a way of their own ({', '.join(registered)}) cannot be saved"
        )
    values = {key: value for part in tensors.values() for key, value in part.items()}
    _refuse_parts(values, view.name)
    _refuse_quantized(values, view.name)
    graph = from_proto(proto, {key: odd_dtype(value.dtype) for key, value in values.items()})
    objects = bind(graph, view.root, view.children)
    gathered = Gathered(_with_hidden(graph, objects), objects, values)
    gathered.in_optimizers = set(_below(graph, objects, is_optimizer))
    gathered.random = set(_below(graph, objects, _is_generator))
    return gathered


def _iterators(view: View) -> Iterator[tuple[str, Any]]:
    """Yield the iterators over data, each with its name: the shortest path to it."""
    import tensorflow as tf

    waiting, seen = [(view.name, view.root)], {id(view.root)}
    for name, obj in waiting:  # grows meanwhile
        if isinstance(obj, tf.data.Iterator):
            yield name, obj
        new = {key: child for key, child in view.children(obj).items() if id(child) not in seen}
        seen |= {id(child) for child in new.values()}
        waiting += [(join(name, key), child) for key, child in new.items()]


def _can_save(iterator: Any) -> bool:
    import tensorflow as tf
    from tensorflow.python.checkpoint import save_util

    try:
        save_util.serialize_graph_view(View.of(iterator, "").graph_view)
    except tf.errors.FailedPreconditionError:
        return False
    return True


def _refuse_parts(values: Mapping[str, Any], name: str) -> None:
    parts = [key for key, value in values.items() if isinstance(value, dict)]
    if parts:
        raise StateError(
            f"{join(name, tensor_name(parts[0]))} is spread over devices: save its parts as hpcckpt.Sharded"
        )


def _refuse_quantized(values: Mapping[str, Any], name: str) -> None:
    import tensorflow as tf

    for key, value in values.items():
        if tf.as_dtype(value.dtype).is_quantized:
            raise StateError(
                f"{join(name, tensor_name(key))} has the dtype {value.dtype.name}, which cannot be saved: keep its "
                "values in a variable of whole numbers (tf.bitcast), and their scale beside it"
            )


def odd_dtype(dtype: Any) -> str:
    """Return TensorFlow's name of a dtype that NumPy has nothing like; empty for all others. Pure."""
    import tensorflow as tf

    return tf.as_dtype(dtype).name if dtype in (tf.string, tf.variant) else ""


def hidden_generator(obj: Any) -> Any:
    """Return the variable of a random stream that a layer of Keras 2.15 keeps to itself; ``None`` if there is none."""
    found = getattr(getattr(obj, "_random_generator", None), "_generator", None)
    return getattr(found, "state", None)


def _with_hidden(graph: Graph, objects: Mapping[int, Any]) -> Graph:
    """Return the graph with the random streams of layers, which TensorFlow is not shown."""
    names = _names(graph)
    nodes = list(graph)
    for number, obj in objects.items():
        if hidden_generator(obj) is not None and number in names:
            key = value_key(names[number], GENERATOR)
            values = {**graph[number].values, GENERATOR: Value(key, {key: ""})}
            nodes[number] = Node(graph[number].children, values, graph[number].slots)
    return tuple(nodes)


def _names(graph: Graph) -> dict[int, str]:
    """Return the way to each node from the root, the shortest one."""
    names = {0: ""}
    waiting = [0]
    for number in waiting:
        for name, child in graph[number].children.items():
            if child not in names:
                names[child] = f"{names[number]}/{name}".lstrip("/")
                waiting.append(child)
    return names


def _is_generator(obj: Any) -> bool:
    import tensorflow as tf

    return isinstance(obj, tf.random.Generator) or type(obj).__name__ == "SeedGenerator"


def _below(graph: Graph, objects: Mapping[int, Any], is_one: Callable[[Any], bool]) -> Iterator[int]:
    """Yield all nodes that objects of a sort refer to, directly or not."""
    waiting = [number for number, obj in objects.items() if is_one(obj)]
    seen = set(waiting)
    for number in waiting:
        yield number
        new = {*graph[number].children.values(), *(slot.variable for slot in graph[number].slots)} - seen
        seen |= new
        waiting += new
