"""The compiled steps of a model: what their graphs draw from, and which variables they use.

``fit`` compiles a step when it runs it for the first time.  `trace` does that before the first batch, with the shapes
of the data alone: so the variables that a step creates exist before values are restored into them, and the Python
code of a step runs at the same point of every run.  Keras finds the compiled step later and does not compile it again.

The graph of a step, with every function that it calls, then shows

- operations whose state is in a kernel of TensorFlow, which cannot be saved: ``tf.random.normal`` counts there,
- Python that runs with each step,
- the variables that it uses, wherever the program keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcckpt.keras.program.declarations import is_stateless
from hpcckpt.keras.program.python_values import closure_of
from hpcckpt.keras.versions import IS_KERAS_3

_PYTHON = re.compile(r"^(Eager)?PyFunc$")
_RANDOM = re.compile(
    r"^(Random(?!Dataset)|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial|NonDeterministicInts|Skipgram"
    r"|SampleDistortedBoundingBox|\w*CandidateSampler)"
)
_HARMLESS = re.compile(
    r"^(_?ReadVariablesOp|ReadVariableOp|Assign\w*VariableOp|VarHandleOp|VarIsInitializedOp|VariableShape"
    r"|Resource(Apply|SparseApply|Gather|Scatter|StridedSliceAssign|CountUpTo)\w*|DisableCopyOnRead"
    r"|StatefulPartitionedCall|RemoteCall|Case|_?If|_?While|XlaLaunch|XlaIf|XlaWhile|XlaCallModule"
    r"|RngReadAndSkip|RngSkip|Stateful(StandardNormal|TruncatedNormal|Uniform|RandomBinomial)\w*|StatelessRandomGetAlg"
    r"|IteratorGetNext\w*|TensorArray\w*|Stack\w*|LookupTable(Find|Size|Export)V2|CudnnRNN\w*"
    r"|Assert|CheckNumerics\w*|Print\w*|Write(Audio|Histogram|Image|RawProto|Scalar)?Summary|Timestamp|Empty"
    r"|GuaranteeConst|DeepCopy|Collective\w*|Nccl\w*|Horovod\w*|Hpcckpt\w*|DestroyResourceOp|IsTensorFloat32Enabled)$"
)
"""Stateful operations whose state is in a variable or in the data, or that change nothing that is computed."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that TensorFlow calls stateful: its kind, and the name that says where in the model it is."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TracedStep:
    """What is known of a compiled step.

    Attributes
    ----------
    reasons : tuple of str
        Why it does not follow from what can be saved; empty if it does.
    variables : tuple of tf.Variable
        Those that it uses, in the order in which it met them.
    """

    reasons: tuple[str, ...] = ()
    variables: tuple[Any, ...] = ()


def trace(model: Any, element_spec: Any) -> Exception | None:
    """Compile the training step for data of these shapes; return what kept it from that. Independent."""
    import tensorflow as tf

    function = _of_iterators(getattr(model, "train_function", None))
    if function is None:
        return None  # `inspect` has the reason
    try:
        function.get_concrete_function(tf.data.IteratorSpec(element_spec))
    except Exception as error:  # noqa: BLE001 - the program's own code runs; if it fails with data, Keras reports it
        return error
    return None


def trace_eager(model: Any, element_spec: Any) -> Exception | None:
    """Trace once a training step that runs eagerly; return what kept it from that. Independent."""
    import tensorflow as tf

    try:
        tf.function(model.train_step).get_concrete_function(element_spec)
    except Exception as error:  # noqa: BLE001 - the program's own code runs
        return error
    return None


def inspect(function: Any, saved: Container[int] = ()) -> TracedStep:
    """Return what is known of ``model.train_function`` or ``model.test_function``, as far as it is compiled.

    Graphs do not list all variables that they use (slots of legacy optimizers), so the handles of what is `saved` are
    given too, as identities.
    """
    compiled = concrete_functions(function)
    if not compiled:
        return TracedStep(("the training step is not compiled, so its Python code runs with each batch",))
    variables = {id(one.handle): one for each in compiled for one in each.graph.variables}
    captured = list({id(tensor): tensor for each in compiled for tensor in each.captured_inputs}.values())
    used = [variables[id(tensor)] for tensor in captured if id(tensor) in variables]
    unknown = [tensor for tensor in captured if id(tensor) not in variables and id(tensor) not in saved]
    others = [tensor for tensor in unknown if tensor.dtype.name in _OPAQUE]
    operations = {operation for each in compiled for operation in _stateful(each.graph)}
    found = [*_of_operations(sorted(operations, key=lambda one: (one.kind, one.name)))]
    if others:
        found.append(f"the training step uses {len(others)} table, iterator or other resource that is not saved")
    return TracedStep(tuple(found), tuple(used))


_OPAQUE = {"resource", "variant"}


def _of_operations(operations: Iterable[Operation]) -> Iterator[str]:
    """Yield reasons, one of each sort."""
    every = list(operations)
    random = [one for one in every if _RANDOM.search(one.kind)]
    python = [one for one in every if _PYTHON.search(one.kind)]
    others = [one for one in every if one not in random and one not in python]
    if random:
        yield f"{_places(random)} draws from a stream that cannot be saved: {_remedy_for_draws()}"
    if python:
        yield f"{_places(python)} runs Python in the training step: declare it with hpcckpt.keras.stateless if it is"
    if others:
        yield f"{_places(others)} has a state that cannot be saved ({', '.join(sorted({one.kind for one in others}))})"


def _remedy_for_draws() -> str:
    """Return what to draw from instead; layers of Keras 2.15 draw from generators once that is enabled."""
    import keras

    if IS_KERAS_3:
        return "draw from a tf.random.Generator or a keras.random.SeedGenerator"
    if keras.backend.experimental.is_tf_random_generator_enabled():
        return "draw from a tf.random.Generator"
    return (
        "for layers of Keras, call hpcckpt.enable_exact_resume before the model is built; in your own code, draw from "
        "a tf.random.Generator"
    )


def _places(operations: list[Operation]) -> str:
    """Return where operations are: the names of their scopes, a few of them."""
    names = list(dict.fromkeys(one.name.rpartition("/")[0] or one.name for one in operations))
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


# -- graphs ----------------------------------------------------------------------------------------


def _stateful(graph: Any) -> Iterator[Operation]:
    """Yield the operations of a graph, and of the functions that it calls, that have a state of concern."""
    from tensorflow.python.framework import op_def_registry

    nodes = [operation.node_def for operation in graph.get_operations() if _may_matter(operation.type)]
    nodes += [node for each in graph._functions.values() for node in each.cached_definition.node_def]
    for node in nodes:
        if not _may_matter(node.op):
            continue
        definition = op_def_registry.get(node.op)
        is_stateful = definition is None or definition.is_stateful
        if is_stateful and not (_PYTHON.search(node.op) and _is_declared(node)):
            yield Operation(node.op, node.name)


def _may_matter(kind: str) -> bool:
    return kind != "Placeholder" and kind != "Const" and not _HARMLESS.search(kind)


def _is_declared(node: Any) -> bool:
    """Return True if the Python function of a node was declared stateless, or is one of this library."""
    from tensorflow.python.ops import script_ops

    function = script_ops._py_funcs.get(node.attr["token"].s.decode())
    function = getattr(function, "_func", function)
    while not is_stateless(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return is_stateless(function) or str(getattr(function, "__module__", "")).partition(".")[0] == "hpcckpt"


def concrete_functions(function: Any) -> list[Any]:
    """Return the compiled versions of a step."""
    return [one for each in _tf_functions(function) for one in each._list_all_concrete_functions()]


def _of_iterators(function: Any) -> Any:
    """Return the function of TensorFlow that takes an iterator: Keras 3 wraps it in one of Python."""
    cells = _cells(function)
    found = cells.get("multi_step_on_iterator", function)
    return found if hasattr(found, "get_concrete_function") else None


def _tf_functions(function: Any) -> list[Any]:
    every = [function, *_cells(function).values()]
    return [one for one in every if hasattr(one, "_list_all_concrete_functions")]


def _cells(function: Any) -> dict[str, Any]:
    """Return what a function of Python has taken from the function around it, by name."""
    return dict(closure_of(function)) if hasattr(function, "__code__") else {}
