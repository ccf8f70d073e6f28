"""A checkpoint in the format of ``tf.train.Checkpoint``: two files, a bundle of tensors and an object graph.

The bundle stores tensors under hpcckpt's names.  The object graph says where TensorFlow finds them:

- with a Keras model, where ``tf.train.Checkpoint(model=model, optimizer=model.optimizer)`` looks; the parts of the
  model hang at the root as well, where ``model.load_weights`` of Keras 2.15 and ``Checkpoint(root=model)`` look;
- without one, where objects of the names' own parts are: ``model/dense/kernel`` is ``root.model.dense.kernel``.

The note is one more tensor of the bundle, in no object.
"""

from __future__ import annotations

import contextlib
import glob
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.errors import ConfigError, CorruptError, ForeignFormatError, OptionError, StepNotFoundError
from hpcckpt.keras.files.import_model import ModelValues, observed
from hpcckpt.keras.model.naming import slot_path
from hpcckpt.keras.model.state import MODEL, OPTIMIZER
from hpcckpt.restoring.reader import Array
from hpcckpt.state.tf_variables import is_variable, tensorflow_variable

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
NOTE_KEY = "_HPCCKPT"
SAVE_COUNTER = "save_counter"
_KERAS_PARTS = ("layer-", "_operations", "_layers", "_functional")
"""What objects in a Keras model are called, of 2.15 and of 3."""


def import_tensorflow() -> Any:
    """Return TensorFlow.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ConfigError(
            f"TensorFlow reads and writes its own checkpoints: pip install tensorflow ({error})"
        ) from error
    return tf


# -- writing -------------------------------------------------------------------------------------


def refuse_unknown(dtypes: Mapping[str, str]) -> None:
    """Raise if a tensor has a dtype that TensorFlow does not know; `dtypes` has those of all, by name. Independent.

    Raises
    ------
    ConfigError
        If TensorFlow is not installed.
    OptionError
        If there are such tensors; names them.
    """
    tf = import_tensorflow()
    unknown = [f"{name} ({dtype})" for name, dtype in dtypes.items() if not _is_known(tf, dtype)]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise OptionError(
            f"TensorFlow has no dtype for {', '.join(unknown[:5])}{more}; use --to npz, or leave them out with --only"
        )


def _is_known(tf: Any, dtype: str) -> bool:
    try:
        tf.convert_to_tensor(np.empty(0, numpy_dtype(dtype)))
    except (TypeError, ValueError):
        return False
    return True


def write_bundle(
    prefix: Path, tensors: Mapping[str, Array], note: str, variables: Mapping[str, Any] | None = None, model: Any = None
) -> list[str]:
    """Write the two files of a checkpoint; return the names that its object graph does not reach. Independent.

    Parameters
    ----------
    prefix : pathlib.Path
        What the names of the files begin with.
    tensors : mapping of str to array
        All values, by our names.
    note : str
        The note.
    variables : mapping of str to tf.Variable, optional
        The model's, by the names of their values.
    model : keras.Model, optional
        The model whose objects the graph describes, holding these values.
    """
    tf = import_tensorflow()
    more: dict[str, Any] = {f"{SAVE_COUNTER}{VALUE}": np.int64(1)}
    unreached: list[str] = []
    if model is None:
        graph = _plain_graph(tensors)
    else:
        graph, more, reached = _model_graph(tf, model, variables or {})
        unreached = sorted(tensors.keys() - reached - {SAVE_COUNTER})
    values = {**more, **{f"{name}{VALUE}": value for name, value in tensors.items()}}  # a counter of the user's stays
    values |= {GRAPH_KEY: graph.SerializeToString(), NOTE_KEY: note.encode()}
    keys = sorted(values)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=keys,
        shape_and_slices=[""] * len(keys),
        tensors=[tf.convert_to_tensor(values[key]) for key in keys],
    )
    return unreached


def _new_graph() -> Any:
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    return trackable_object_graph_pb2.TrackableObjectGraph()


def _plain_graph(names: Iterable[str]) -> Any:
    """Return the object graph of nested objects that have the parts of names as attributes. Pure."""
    graph = _new_graph()
    graph.nodes.add()
    numbers = {"": 0}
    for name in dict.fromkeys([*names, SAVE_COUNTER]):
        path = ""
        for part in name.split("/"):
            parent, path = path, f"{path}/{part}"
            if path not in numbers:
                numbers[path] = len(graph.nodes)
                graph.nodes.add()
                graph.nodes[numbers[parent]].children.add(node_id=numbers[path], local_name=part)
        graph.nodes[numbers[path]].attributes.add(
            name="VARIABLE_VALUE", full_name=name, checkpoint_key=f"{name}{VALUE}"
        )
    return graph


def _model_graph(tf: Any, model: Any, variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any], set[str]]:
    """Return the object graph that TensorFlow makes of a model, with our names in it as keys.

    Beside it the values of variables that have no hpcckpt name (metrics), and the names that the graph reaches.
    """
    optimizer = getattr(model, "optimizer", None)
    parts = {"model": model} | ({} if optimizer is None else {"optimizer": optimizer})
    root = tf.train.Checkpoint(**parts)
    with tempfile.TemporaryDirectory() as room:
        graph, stock = _stock_graph(tf, root.save(str(Path(room, "stock"))))
    names = {id(variable): name for name, variable in variables.items()}
    more: dict[str, Any] = {}
    reached: set[str] = set()
    for number, thing in _objects(root, graph).items():
        for attribute in graph.nodes[number].attributes:
            name = names.get(id(tensorflow_variable(thing, ""))) if is_variable(thing) else None
            if name is None:
                more[attribute.checkpoint_key] = stock[attribute.checkpoint_key]
            else:
                attribute.checkpoint_key = f"{name}{VALUE}"
                reached.add(name)
    _hang_at_root(graph)
    return graph, more, reached


def _stock_graph(tf: Any, prefix: str) -> tuple[Any, dict[str, Any]]:
    reader = tf.train.load_checkpoint(prefix)
    graph = _new_graph()
    graph.ParseFromString(reader.get_tensor(GRAPH_KEY))
    keys = [attribute.checkpoint_key for node in graph.nodes for attribute in node.attributes]
    return graph, {key: reader.get_tensor(key) for key in keys}


def _objects(root: Any, graph: Any) -> dict[int, Any]:
    """Return the objects that the nodes of a graph represent, walking both in the same order."""
    found = {0: root}
    todo = [0]
    while todo:
        number = todo.pop()
        children = found[number]._trackable_children()
        for child in graph.nodes[number].children:
            if child.node_id not in found and child.local_name in children:
                found[child.node_id] = children[child.local_name]
                todo.append(child.node_id)
    for number, node in enumerate(graph.nodes):  # slots of Keras' legacy optimizers are no node's children
        for slot in node.slot_variables:
            owner, weight = found[number], found[slot.original_variable_node_id]
            found[slot.slot_variable_node_id] = owner.get_slot(weight, slot.slot_name)
    return found


def _hang_at_root(graph: Any) -> None:
    """Make the children of the model children of the root too."""
    root = graph.nodes[0]
    taken = {child.local_name: child.node_id for child in root.children}
    for child in graph.nodes[taken["model"]].children:
        if child.local_name not in taken:
            root.children.add(node_id=child.node_id, local_name=child.local_name)


# -- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """What a checkpoint of TensorFlow's holds.

    Attributes
    ----------
    tensors : dict of str to array
        Values by name.
    note : bytes or None
        Our note, if we wrote it. Then there may be a `SAVE_COUNTER` that we put there ourselves.
    texts, counts : tuple of str
        Entries that were left out: text, which is no tensor here, and what Keras' metrics and TensorFlow itself count.
    """

    tensors: Mapping[str, Array]
    note: bytes | None = None
    texts: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()


def read_bundle(prefix: Path) -> Bundle:
    """Read all tensors of a checkpoint. Independent.

    They are named after their variables and the object that holds these, ``model`` or ``optimizer``; without an object
    graph, and in files of hpcckpt, by their keys.

    Raises
    ------
    CorruptError
        If it is damaged.
    ForeignFormatError
        If it is no checkpoint of TensorFlow's.
    """
    tf = import_tensorflow()
    with _own_errors(tf, prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        dtypes = reader.get_variable_to_dtype_map()
        _refuse_claims(reader, dtypes, prefix)
        note = _note(reader, dtypes)
        names = _names(reader, prefix, dtypes, is_ours=note is not None)
        texts = {key for key in names if dtypes[key] == tf.string}
        counts = {key for key in names if "/keras_api/metrics/" in f"/{key}"}
        counts |= set() if note is not None else {f"{SAVE_COUNTER}{VALUE}"} & names.keys()
        wanted = {name: key for key, name in names.items() if key not in texts | counts}
        tensors = {name: np.asarray(reader.get_tensor(key)) for name, key in wanted.items()}
    return Bundle(tensors, note, *(tuple(sorted(names[key] for key in keys)) for keys in (texts, counts)))


def _note(reader: Any, keys: Iterable[str]) -> bytes | None:
    """Return the text in the position of hpcckpt's note, if there is one; its content is untrusted."""
    found = reader.get_tensor(NOTE_KEY) if NOTE_KEY in keys else None
    return found if isinstance(found, bytes) else None


def _refuse_claims(reader: Any, dtypes: Mapping[str, Any], prefix: Path) -> None:
    """Raise if tensors are larger than the files that they lie in: memory would be taken before that is noticed."""
    files = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")
    stored = sum(path.stat().st_size for path in files)
    claimed = 0
    for key, shape in reader.get_variable_to_shape_map().items():
        claimed += math.prod(shape) * (1 if dtypes[key].as_numpy_dtype is object else dtypes[key].size)
        if claimed > stored:
            raise CorruptError(f"{prefix} is damaged: {key} is said to have shape {shape}, which is more than there is")


def _names(reader: Any, prefix: Path, keys: Iterable[str], *, is_ours: bool) -> dict[str, str]:
    """Return the names of tensors by their keys; all different."""
    plain = {key: key.removesuffix(VALUE).strip("/") for key in keys if key not in {GRAPH_KEY, NOTE_KEY}}
    if is_ours:
        return plain
    if GRAPH_KEY not in keys:
        return plain
    named = _named_variables(_graph_of(reader, prefix))
    wanted = {key: named.get(key, name) for key, name in plain.items()}
    counts: dict[str, int] = {}
    for name in wanted.values():
        counts[name] = counts.get(name, 0) + 1
    return {key: name if counts[name] == 1 else plain[key] for key, name in wanted.items()}


def _named_variables(graph: Any) -> dict[str, str]:
    """Return names below ``model`` and ``optimizer`` for the variables of a Keras model, by their keys. Pure."""
    children = [{child.local_name: child.node_id for child in node.children} for node in graph.nodes]
    root = children[0] if children else {}
    start = root.get("model", 0)
    if start == 0 and not any(name.startswith(_KERAS_PARTS) for name in root):
        return {}
    optimizer = root.get("optimizer", -1)
    of_model = _below(children, start, optimizer)
    of_optimizer = _below(children, optimizer) - of_model
    weights, others = (_variables(graph, numbers) for numbers in (of_model, of_optimizer))
    paths = {name.replace("/", "_"): name for name in weights.values()}
    return {key: f"{MODEL}/{name}" for key, name in weights.items()} | {
        key: f"{OPTIMIZER}/{slot_path(name, paths)}" for key, name in others.items()
    }


def _variables(graph: Any, numbers: Iterable[int]) -> dict[str, str]:
    """Return what the variables among these nodes are called, by their keys. Pure."""
    attributes = [attribute for number in numbers for attribute in graph.nodes[number].attributes]
    return {each.checkpoint_key: each.full_name.strip("/") for each in attributes if each.full_name}


def _below(children: list[dict[str, int]], start: int, without: int = -1) -> set[int]:
    """Return the numbers of the nodes that hang below a node, itself among them. Pure."""
    found: set[int] = set()
    todo = [start] if 0 <= start < len(children) else []
    while todo:
        number = todo.pop()
        if number not in found and number != without and 0 <= number < len(children):
            found.add(number)
            todo += children[number].values()
    return found


def read_into_model(prefix: Path, model: Any) -> ModelValues:
    """Read a checkpoint into a model, as ``tf.train.Checkpoint`` does it. Independent.

    Raises
    ------
    CorruptError
        If it is damaged.
    StateMismatchError
        If they do not fit.
    """
    tf = import_tensorflow()
    with _own_errors(tf, prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        _refuse_claims(reader, reader.get_variable_to_dtype_map(), prefix)
        if GRAPH_KEY not in reader.get_variable_to_dtype_map():
            raise ForeignFormatError(f"{prefix} has names but no objects to restore a model from; leave out --model")
        graph = _graph_of(reader, prefix)
    is_root = not any(child.local_name == "model" for child in graph.nodes[0].children)

    def load() -> None:
        optimizer = getattr(model, "optimizer", None)
        parts = {} if optimizer is None else {"optimizer": optimizer}
        root = tf.train.Checkpoint(root=model) if is_root else tf.train.Checkpoint(model=model, **parts)
        root.read(str(prefix)).expect_partial()

    return observed(model, load)


def _graph_of(reader: Any, prefix: Path) -> Any:
    """Return the object graph of a checkpoint.

    Raises
    ------
    CorruptError
        If it is none: TensorFlow's checksums are right in a file that was made up, too.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types

    graph = _new_graph()
    try:
        graph.ParseFromString(reader.get_tensor(GRAPH_KEY))
    except (DecodeError, TypeError) as error:
        raise CorruptError(f"{prefix} is damaged: its object graph cannot be read: {_line(error)}") from error
    numbers = range(len(graph.nodes))
    if not numbers or any(child.node_id not in numbers for node in graph.nodes for child in node.children):
        raise CorruptError(f"{prefix} is damaged: its object graph names objects that it has not")
    return graph


@contextlib.contextmanager
def _own_errors(tf: Any, prefix: Path) -> Iterator[None]:
    """Turn TensorFlow's errors into ours."""
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise StepNotFoundError(f"{prefix}: {_line(error)}") from error
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise CorruptError(f"{prefix} is damaged: {_line(error)}") from error
    except (tf.errors.OpError, RuntimeError) as error:
        if "hecksum" in str(error):
            raise CorruptError(f"{prefix} is damaged: {_line(error)}") from error
        raise ForeignFormatError(f"{prefix} cannot be read as a checkpoint of TensorFlow's: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
