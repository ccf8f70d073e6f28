"""Which ops may give a tensor away and which may take one back. Pure.

Built in: what TFLMSv2 leaves alone by its type, and collectives. From the user: the eight filters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.graph import Graph, Op

VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp", "TemporaryVariable", "AutoReloadVariable"})
# Identity is missing from the list of TFLMSv2: what passes on its input is followed, see hpcckpt.lms.graph.aliases.
EXCLUDED_TYPES = VARIABLES | {
    "Const", "HostConst", "Read", "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg", "_DeviceArg",
    "_Retval", "_DeviceRetval",
    "VarIsInitializedOp", "IsVariableInitialized", "VariableShape", "ReadVariableOp", "_ReadVariablesOp",
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceGather", "ResourceGatherNd",
    "Range", "RandomUniform", "TruncatedNormal", "Assign", "AssignAdd", "AssignSub",
}  # fmt: skip
EXCLUDED_PREFIXES = ("ResourceScatter", "Scatter", "Queue")
_READS = frozenset({"ReadVariableOp", "_ReadVariablesOp"})
_IN_VARIABLES = VARIABLES | _READS | {"Assign", "AssignAdd", "AssignSub", "StridedSliceAssign"}
_IN_VARIABLES_PREFIXES = ("Apply", "SparseApply", "ResourceApply", "ResourceSparseApply", "Ref", "Scatter")
_NOT_BY_PREFIX = frozenset({"ScatterNd"})
_COLLECTIVE = re.compile(
    r"Horovod|^Collective|AllReduce|^Nccl|^XlaAllReduce|BytePS|^Send$|^Recv$|^_(Host)?(Send|Recv)$|Barrier"
)


def is_collective(op: Op) -> bool:
    """Return True if ranks wait for each other in this op: its inputs are never swapped, and it is never reordered."""
    return _COLLECTIVE.search(op.type) is not None


def is_excluded_type(op: Op) -> bool:
    """Return True if ops of this type are never changed, whatever the user's filters."""
    by_prefix = op.type.startswith(EXCLUDED_PREFIXES) and op.type not in _NOT_BY_PREFIX
    return op.type in EXCLUDED_TYPES or by_prefix or is_collective(op)


def puts_out_references(op: Op) -> bool:
    """Return True if outputs of this op are never swapped: by its type, or because they are a variable's memory."""
    return is_excluded_type(op) or is_in_variable(op)


def is_in_variable(op: Op) -> bool:
    """Return True if the outputs of this op are the memory of a variable, not of the step."""
    by_prefix = op.type.startswith(_IN_VARIABLES_PREFIXES) and op.type not in _NOT_BY_PREFIX
    return op.type in _IN_VARIABLES or by_prefix


def is_reference(op: Op) -> bool:
    """Return True if an op's outputs are a variable's memory whose values may change within the step.

    ``ReadVariableOp`` is none: a resource variable is written elsewhere while somebody has what was read.
    """
    return is_in_variable(op) and op.type not in _READS


# -- where ops are


def every_op(_: Op) -> bool:
    """Return True: all ops are on the device where host memory and a file are the tiers."""
    return True


def device_rule(gpu_device: str | None = None) -> Callable[[Op], bool]:
    """Return the rule of TFLMSv2: an op is on the accelerator unless it is placed on a CPU, or only on `gpu_device`."""
    if gpu_device is not None:
        return lambda op: op.device == gpu_device
    return lambda op: "CPU" not in op.device.upper()


# -- the user's filters


@dataclass(frozen=True, slots=True)
class Filters:
    """The eight filters: of producers and consumers of tensors, by scope and by type.

    A scope is a prefix of op names. `None` is no filter; an `incl` filter leaves only what it names.
    """

    excl_output_by_scopes: frozenset[str] | None = None
    incl_output_by_scopes: frozenset[str] | None = None
    excl_output_by_types: frozenset[str] | None = None
    incl_output_by_types: frozenset[str] | None = None
    excl_input_by_scopes: frozenset[str] | None = None
    incl_input_by_scopes: frozenset[str] | None = None
    excl_input_by_types: frozenset[str] | None = None
    incl_input_by_types: frozenset[str] | None = None

    @classmethod
    def of(cls, **filters: Iterable[str] | None) -> Filters:
        """Make filters from any collections of texts.

        Raises
        ------
        OptionError
            A filter is a text, not a collection of texts, or there is no filter of that name.
        """
        return cls(**{name: _checked(name, values) for name, values in filters.items()})

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) is not None for each in fields(self))

    def takes_source(self, op: Op) -> bool:
        """Return True if the user lets tensors of this op be swapped."""
        incl = (self.incl_output_by_scopes, self.incl_output_by_types)
        return _passes(op, incl, (self.excl_output_by_scopes, self.excl_output_by_types))

    def takes_consumer(self, op: Op) -> bool:
        """Return True if the user lets this op take tensors that were swapped."""
        incl = (self.incl_input_by_scopes, self.incl_input_by_types)
        return _passes(op, incl, (self.excl_input_by_scopes, self.excl_input_by_types))

    def check(self, graph: Graph, *, is_optimized: bool = False) -> list[str]:
        """Return a warning for each scope and type that is none of the graph's.

        A type never ends a training: nothing of it is there to be swapped. Nor does a scope that an optimizer may have
        removed, where the graph is what it left.

        Raises
        ------
        OptionError
            A scope matches no op of a graph that was not optimized.
        """
        types = set[str]().union(*(types_of(op) for op in graph.ops.values()))
        warnings = []
        for each in fields(self):
            values: Collection[str] = getattr(self, each.name) or ()
            for value in sorted(values):
                if each.name.endswith("types") and value not in types:
                    warnings.append(_no_type(each.name, value, graph))
                if each.name.endswith("scopes") and not any(name.startswith(value) for name in graph.ops):
                    text = f"No operations were found with scope {value}. {each.name} takes beginnings of names"
                    if not is_optimized:
                        raise OptionError(text)
                    warnings.append(f"{text} in the graph that TensorFlow has optimized")
        return warnings


def types_of(op: Op) -> set[str]:
    """Return the types that an op counts as: its own, and those of the ops that TensorFlow has fused into it."""
    whole = {"_FusedBatchNormEx": "FusedBatchNormV3"}.get(op.type, op.type.removeprefix("_Fused"))
    return {op.type, whole, *op.fused}


def _no_type(name: str, value: str, graph: Graph) -> str:
    found = set[str]().union(*(types_of(op) for op in graph.ops.values() if not puts_out_references(op)))
    types = ", ".join(sorted(found))
    return f"No operations were found with types: {value}. {name} has no effect by it; the graph has {types}"


def _checked(name: str, values: Any) -> frozenset[str] | None:
    if name not in {each.name for each in fields(Filters)}:
        raise OptionError(f"{name}: no such filter; there are {', '.join(each.name for each in fields(Filters))}")
    if values is None:
        return None
    is_collection = isinstance(values, Iterable) and not isinstance(values, str)
    if not is_collection or not all(isinstance(value, str) for value in values):
        raise OptionError(f"{name}: {values!r} – a collection of texts is meant, e.g. {{'loss', 'accuracy'}}")
    return frozenset(values) or None


_Pair = tuple[frozenset[str] | None, frozenset[str] | None]


def _matches(op: Op, pair: _Pair) -> bool:
    scopes, types = pair
    return not types_of(op).isdisjoint(types or ()) or op.name.startswith(tuple(scopes or ()))


def _passes(op: Op, incl: _Pair, excl: _Pair) -> bool:
    is_included = incl == (None, None) or _matches(op, incl)
    return is_included and not _matches(op, excl)
