"""Contents of PyTorch's ``.pt``, by PyTorch's own reader with ``weights_only=True``: what needs code to run is refused.

Nested dicts give names joined with '/'. ``model_state_dict`` and ``optimizer_state_dict``, as PyTorch's tutorials have
them, are ``model`` and ``optimizer``; a bare state_dict of tensors is that of a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.results import Progress
from hpcckpt.errors import ConfigError, CorruptError, ForeignFormatError
from hpcckpt.format.note import KEY, from_json
from hpcckpt.restoring.reader import Array
from hpcckpt.state.tree import is_json
from hpcckpt.tools.convert.contents import Contents, refuse_claim, with_note
from hpcckpt.tools.convert.result import LeftOut
from hpcckpt.tools.convert.write_torch import import_torch

_REASON = re.compile(r"WeightsUnpickler error: (.{1,200}?)(?: by default| but got|\n|$)", re.DOTALL)
_ALIASES = {"model_state_dict": "model", "state_dict": "model", "optimizer_state_dict": "optimizer"}


def read_torch(path: Path, progress: Progress | None = None) -> Contents:
    """Return tensors and JSON values of a file. Independent.

    Raises
    ------
    ConfigError
        If PyTorch is not installed.
    ForeignFormatError
        If reading it would run code, or it holds no dict or tensor.
    CorruptError
        If it is damaged.
    """
    torch = import_torch()
    found = load_weights_only(path)
    note = from_json(found.pop(KEY)) if isinstance(found, dict) and KEY in found else None
    named = _renamed(torch, found, is_ours=note is not None)
    try:
        contents = _contents(torch, named, path, progress)
    except RecursionError:
        raise ForeignFormatError(f"{path} is nested too deep") from None
    return with_note(contents, note)


def _contents(torch: Any, named: Mapping[Any, Any], path: Path, progress: Progress | None) -> Contents:
    tensors: dict[str, Array] = {}
    objects: dict[str, Any] = {}
    left: list[str] = []
    stored, claimed = path.stat().st_size, 0
    for name, value in _leaves(torch, named, ""):
        if name in tensors or name in objects:
            raise ForeignFormatError(f"{path}: two values in it would be called {name!r}; rename one of them")
        if not isinstance(value, torch.Tensor):
            (objects.__setitem__(name, value) if is_json(value) else left.append(f"{name} ({type(value).__name__})"))
            continue
        claimed += value.numel() * value.element_size()  # views of few bytes, with strides of 0, may be any size
        refuse_claim(f"{path}: {name}", claimed, stored)
        array = _array(torch, value)
        if array is None:
            left.append(f"{name} ({value.layout}, {value.dtype})")
        else:
            tensors[name] = array
            if progress:
                progress(array.nbytes)
    left_out = (LeftOut(tuple(left), "neither plain tensors nor JSON values"),) if left else ()
    return Contents(tensors, state_objects=objects, left_out=left_out)


def _refuse_old(torch: Any) -> None:
    """Raise where ``weights_only`` does not hold what it promises: CVE-2025-32434."""
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 6):
        raise ConfigError("PyTorch before 2.6 may run code that is in a file: pip install -U torch")


def load_weights_only(path: Path, map_location: Any = "cpu") -> Any:
    """Return what a file holds, by PyTorch's reader with ``weights_only=True``, on the CPU. Independent.

    A function as `map_location` is given each storage, on the CPU, and where it was saved; it may not fail.

    Raises
    ------
    ConfigError
        If PyTorch is not installed, or too old for ``weights_only`` to be safe.
    ForeignFormatError
        If reading it would run code.
    CorruptError
        If it is damaged.
    """
    import pickle

    torch = import_torch()
    _refuse_old(torch)
    try:
        found = torch.load(path, map_location=map_location, weights_only=True)
        _check_sparse(torch, found)
    except pickle.UnpicklingError as error:
        named = _REASON.search(str(error))
        reason = " ".join(named[1].split()) if named else "PyTorch does not say which"
        raise ForeignFormatError(
            f"{path} is refused: to read it, Python objects would have to be unpickled, and that may run code "
            f"({reason}); where you trust it, load it and save its state_dict() alone"
        ) from error
    except Warning:  # where warnings are errors: this says nothing about the file
        raise
    except Exception as error:  # its unpickler may raise anything on other files
        raise CorruptError(f"{path} is damaged, or not PyTorch's: {' '.join(str(error).split())[:300]}") from error
    return found


def _check_sparse(torch: Any, found: Any) -> None:
    """Raise where indices of a sparse tensor point outside its shape; ``torch.load`` does not look. Independent."""
    waiting, seen = [found], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            _check_indices(torch, value)
        elif isinstance(value, dict | list | tuple | set) and id(value) not in seen:  # a list may hold itself
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value


def _check_indices(torch: Any, tensor: Any) -> None:
    size, layout = tensor.size(), tensor.layout
    if layout is torch.sparse_coo:
        parts = tensor._indices(), tensor._values()
        torch.sparse_coo_tensor(*parts, size, is_coalesced=tensor.is_coalesced(), check_invariants=True)
    elif layout in {torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc}:
        is_by_row = layout in {torch.sparse_csr, torch.sparse_bsr}
        compressed = tensor.crow_indices() if is_by_row else tensor.ccol_indices()
        plain = tensor.col_indices() if is_by_row else tensor.row_indices()
        torch.sparse_compressed_tensor(compressed, plain, tensor.values(), size, layout=layout, check_invariants=True)


def _renamed(torch: Any, found: Any, *, is_ours: bool) -> dict[Any, Any]:
    """Return a dict with hpcckpt's names of parts."""
    if isinstance(found, torch.Tensor):
        return {"tensor": found}
    if not isinstance(found, Mapping):
        raise ForeignFormatError(f"there is a {type(found).__name__} in it, not a dict of tensors")
    if is_ours:
        return dict(found)
    if found and all(isinstance(value, torch.Tensor) for value in found.values()):
        return {"model": found}
    aliases = [_ALIASES.get(name) for name in found]
    taken = {None, *found, *(alias for alias in aliases if aliases.count(alias) > 1)}
    pairs = zip(found.items(), aliases, strict=True)
    return {name if alias in taken else alias: value for (name, value), alias in pairs}


def _leaves(torch: Any, value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(torch, item, f"{name}/{key}" if name else str(key))
    elif isinstance(value, list | tuple) and not is_json(value):
        for number, item in enumerate(value):
            yield from _leaves(torch, item, f"{name}/{number}")
    else:
        yield name, list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _array(torch: Any, tensor: Any) -> Array | None:
    """Return the values of a dense tensor as an array that shares its memory; ``None`` for others."""
    token = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return None
    try:
        dtype = numpy_dtype(token)
    except (ValueError, ConfigError):
        return None
    shape = tuple(tensor.shape)
    if tensor.numel() == 0:
        return np.empty(shape, dtype)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    array: Array = plain.view(torch.uint8).numpy().view(dtype)
    return array.reshape(shape)
