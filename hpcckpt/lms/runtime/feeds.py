"""What a trial step is fed: zeros for arrays, one for scalars, in the shapes that the graph implies.

A placeholder without a known rank, such as ``tf.placeholder(tf.float32)`` for a rate, gets

1. the shape that an op which takes it needs: of a matrix product, a convolution, a reshape, labels;
2. else the smallest rank that TensorFlow accepts for the whole graph, which is a scalar for a rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Shape = tuple[int | None, ...]
_SAME_SHAPE = frozenset({"Identity", "Cast", "Neg", "Abs", "Square", "Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Relu"})
_TRANSPOSES = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}
_MOST_DIMS = 5


class Feeds(NamedTuple):
    """What is fed.

    Attributes
    ----------
    arrays : dict of str to array
        By the name of the placeholder's tensor.
    assumed : dict of str to tuple of int
        The shapes of placeholders whose rank was not known.
    unknown : list of str
        Placeholders whose size is not known, with what to do: a step on such feeds does not show what a real one takes.
    """

    arrays: dict[str, Any]
    assumed: dict[str, tuple[int, ...]]
    unknown: list[str]

    @property
    def text(self) -> str:
        """The assumed shapes in words; empty if there are none."""
        return ", ".join(f"{name!r} {_shape_text(shape)}" for name, shape in self.assumed.items())


def feeds_of(graph: Any, fetches: Iterable[str], batch_size: int | None) -> Feeds:
    """Return what to feed to a graph so that some ops can run.

    Raises
    ------
    ValueError
        If no shape of a placeholder is accepted.
    """
    needed = ops_before([graph.get_operation_by_name(name) for name in fetches])
    placeholders = [graph.get_operation_by_name(name) for name in sorted(needed)]
    feeds, definition = Feeds({}, {}, []), None
    for op in placeholders:
        if op.type != "Placeholder":
            continue
        tensor = op.outputs[0]
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        if shape is None:
            definition = definition or graph.as_graph_def()
            shape = _fitting(definition, op, implied_shape(tensor, needed))
            feeds.assumed[op.name] = _sizes(shape, batch_size)
        elif remedy := _remedy(shape, batch_size):
            feeds.unknown.append(f"placeholder {op.name!r} has the shape {list(shape)}: {remedy}".replace("None", "?"))
        feeds.arrays[tensor.name] = _array(_sizes(shape, batch_size), tensor.dtype.as_numpy_dtype)
    return feeds


def ops_before(ops: Iterable[Any]) -> set[str]:
    """Return the names of some ops and of all that they need."""
    todo, seen = list(ops), set()
    while todo:
        op = todo.pop()
        if op.name not in seen:
            seen.add(op.name)
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return seen


def _remedy(shape: Shape, batch_size: int | None) -> str:
    """Return how the size of a placeholder can be given; empty if it is known."""
    if None in shape[1:]:
        return "give all dimensions but the first to the placeholder"
    return "set lms.batch_size" if shape and shape[0] is None and not batch_size else ""


def _sizes(shape: Shape, batch_size: int | None) -> tuple[int, ...]:
    """Return a shape whose unknown first dimension is the batch, and any other unknown one is 1."""
    first = batch_size or 1
    return tuple((first if place == 0 else 1) if dim is None else dim for place, dim in enumerate(shape))


def _array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return zeros; one if it is a scalar: a rate, a divisor, ``is_training``."""
    return np.zeros(shape, dtype) if shape else np.ones(shape, dtype)


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"with shape {list(shape)}" if shape else "a scalar"


# -- a rank that is not known ---------------------------------------------------------------------


def implied_shape(tensor: Any, needed: set[str]) -> Shape | None:
    """Return the shape that the ops which take a tensor need together; `None` if none of them says, or they differ."""
    shape = tf.TensorShape(None)
    for op in tensor.consumers():
        if op.name in needed:
            place = next(number for number, each in enumerate(op.inputs) if each is tensor)
            same = op.type in _SAME_SHAPE
            wanted = implied_shape(op.outputs[0], needed) if same else _input_shape(op, place)
            try:
                shape = shape.merge_with(tf.TensorShape(wanted))
            except ValueError:
                return None
    return None if shape.rank is None else tuple(shape.as_list())


def _input_shape(op: Any, place: int) -> Shape | None:
    """Return the shape that an op needs at one of its inputs, as far as its other inputs define it."""
    if op.type in _TRANSPOSES and place == 0 and op.inputs[1].shape.rank == 2:
        first, second = (op.get_attr(name) for name in _TRANSPOSES[op.type])
        depth = _dim(op.inputs[1], -1 if second else -2)
        return (depth, None) if first else (None, depth)
    if op.type in ("Conv2D", "Conv3D") and place == 0:
        channels, n_sides = _dim(op.inputs[1], -2), int(op.type[4])
        is_first = op.get_attr("data_format").startswith(b"NC")
        return (None, channels, *[None] * n_sides) if is_first else (None, *[None] * n_sides, channels)
    if op.type == "Reshape" and place == 0:
        target = tf.get_static_value(op.inputs[1])
        return None if target is None else tuple(None if dim < 0 else int(dim) for dim in target)
    if op.type in ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits") and place == 1:
        logits = op.inputs[0].shape
        dims = None if logits.rank is None else tuple(logits.as_list())
        return dims if dims is None or op.type.startswith("Softmax") else dims[:-1]
    return None


def _dim(tensor: Any, place: int) -> int | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()[place]


def _fitting(definition: Any, op: Any, implied: Shape | None) -> Shape:
    """Return the first shape that TensorFlow accepts, and write it into the definition of the graph."""
    node = next(node for node in definition.node if node.name == op.name)
    candidates = [implied] if implied is not None else []
    candidates += [(None,) * rank for rank in range(_MOST_DIMS + 1)]
    for shape in candidates:
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        if _is_accepted(definition):
            return shape
    raise ValueError(f"placeholder {op.name!r} has no known rank, and none from 0 to {_MOST_DIMS} is accepted")


def _is_accepted(definition: Any) -> bool:
    """Return whether TensorFlow infers the shapes of a graph without an error."""
    with tf.Graph().as_default():
        try:
            tf.graph_util.import_graph_def(definition, name="")
        except (ValueError, tf.errors.InvalidArgumentError):
            return False
    return True
