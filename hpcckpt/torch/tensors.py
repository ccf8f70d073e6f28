"""PyTorch tensors as leaves: read and restored in their own memory on CPU, staged from other devices."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, Kind, TensorSpec
from hpcckpt.errors import ConfigError, StateError, StateMismatchError
from hpcckpt.state.tree import Array, TensorLeaf, declare
from hpcckpt.torch.staging import copy_to_host, stage, unstage

_AS_INTEGERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
"""What dtypes that NumPy itself lacks are viewed as on the way, by their size in bytes."""


def dtype_of(tensor: torch.Tensor) -> np.dtype[Any]:
    """Return NumPy's dtype for a tensor.

    Raises
    ------
    StateError
        If there is none of the same values: quantized types, half-precision complex, four bits; or if a library on
        this machine lacks it.
    """
    try:
        return numpy_dtype(str(tensor.dtype).removeprefix("torch."))
    except ConfigError as error:
        raise StateError(f"tensors of {tensor.dtype} cannot be saved here: {error}") from error
    except ValueError as error:
        raise StateError(f"tensors of {tensor.dtype} cannot be saved: convert them to another dtype") from error


def plain(tensor: Any, name: str = "a tensor") -> torch.Tensor:
    """Return a tensor without its history, in the memory it has.

    Raises
    ------
    StateError
        If it has no memory, or not that of its elements in a row: meta, sparse, uninitialized, distributed tensors,
        subclasses that wrap others.
    """
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise StateError(f"{name} has no shape yet: call the model once on a batch before it is saved or restored")
    if tensor.is_meta:
        raise StateError(f"{name} is on the device 'meta', which holds no values: use model.to_empty(device=...)")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise StateError(f"{name} is not a dense tensor ({tensor.layout}, {tensor.dtype}): save its parts")
    if hasattr(tensor, "to_local"):
        raise StateError(f"{name} is a DTensor: save hpcckpt.Sharded(hpcckpt.torch.as_array(t.to_local()), ...)")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise StateError(f"{name} is a {type(tensor).__qualname__}, which wraps other tensors: save these, by name")
    found: torch.Tensor = tensor.detach()
    return found


def place_of(tensor: torch.Tensor) -> Hashable:
    """Return a key of a tensor's memory, the same for tensors that have the same elements; ``None`` without any."""
    if not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride()


def as_array(tensor: torch.Tensor) -> Array:
    """Return a NumPy array that shares the memory of a tensor on CPU, whatever its dtype. Independent.

    Parameters
    ----------
    tensor : torch.Tensor
        Dense, on CPU. bfloat16 and float8 become the types of ml_dtypes.

    Raises
    ------
    StateError
        If it is on another device, or NumPy has nothing like it.
    """
    held = plain(tensor)
    if held.device.type != "cpu":
        raise StateError(f"the tensor is on {held.device}: bring it to the CPU first")
    dtype = dtype_of(held)
    held = held.resolve_conj().resolve_neg()
    if not _is_numpys(dtype):
        held = held.view(_AS_INTEGERS[dtype.itemsize][0])
    array: Array = held.numpy()
    return array.view(dtype)


def _is_numpys(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__ == "numpy"


def from_array(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that shares the memory of a NumPy array, or a copy if it cannot be written. Independent."""
    held = array if array.flags.writeable else array.copy()
    if _is_numpys(held.dtype):
        return torch.from_numpy(held)
    _, integers = _AS_INTEGERS[held.dtype.itemsize]
    return torch.from_numpy(held.view(integers)).view(dtype)


class _Like(NamedTuple):
    """What `declare` reads."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class CpuLeaf(TensorLeaf):
    """The leaf of a tensor on CPU. PyTorch changes tensors in place, so they are copied when they are held."""

    __slots__ = ("is_alias",)

    holder = stager = None

    def __init__(self, tensor: Any, name: str, kind: Kind = "replicated", *, is_alias: bool = False) -> None:
        self.source = plain(tensor, name)
        self.declaration = declare(_Like(dtype_of(self.source), tuple(self.source.shape)), name, kind)
        self.is_alias = is_alias  # another leaf has the same memory, and fills it

    def read(self) -> Array:
        """Return the values; without a copy if they are contiguous."""
        return np.ascontiguousarray(as_array(self.source)).reshape(self.source.shape)

    def target(self) -> Array | None:
        """Return the tensor's own memory if bytes can be read straight into it."""
        held = self.source
        is_plain = held.is_contiguous() and not held.is_conj() and not held.is_neg() and not self.is_alias
        return as_array(held) if is_plain else None

    def place(self) -> Hashable:
        """Return where the tensor's elements are."""
        return place_of(self.source)

    def memory(self) -> Array | None:
        """Return the tensor's memory; ``None`` for a view whose elements are computed from others."""
        return None if self.source.is_conj() or self.source.is_neg() else as_array(self.source)

    def assign(self, new: Array) -> None:
        """Put values into the tensor, unless they were restored there; let autograd know that it changed."""
        if new.size and new.ctypes.data == self.source.data_ptr() and not self.is_alias:
            torch.autograd.graph.increment_version(self.source)
            return
        held, values = _elements(self.source, new, self.declaration.spec.name)
        with torch.no_grad():
            held.copy_(from_array(values, held.dtype))


def _elements(tensor: torch.Tensor, new: Array, name: str) -> tuple[torch.Tensor, Array]:
    """Return an expanded tensor, and its new values, with each of its elements once; any other as it is.

    Raises
    ------
    StateMismatchError
        If the new values differ where the tensor has one element.
    """
    axes = [axis for axis, size in enumerate(tensor.shape) if size > 1 and tensor.stride(axis) == 0]
    values = new
    for axis in axes:
        tensor, values = tensor.narrow(axis, 0, 1), values.take([0], axis)
    if axes and np.broadcast_to(values, new.shape).tobytes() != new.tobytes():
        raise StateMismatchError(
            f"{name} is an expanded tensor, one element for many, and its values in the checkpoint differ: clone() it "
            "and restore again; other parts of the state may be restored already"
        )
    return tensor, values


class DeviceLeaf(TensorLeaf):
    """The leaf of a tensor on an accelerator: staged when it is held, and when it is restored."""

    __slots__ = ()

    holder = None
    stager = staticmethod(stage)

    def __init__(self, tensor: Any, name: str, kind: Kind = "replicated") -> None:
        self.source = plain(tensor, name)
        self.declaration = declare(_Like(dtype_of(self.source), tuple(self.source.shape)), name, kind)

    def read(self) -> Array:
        """Return a copy of the values."""
        return copy_to_host(self.source)

    def target(self) -> None:
        """Offer no memory to restore into: it is not the host's."""

    def place(self) -> Hashable:
        """Return where the tensor's elements are."""
        return place_of(self.source)

    def assign(self, new: Array) -> None:
        """Give the tensor new values."""
        held, values = _elements(self.source, new, self.declaration.spec.name)
        unstage(from_array(values, held.dtype), held)


def tensor_leaf(tensor: Any, name: str, kind: Kind = "replicated") -> TensorLeaf:
    """Return the leaf of a tensor on any device.

    Raises
    ------
    StateError
        If it cannot be saved; says why.
    """
    return CpuLeaf(tensor, name, kind) if tensor.device.type == "cpu" else DeviceLeaf(tensor, name, kind)


def new(spec: TensorSpec) -> tuple[torch.Tensor, TensorLeaf]:
    """Return a tensor that holds nothing yet, and a leaf to restore into it; see `hpcckpt.state.state_dict.Maker`."""
    found = getattr(torch, spec.dtype, None)
    if not isinstance(found, torch.dtype):
        raise StateError(f"{spec.name}: this PyTorch has no dtype {spec.dtype}")
    tensor = torch.empty(spec.shape, dtype=found, device="cpu")  # whatever the default device is
    leaf = CpuLeaf(tensor, spec.name, spec.kind)
    leaf.declaration = Declaration(spec, Extent.whole(spec.shape))
    return tensor, leaf
