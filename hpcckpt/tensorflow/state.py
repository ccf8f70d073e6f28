"""Adapter for all that ``tf.train.Checkpoint`` can track: its values as leaves, restored now or when they are created.

Names are TensorFlow's own, without its suffix for variables: ``model/dense/kernel``, ``step``, ``it/.ITERATOR_STATE``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import OWN_SUFFIX, Extent, Kind, TensorSpec
from hpcckpt.errors import StateMismatchError
from hpcckpt.keras.model.finalize import finalize_layers
from hpcckpt.keras.model.layers import is_layer
from hpcckpt.keras.model.state import leaves as keras_leaves
from hpcckpt.state.tf_variables import VariableLeaf, is_variable, tensorflow_variable, variable_leaf
from hpcckpt.state.tree import Array, DynamicPart, Finish, Leaf, ObjectLeaf, Resolved, TensorLeaf, declare, join
from hpcckpt.tensorflow.collect import Gathered, View, gather, hidden_generator, is_table, is_trackable, odd_dtype
from hpcckpt.tensorflow.deferred_restore import read
from hpcckpt.tensorflow.graph import GENERATOR, PYTHON, VARIABLE, Graph, bind, from_json, tensor_name, to_json

GRAPH = ".graph"
"""Last part of the name of the object graph."""
_log = logging.getLogger("hpcckpt")
_STATUS = "_hpcckpt_status"
"""Attribute of the restored object. Not a table here: the status refers to the object, which would never be freed."""
_LENIENT: weakref.WeakSet[Any] = weakref.WeakSet()


def leaves(obj: Any, name: str) -> Iterator[Leaf] | None:
    """Return the leaves of something of TensorFlow's; ``None`` for anything else. Independent.

    Parameters
    ----------
    obj : object
        The thing.
    name : str
        What the names begin with; empty for the state itself.

    Raises
    ------
    StateError
        If it holds what cannot be saved.
    """
    found = keras_leaves(obj, name)
    if found is not None or not is_trackable(obj) or _is_walked(obj):
        return found
    return _Part(obj, name, View.of(obj, name)).leaves()


def _is_walked(obj: Any) -> bool:
    """Return True for containers and objects with a state_dict that are not TensorFlow's own."""
    has_state_dict = hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict")
    return has_state_dict or isinstance(obj, list | tuple | Mapping)


def be_lenient(root: Any) -> None:
    """Let a restore leave objects alone that the checkpoint has nothing for, as TensorFlow does. Independent."""
    _LENIENT.add(root)


def last_status(root: Any) -> Any:
    """Return TensorFlow's status object of the last restore. Independent.

    Parameters
    ----------
    root : object
        A ``tf.train.Checkpoint`` or another tracked object that was restored, itself or as a part of a state.

    Returns
    -------
    CheckpointLoadStatus or None
        With ``assert_consumed()``, ``assert_existing_objects_matched()``, ``expect_partial()``.
    """
    return getattr(root, _STATUS, None)


class _Rest(NamedTuple):
    """What TensorFlow is to restore, by key, and which value of which object one of it is, if there is the object."""

    values: dict[str, Array]
    place: tuple[Hashable, ...] | None


@dataclass(slots=True, eq=False)
class _Part:
    """A trackable object within a state."""

    root: Any
    name: str
    view: View
    own: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The names of its values now -> number of the object, and how the value is called there."""

    # -- saving ----------------------------------------------------------------------------------

    def leaves(self) -> Iterator[Leaf]:
        """Yield the leaves, as things are now."""
        gathered = gather(self.view)
        yield ObjectLeaf(join(self.name, GRAPH), to_json(gathered.graph), {}, GRAPH)
        for number, node in enumerate(gathered.graph):
            for value_name, value in node.values.items():
                for key in value.parts:
                    yield from self._tensor_leaves(gathered, number, value_name, key)
        yield DynamicPart(lambda specs, objects: self._fit(gathered, specs, objects), self.name)

    def _tensor_leaves(self, gathered: Gathered, number: int, value_name: str, key: str) -> Iterator[TensorLeaf]:
        full = join(self.name, tensor_name(key))
        kind = gathered.kind(number, value_name, full)
        self.own[full] = number, value_name
        variable = _variable_of(gathered.objects.get(number), value_name, full)
        if variable is not None:
            yield variable_leaf(variable, full, kind)
            return
        array = _array(gathered.values[key])
        if is_table(gathered.objects.get(number)):
            is_first = key == next(iter(gathered.graph[number].values[value_name].parts))
            yield _TableLeaf(array, full, functools.partial(gathered.table_digest, number) if is_first else None)
            return
        if value_name == PYTHON:  # its length may differ between ranks
            del self.own[full]
            full, kind = join(full, OWN_SUFFIX), "per-rank"
            self.own[full] = number, value_name
        yield _read_leaf(array, full, kind, is_value=kind == "replicated")

    # -- restoring -------------------------------------------------------------------------------

    def _fit(self, gathered: Gathered, specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
        """Say what becomes of the leaves with a checkpoint. Independent."""
        if join(self.name, GRAPH) not in objects:
            return Resolved()
        graph = from_json(objects[join(self.name, GRAPH)], join(self.name, GRAPH))
        bound = bind(graph, self.view.root, self.view.children)
        left: dict[str, Array] = {}
        fitted: list[TensorLeaf] = []
        for number, node in enumerate(graph):
            for value_name, value in node.values.items():
                for key, dtype in value.parts.items():
                    obj = bound.get(number)
                    variable = None if dtype else _variable_of(obj, value_name, join(self.name, tensor_name(key)))
                    place = None if obj is None else (id(obj), value_name, key.removeprefix(value.key))
                    fitted += self._fitted_leaves(specs, variable, value_name, key, _Rest(left, place))
        matched = {
            (id(bound[n]), value_name) for n, node in enumerate(graph) if n in bound for value_name in node.values
        }
        is_lenient = any(self.root is root for root in _LENIENT)
        dropped = [
            name
            for name, (number, value_name) in self.own.items()
            if is_lenient or (id(gathered.objects.get(number)), value_name) in matched
        ]
        return Resolved(fitted, dropped, Finish(lambda: self._finish(graph, bound, left)))

    def _fitted_leaves(
        self, specs: Mapping[str, TensorSpec], variable: Any, value_name: str, key: str, rest: _Rest
    ) -> Iterator[TensorLeaf]:
        full = join(self.name, tensor_name(key))
        own = join(full, OWN_SUFFIX) if value_name == PYTHON else full
        if specs.keys().isdisjoint((full, own)):
            raise StateMismatchError(f"{full} is in the graph of the checkpoint, but has no values; use an older step")
        if full in specs:
            yield _RestLeaf(specs[full], rest, key) if variable is None else _restored_leaf(variable, specs[full])
        if own != full and own in specs:  # after rank 0's, which steps of version 0.1.0 have too
            yield _RestLeaf(specs[own], rest, key, OWN_SUFFIX)

    def _finish(self, graph: Graph, bound: Mapping[int, Any], left: dict[str, Array]) -> None:
        """Let TensorFlow restore the rest."""
        hidden = {node.values[GENERATOR].key for node in graph if GENERATOR in node.values}
        of_here = {graph[number].values[GENERATOR].key for number in bound if GENERATOR in graph[number].values}
        for key in sorted(of_here & left.keys()):
            _log.warning(
                "hpcckpt: %s is not restored, for its layer is not built yet: build it first", tensor_name(key)
            )
        arrays = {key: array for key, array in left.items() if key not in hidden}
        absent = {
            key
            for n, node in enumerate(graph)
            if n not in bound
            for value in node.values.values()
            for key in value.parts
        }
        status = read(self.root, graph, arrays, is_complete=absent.isdisjoint(arrays))
        finalize_layers([obj for obj in bound.values() if is_layer(obj)])
        with contextlib.suppress(AttributeError):  # an object without attributes: its status is not needed
            object.__setattr__(self.root, _STATUS, status)


def _variable_of(obj: Any, value_name: str, name: str) -> Any:
    """Return the variable that a value is all of, whose values NumPy knows; else ``None``."""
    if value_name == GENERATOR:
        return hidden_generator(obj)
    if value_name != VARIABLE or obj is None or not is_variable(obj):
        return None
    variable = tensorflow_variable(obj, name)
    return None if odd_dtype(variable.dtype) else variable


def _restored_leaf(variable: Any, spec: TensorSpec) -> TensorLeaf:
    """Return a leaf that fills a variable; one that differs from the checkpoint shows it."""
    if variable.shape.is_fully_defined() or not variable.shape.is_compatible_with(spec.shape):
        return variable_leaf(variable, spec.name, spec.kind)
    return VariableLeaf(Declaration(spec, Extent.whole(spec.shape)), variable)


def _read_leaf(array: Array, name: str, kind: Kind, *, is_value: bool = False) -> TensorLeaf:
    declaration = replace(declare(array, name, kind), is_value=is_value)
    return TensorLeaf(declaration, lambda: array, lambda _: None)


class _TableLeaf(TensorLeaf):
    """The leaf of the keys or the values of a lookup table, for a save.

    Rank 0's are stored, because the order of the entries differs between ranks. The entries must be equal, which ranks
    compare by the digest of one of both leaves.
    """

    def __init__(self, array: Array, name: str, digest: Callable[[], Array] | None) -> None:
        super().__init__(replace(declare(array, name, "root"), is_value=True), lambda: array, lambda _: None)
        self._digest = digest

    @property
    def is_compared(self) -> bool:
        """Whether this leaf has the digest."""
        return self._digest is not None

    def compared(self) -> Array:
        """Return a digest of the table's entries."""
        assert self._digest is not None
        return self._digest()


class _RestLeaf(TensorLeaf):
    """The leaf of a value that TensorFlow is to restore."""

    def __init__(self, spec: TensorSpec, rest: _Rest, key: str, suffix: str = "") -> None:
        super().__init__(Declaration(spec, Extent.whole(spec.shape)), lambda: np.empty(spec.shape), self._keep)
        self._rest, self._key, self._suffix = rest, key, suffix

    def _keep(self, new: Array) -> None:
        self._rest.values[self._key] = new

    def place(self) -> Hashable:
        """Return which value of which object it is; ``None`` if there is no object yet."""
        return None if self._rest.place is None else (*self._rest.place, self._suffix)


def _array(value: Any) -> Array:
    """Return a value as an array: its own, or the bytes of its message."""
    import tensorflow as tf

    tensor = getattr(value, "tensor", value)  # some are read only when they are asked for
    if odd_dtype(tensor.dtype):
        return np.frombuffer(tf.io.serialize_tensor(tensor).numpy(), np.uint8)
    return np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape))
