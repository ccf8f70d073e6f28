"""A training step as the planners see it: ops, and the tensors between them. Pure.

The same small form is made from a `tf.Graph`, from a GraphDef, and from what the native pass sees of a function.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

ITEM_BITS: Mapping[str, int] = MappingProxyType(
    {
        "bool": 8, "int4": 8, "uint4": 8, "int8": 8, "uint8": 8, "qint8": 8, "quint8": 8,
        "float8_e4m3fn": 8, "float8_e5m2": 8,
        "int16": 16, "uint16": 16, "half": 16, "float16": 16, "bfloat16": 16, "qint16": 16, "quint16": 16,
        "int32": 32, "uint32": 32, "float": 32, "float32": 32, "qint32": 32,
        "int64": 64, "uint64": 64, "double": 64, "float64": 64, "complex64": 64, "complex128": 128,
    }
)  # fmt: skip


class Use(NamedTuple):
    """A tensor by its producer: the op's name, and which of its outputs."""

    op: str
    number: int

    def __str__(self) -> str:
        return f"{self.op}:{self.number}"

    @classmethod
    def of(cls, text: str) -> Use:
        """Read ``name:number``."""
        op, _, number = text.rpartition(":")
        return cls(op, int(number))


class InputSlot(NamedTuple):
    """Where a tensor is consumed: an op's name, and which of its inputs."""

    op: str
    number: int

    def __str__(self) -> str:
        return f"{self.op}:{self.number}"

    @classmethod
    def of(cls, text: str) -> InputSlot:
        """Read ``name:number``."""
        op, _, number = text.rpartition(":")
        return cls(op, int(number))


@dataclass(frozen=True, slots=True)
class Output:
    """What is known of a tensor before it is computed; a dimension that is not known is `None`, as is a shape."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def nbytes(self, batch_size: int | None = None) -> int:
        """Return its size in bytes, by the rule of TFLMSv2.

        Of unknown rank: 1. An unknown first dimension counts as `batch_size`, any other as 1. What no number says the
        size of (strings, resources, variants) counts as 0.
        """
        bits = ITEM_BITS.get(self.dtype)
        if bits is None:
            return 0
        if self.shape is None:
            return 1
        first = (batch_size or 1) if self.shape and self.shape[0] is None else None
        sizes = [1 if dim is None else dim for dim in self.shape]
        if first is not None:
            sizes[0] = first
        return math.prod(sizes) * bits // 8


@dataclass(frozen=True, slots=True)
class Op:
    """A node; `inputs` are in order, `controls` sorted. `frame` is the while loop it belongs to, empty outside all."""

    name: str
    type: str
    device: str = ""
    inputs: tuple[Use, ...] = ()
    controls: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    frame: str = ""
    is_stateful: bool = False
    is_training: bool | None = None
    """The attribute of that name, where the op has one (batch normalization)."""
    fused: tuple[str, ...] = ()
    """The types of other ops that TensorFlow's optimizer has put into this one: ``BiasAdd``, ``Relu``."""
    cost_ns: int = 0
    """Its measured time in nanoseconds; 0 if it was not measured."""


@dataclass(frozen=True)
class Graph:
    """Ops by name. Whatever iterates over them does so in the order of `ops`, which importers sort by name."""

    ops: Mapping[str, Op]

    @classmethod
    def of(cls, ops: Iterable[Op]) -> Graph:
        """Return a graph of these ops, sorted by name."""
        return cls(MappingProxyType({op.name: op for op in sorted(ops, key=lambda op: op.name)}))

    @cached_property
    def consumers(self) -> Mapping[Use, tuple[InputSlot, ...]]:
        """Who takes each tensor, in the order of their names; tensors without consumers are left out."""
        found: dict[Use, list[InputSlot]] = {}
        for op in self.ops.values():
            for index, use in enumerate(op.inputs):
                found.setdefault(use, []).append(InputSlot(op.name, index))
        return MappingProxyType({use: tuple(slots) for use, slots in found.items()})

    @cached_property
    def controlled(self) -> Mapping[str, tuple[str, ...]]:
        """Which ops wait for each op by a control edge."""
        found: dict[str, list[str]] = {}
        for op in self.ops.values():
            for name in op.controls:
                found.setdefault(name, []).append(op.name)
        return MappingProxyType({name: tuple(names) for name, names in found.items()})

    @property
    def n_edges(self) -> int:
        """How many edges there are, data and control."""
        return sum(len(op.inputs) + len(op.controls) for op in self.ops.values())

    def output(self, use: Use) -> Output:
        """Return what is known of a tensor."""
        return self.ops[use.op].outputs[use.number]

    # -- the format in which the native pass describes a graph

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read what `to_json` or the native pass wrote.

        ``{"ops": [{"name", "type", "device", "in": ["a:0", "^b"], "out": [["float", [16, null, 64]], ["int32", null]],
        "frame", "stateful", "training", "fused", "cost_ns"}]}``; what is empty, false or null may be left out.
        """
        return cls.of(_op_of(each) for each in json.loads(text)["ops"])

    def to_json(self) -> str:
        """Write the graph as `from_json` reads it."""
        return json.dumps({"ops": [_json_of(op) for op in self.ops.values()]}, separators=(",", ":"))


def _op_of(entry: Mapping[str, Any]) -> Op:
    inputs = entry.get("in", ())
    return Op(
        name=entry["name"],
        type=entry["type"],
        device=entry.get("device", ""),
        inputs=tuple(Use.of(each) for each in inputs if not each.startswith("^")),
        controls=tuple(sorted(each[1:] for each in inputs if each.startswith("^"))),
        outputs=tuple(Output(dtype, None if shape is None else tuple(shape)) for dtype, shape in entry.get("out", ())),
        frame=entry.get("frame", ""),
        is_stateful=bool(entry.get("stateful", False)),
        is_training=entry.get("training"),
        fused=tuple(entry.get("fused", ())),
        cost_ns=int(entry.get("cost_ns", 0)),
    )


def _json_of(op: Op) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": op.name, "type": op.type, "device": op.device, "frame": op.frame}
    entry["in"] = [*map(str, op.inputs), *(f"^{name}" for name in op.controls)]
    entry["out"] = [[output.dtype, output.shape] for output in op.outputs]
    entry |= {"stateful": op.is_stateful, "training": op.is_training, "fused": op.fused, "cost_ns": op.cost_ns}
    return {key: value for key, value in entry.items() if value or key in ("name", "type")}
