"""A state dict as one safetensors file: tensors as tensors, the rest as JSON in its metadata, nothing pickled.

Tensors have the names that they have in the state dict, so any reader of safetensors loads the file of a model.
Nested dicts give names joined with '/'; what names do not show (lists, integer keys) is in ``.types``, as in a step
(`hpcckpt.state.state_dict`).
"""

from __future__ import annotations

import functools
import json
import logging
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hpcckpt.core.dtypes import dtype_token
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import CorruptError, OptionError, Problem, StateError, StateMismatchError, list_problems
from hpcckpt.restoring.segments import StoredArray
from hpcckpt.rundir.atomic_files import atomic_path
from hpcckpt.state.leaves import DynamicPart, ObjectLeaf, TensorLeaf, dict_like, leaf_name
from hpcckpt.state.tree import Array, as_bytes, is_json, state_dict_leaves
from hpcckpt.tools.convert.detect import source_format
from hpcckpt.tools.convert.read_safetensors import map_safetensors
from hpcckpt.tools.convert.read_torch import load_weights_only
from hpcckpt.tools.convert.write_safetensors import CODES, aligned, encode_header
from hpcckpt.torch.tensors import new

KEY = "hpcckpt.state_dict"
"""The metadata that holds the values that are not tensors, as JSON by name."""
MODULES = "hpcckpt.modules"
"""The metadata that holds the versions of PyTorch's modules: JSON pairs of the keys of a ``state_dict`` and those."""
_PICKLED = frozenset({".pt", ".pth", ".bin"})
_log = logging.getLogger("hpcckpt")


def save_file(state: Mapping[Any, Any], path: Path) -> None:
    """Write a state dict to a file, which is replaced if it exists: complete, or not at all. Independent.

    Raises
    ------
    StateError
        Naming every value that is neither a tensor nor JSON.
    OptionError
        If readers would refuse the header because of its size, or the directory of the file does not exist.
    """
    tensors, objects = _contents(state)
    wanted = {name: _source(leaf) for name, leaf in tensors.items()}
    metadata = {"format": "pt", KEY: json.dumps(_encoded(objects)["dict"], separators=(",", ":"))}
    versions = list(_module_versions(state))
    metadata |= {MODULES: json.dumps(versions, separators=(",", ":"))} if versions else {}
    if path.suffix in _PICKLED:
        _log.warning(
            "hpcckpt: %s is written as safetensors: hpcckpt.torch.load reads it, torch.load does not; "
            "name it %s.safetensors", path, path.stem,
        )  # fmt: skip
    with atomic_path(path, is_overwriting=True) as temporary, temporary.open("xb") as file:
        file.write(encode_header(list(wanted.values()), metadata))
        for source in aligned(wanted.values()):
            file.write(as_bytes(tensors[source.name].read()).data)


def load_file(path: Path, map_location: Any = None) -> Any:
    """Return what a safetensors or ``.pt`` file holds, on the CPU or where `map_location` puts it. Independent.

    Raises
    ------
    StepNotFoundError
        If there is no such file.
    OptionError
        If it is something else; names the call for it.
    ForeignFormatError
        If reading it would run code.
    CorruptError
        If it is damaged.
    """
    locations: dict[int, str] = {}

    def note(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        locations[storage.data_ptr()] = location
        return storage

    kind = source_format(path)
    if kind not in {"pt", "safetensors"}:
        remedy = "hpcckpt.torch.restore or hpcckpt.load" if kind == "hpcckpt" else "hpcckpt convert"
        raise OptionError(f"{path} is not a safetensors or .pt file but {kind}: use {remedy}")
    found = load_weights_only(path, note) if kind == "pt" else _load_safetensors(path)
    return found if map_location is None else _moved(found, lambda tensor: _put(tensor, map_location, locations))


def _load_safetensors(path: Path) -> Any:
    arrays, metadata = map_safetensors(path)
    if KEY not in metadata:
        return _tensors(arrays)
    try:
        objects = {name: _decoded(value) for name, value in json.loads(metadata[KEY]).items()}
        return _with_versions(_nested(arrays, objects), json.loads(metadata.get(MODULES, "[]")))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, StateError, StateMismatchError) as error:
        raise CorruptError(f"{path} is damaged: metadata {KEY}: {error}") from error


def _put(tensor: torch.Tensor, map_location: Any, locations: Mapping[int, str]) -> torch.Tensor:
    """Return a tensor where the `map_location` of ``torch.load`` puts it, given where storages were saved."""
    if tensor.layout != torch.strided:
        is_location = map_location is not None and not callable(map_location) and not isinstance(map_location, Mapping)
        return tensor.to(map_location) if is_location else tensor
    storage = tensor.untyped_storage()
    location = locations.get(storage.data_ptr(), "cpu")
    if isinstance(map_location, Mapping):
        return tensor.to(map_location.get(location, "cpu"))
    if not callable(map_location):
        return tensor.to(map_location)
    found = map_location(storage, location)
    if found is None or tensor.is_quantized:  # its scale would be lost
        return tensor
    empty = torch.empty(0, dtype=tensor.dtype, device=found.device)
    return empty.set_(found, tensor.storage_offset(), tensor.shape, tensor.stride())


def _moved(value: Any, put: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value whose tensors, in dicts and lists, are where `put` puts them. Independent."""
    if isinstance(value, torch.Tensor):
        return put(value)
    if isinstance(value, dict):
        found = dict_like({key: _moved(item, put) for key, item in value.items()}, value)
        return _versioned(found, value._metadata) if hasattr(value, "_metadata") else found
    return type(value)(_moved(item, put) for item in value) if isinstance(value, list | tuple) else value


def _contents(state: Mapping[Any, Any]) -> tuple[dict[str, TensorLeaf], dict[str, Any]]:
    """Return the tensors and JSON values of a state dict by name."""
    problems = [Problem(name, "is an object; pass its state_dict()") for name in _with_state_dicts(state, "")]
    if problems:
        raise StateError(f"this state dict cannot be saved: {list_problems(problems)}")
    leaves = list(state_dict_leaves(state, "", lambda _: None, default="torch"))
    tensors = {leaf.declaration.spec.name: leaf for leaf in leaves if isinstance(leaf, TensorLeaf)}
    objects = {leaf.name: leaf.read() for leaf in leaves if isinstance(leaf, ObjectLeaf)}
    for name, leaf in tensors.items():
        spec = leaf.declaration.spec
        if spec.kind != "replicated":
            problems.append(Problem(name, f"is {spec.kind}; to save it pass a directory and a step"))
        elif spec.dtype not in CODES:
            problems.append(Problem(name, f"safetensors has no dtype {spec.dtype}; convert it to another one"))
    if problems:
        raise StateError(f"this state dict cannot be saved: {list_problems(problems)}")
    return tensors, objects


def _module_versions(state: Mapping[Any, Any]) -> Iterator[tuple[list[str], Any]]:
    """Yield the keys and the versions of each ``state_dict`` of modules in a state dict, the innermost first."""
    for key, item in state.items():
        if isinstance(item, Mapping) and isinstance(key, str):
            yield from (([key, *keys], versions) for keys, versions in _module_versions(item))
    versions = getattr(state, "_metadata", None)
    if isinstance(versions, dict) and is_json(versions):
        yield [], versions


def _with_versions(state: Any, found: Any) -> Any:
    """Return a state dict whose parts have the versions of their modules."""
    for keys, versions in found:
        if not keys:
            return _versioned(state, versions)
        *parents, last = keys
        parent = functools.reduce(operator.getitem, parents, state)
        parent[last] = _versioned(parent[last], versions)
    return state


def _versioned(state: Mapping[Any, Any], versions: Any) -> Any:
    """Return a state dict as ``Module.state_dict`` does: ``load_state_dict`` looks for the versions there."""
    found: Any = OrderedDict(state)
    found._metadata = versions
    return found


def _with_state_dicts(value: Any, name: str) -> Iterator[str]:
    """Yield the names of objects that are passed in place of their ``state_dict()``."""
    if hasattr(value, "load_state_dict"):
        yield name
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _with_state_dicts(item, f"{name}/{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _with_state_dicts(item, f"{name}/{number}")


def _encoded(value: Any) -> Any:
    """Return a JSON value in which tuples differ from lists: a dict is ``{"dict": {}}``, a tuple ``{"tuple": []}``."""
    if isinstance(value, dict):
        return {"dict": {key: _encoded(item) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        items = list(map(_encoded, value))
        return {"tuple": items} if isinstance(value, tuple) else items
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(map(_decoded, value["tuple"]))
    return {key: _decoded(item) for key, item in value["dict"].items()}


def _source(leaf: TensorLeaf) -> StoredArray:
    spec = leaf.declaration.spec
    return StoredArray(spec.name, spec, spec.shape)


def _tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Return tensors with the values of arrays, in memory of their own."""
    found: dict[str, torch.Tensor] = {}
    for name, array in arrays.items():
        found[name], leaf = new(_spec(name, array))
        leaf.assign(array)
    return found


def _nested(arrays: Mapping[str, Array], objects: Mapping[str, Any]) -> dict[Any, Any]:
    """Return a state dict with the containers that it was saved with."""
    found: dict[Any, Any] = {}
    (part,) = state_dict_leaves({}, "", found.update, is_free=True, default="torch")
    assert isinstance(part, DynamicPart)
    fitted = part.resolve({name: _spec(name, array) for name, array in arrays.items()}, objects)
    for leaf in fitted.leaves:
        leaf.assign(arrays[leaf_name(leaf)] if isinstance(leaf, TensorLeaf) else objects[leaf.name])
    if fitted.finish is not None:
        fitted.finish.run()
    return found


def _spec(name: str, array: Array) -> TensorSpec:
    return TensorSpec(name, dtype_token(array.dtype), array.shape)
