"""The object graph of what ``tf.train.Checkpoint`` tracks, as JSON in the manifest: who refers to whom by which name.

It is what TensorFlow keeps in its own checkpoints as ``_CHECKPOINTABLE_OBJECT_GRAPH``, and what it restores by: objects
are found by the way from the root to them, so that those that do not exist yet can be waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from hpcckpt.errors import StateMismatchError

VARIABLE = "VARIABLE_VALUE"
"""TensorFlow's name of the one value that a variable has."""
GENERATOR = ".generator"
"""Our name of the state of a layer's random stream, which Keras 2.15 hides from TensorFlow."""
PYTHON = "py_state"
_ATTRIBUTES = ".ATTRIBUTES/"

Children = Callable[[Any], Mapping[str, Any]]
"""Given an object, returns those that it refers to, by name."""


class Value(NamedTuple):
    """A value of an object: TensorFlow's key of it, and the tensors that it consists of.

    Attributes
    ----------
    key : str
        What the keys of the tensors begin with.
    parts : mapping of str to str
        Dtypes by key, empty where NumPy has the dtype: for variables one tensor, for tables keys and values.
    """

    key: str
    parts: Mapping[str, str]


class SlotVariable(NamedTuple):
    """A variable that an optimizer of TensorFlow 1 keeps for another one."""

    original: int
    name: str
    variable: int


class Node(NamedTuple):
    """An object: the numbers of its children by name, its values by name, its slots."""

    children: Mapping[str, int]
    values: Mapping[str, Value]
    slots: tuple[SlotVariable, ...] = ()


Graph = tuple[Node, ...]


def tensor_name(key: str) -> str:
    """Return how a value is called in our checkpoints: ``dense/kernel``, ``it/.ITERATOR_STATE``. Pure."""
    path, is_attribute, value = key.rpartition(_ATTRIBUTES)
    if not is_attribute:
        return key
    path = path.rstrip("/")
    parts = path.split("/") if path else []  # none for a value of the object that is saved itself
    if value != VARIABLE:
        parts.append(value if value.startswith(".") else f".{value}")
    return "/".join(parts) or "value"


def value_key(object_name: str, value: str) -> str:
    """Return the key of one of hpcckpt's values, in TensorFlow's form. Pure."""
    return f"{object_name}/{_ATTRIBUTES}{value}" if object_name else f"{_ATTRIBUTES}{value}"


def bind(graph: Graph, root: Any, children: Children) -> dict[int, Any]:
    """Return the program's object of each node, where there is one. Independent."""
    bound = {0: root}
    waiting = [0]
    for number in waiting:  # grows meanwhile
        own = children(bound[number]) if graph[number].children else {}
        for name, child in graph[number].children.items():
            if child not in bound and name in own:
                bound[child] = own[name]
                waiting.append(child)
    for number in waiting:
        for slot in graph[number].slots:
            variable = _slot_variable(bound[number], bound.get(slot.original), slot.name)
            if variable is not None:
                bound.setdefault(slot.variable, variable)
    return bound


def _slot_variable(optimizer: Any, original: Any, name: str) -> Any:
    if original is None or not hasattr(optimizer, "get_slot"):
        return None
    try:
        return optimizer.get_slot(original, name)
    except KeyError:  # it has none yet
        return None


# -- JSON ------------------------------------------------------------------------------------------


def to_json(graph: Graph) -> list[dict[str, Any]]:
    """Return a graph as JSON; what is empty is left out. Pure."""
    return [_node_to_json(node) for node in graph]


def _node_to_json(node: Node) -> dict[str, Any]:
    values = {name: _value_to_json(value) for name, value in node.values.items()}
    parts = {"children": dict(node.children), "values": values, "slots": [[*slot] for slot in node.slots]}
    return {name: part for name, part in parts.items() if part}


def _value_to_json(value: Value) -> str | list[Any]:
    return value.key if value.parts == {value.key: ""} else [value.key, dict(value.parts)]


def from_json(document: Any, name: str) -> Graph:
    """Return a graph of a checkpoint, which is untrusted. Pure.

    Raises
    ------
    StateMismatchError
        If it is no graph.
    """
    try:
        graph = tuple(_node_from_json(node, len(document)) for node in document)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise StateMismatchError(f"{name} of the checkpoint is no graph of objects; use an older step") from error
    if not graph:
        raise StateMismatchError(f"{name} of the checkpoint is empty; use an older step")
    return graph


def _node_from_json(node: Any, n_nodes: int) -> Node:
    children = {str(name): _checked(child, n_nodes) for name, child in node.get("children", {}).items()}
    values = {str(name): _value_from_json(value) for name, value in node.get("values", {}).items()}
    slots = [
        SlotVariable(_checked(a, n_nodes), _text(name), _checked(b, n_nodes)) for a, name, b in node.get("slots", [])
    ]
    return Node(children, values, tuple(slots))


def _value_from_json(value: Any) -> Value:
    key, parts = (value, {value: ""}) if isinstance(value, str) else value
    return Value(_text(key), {_text(part): _text(dtype) for part, dtype in parts.items()})


def _checked(number: Any, n_nodes: int) -> int:
    if type(number) is not int or not 0 <= number < n_nodes:
        raise ValueError(f"{number!r} is no node")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


# -- TensorFlow's own form -------------------------------------------------------------------------


def from_proto(proto: Any, dtypes: Mapping[str, str]) -> Graph:
    """Return the graph that TensorFlow's message describes. Pure.

    Parameters
    ----------
    proto : TrackableObjectGraph
        The message.
    dtypes : mapping of str to str
        Of all tensors, by key; empty where NumPy has the dtype.
    """
    keys = sorted({attribute.checkpoint_key for node in proto.nodes for attribute in node.attributes}, key=len)
    parts: dict[str, dict[str, str]] = {key: {key: dtypes[key]} if key in dtypes else {} for key in keys}
    for tensor in dtypes.keys() - parts.keys():  # older savers append a suffix to the key
        parts[next(key for key in reversed(keys) if tensor.startswith(key))][tensor] = dtypes[tensor]
    return tuple(
        Node(
            {child.local_name: child.node_id for child in node.children},
            {a.name: Value(a.checkpoint_key, dict(sorted(parts[a.checkpoint_key].items()))) for a in node.attributes},
            tuple(
                SlotVariable(s.original_variable_node_id, s.slot_name, s.slot_variable_node_id)
                for s in node.slot_variables
            ),
        )
        for node in proto.nodes
    )


def to_proto(graph: Graph, keys: Collection[str]) -> Any:
    """Return TensorFlow's message for a graph, with only those values whose tensors are all there. Pure."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    proto = trackable_object_graph_pb2.TrackableObjectGraph()
    for node in graph:
        made = proto.nodes.add()
        for name, child in node.children.items():
            made.children.add(node_id=child, local_name=name)
        for name, value in node.values.items():
            if value.parts and all(part in keys for part in value.parts):
                made.attributes.add(name=name, checkpoint_key=value.key)
        for slot in node.slots:
            made.slot_variables.add(
                original_variable_node_id=slot.original, slot_name=slot.name, slot_variable_node_id=slot.variable
            )
    return proto
