"""A tensor buffer in pure Python; DLPack capsules are consumed with ctypes."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcckpt.native.buffers import BytesLike

_TOKENS = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16",
    (5, 64): "complex64", (5, 128): "complex128", (6, 8): "bool",
    (7, 8): "float8_e3m4", (8, 8): "float8_e4m3", (9, 8): "float8_e4m3b11fnuz", (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu",
}  # fmt: skip
"""DLPack's (code, bits) to dtype tokens."""
_HOST_DEVICES = (1, 3, 11)
_MAJOR_VERSION = 1
_READ_ONLY = 1
_NOTHING = ctypes.c_uint8()

# Prototypes made here: setting argtypes on ctypes.pythonapi would change them for all users of ctypes.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_DELETER = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
# A capsule refers to its name, so these bytes must exist for as long as there are capsules.
_USED, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )

    def lengths(self) -> tuple[int, ...]:
        return tuple(self.shape[: self.ndim])

    def is_c_contiguous(self) -> bool:
        lengths = self.lengths()
        if not self.strides or 0 in lengths:
            return True
        dense = 1
        for length, stride in zip(reversed(lengths), reversed(self.strides[: self.ndim]), strict=True):
            if length != 1 and stride != dense:
                return False
            dense *= length
        return True


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Claim:
    """Keeps some memory alive, and counts; arrays made of it have it as their base.

    Parameters
    ----------
    owner
        Has the memory, unless `deleter` is given.
    deleter
        Called when the memory is no longer used.
    """

    n_live: ClassVar[int] = 0

    def __init__(
        self, address: int, nbytes: int, is_readonly: bool, owner: object, deleter: Callable[[], object] | None = None
    ) -> None:
        self.owner = owner
        self.deleter = deleter
        address = address or ctypes.addressof(_NOTHING)  # NumPy takes no null pointer, not even for nothing
        self.__array_interface__ = {
            "data": (address, is_readonly), "shape": (nbytes,), "typestr": "|u1", "version": 3
        }  # fmt: skip
        _Claim.n_live += 1

    def __del__(self) -> None:
        _Claim.n_live -= 1
        if self.deleter is not None:
            self.deleter()


def live_views() -> int:
    return _Claim.n_live


class TensorBuffer:
    """See :class:`hpcckpt.native.TensorBuffer`."""

    __slots__ = ("_array", "dtype", "readonly", "shape")

    def __init__(self, data: BytesLike, dtype: str, shape: list[int]) -> None:
        source = np.frombuffer(cast("memoryview", data), np.uint8)
        address = source.__array_interface__["data"][0]
        self._claim(address, source.nbytes, not source.flags.writeable, source)
        self.dtype = dtype
        self.shape = tuple(shape)

    @classmethod
    def from_dlpack(cls, capsule: object) -> TensorBuffer:
        received = _open_capsule(capsule)
        tensor = received.tensor
        _check(tensor)
        lengths = tensor.lengths()
        made = cls.__new__(cls)
        made.dtype = _TOKENS[tensor.code, tensor.bits]
        made.shape = lengths
        nbytes = math.prod(lengths) * tensor.bits // 8
        address = tensor.data + tensor.byte_offset if tensor.data else 0
        claim = made._claim(address, nbytes, received.is_readonly, None)
        if _set_name(capsule, received.used_name) == 0:  # by this name the capsule's destructor knows not to delete
            claim.deleter = received.deleter
        return made

    def _claim(self, address: int, nbytes: int, is_readonly: bool, owner: object) -> _Claim:
        claim = _Claim(address, nbytes, is_readonly, owner)
        self._array: npt.NDArray[np.uint8] | None = np.asarray(claim)
        self.readonly = is_readonly
        return claim

    @property
    def address(self) -> int:
        return int(self.as_array().__array_interface__["data"][0])

    @property
    def nbytes(self) -> int:
        return self.as_array().nbytes

    @property
    def released(self) -> bool:
        return self._array is None

    def release(self) -> None:
        self._array = None

    def as_array(self) -> npt.NDArray[np.uint8]:
        """Return the bytes, as an array that keeps them alive."""
        if self._array is None:
            raise ValueError("this tensor buffer was released")
        return self._array

    def __array__(self, dtype: object = None, copy: bool | None = None) -> npt.NDArray[np.uint8]:
        return self.as_array()

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(cast("memoryview", self.as_array()))


class _Received(NamedTuple):
    """What a capsule holds."""

    tensor: _Tensor
    is_readonly: bool
    used_name: bytes
    deleter: Callable[[], object] | None


def _open_capsule(capsule: object) -> _Received:
    """Read a capsule without consuming it."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _MAJOR_VERSION:
            raise BufferError(f"DLPack version {versioned.major} is not understood")
        is_readonly = bool(versioned.flags & _READ_ONLY)
        return _Received(versioned.tensor, is_readonly, _USED_VERSIONED, _deleter_of(versioned))
    if _is_valid(capsule, b"dltensor"):
        managed = _Managed.from_address(_get_pointer(capsule, b"dltensor"))
        return _Received(managed.tensor, False, _USED, _deleter_of(managed))
    raise ValueError("not an unconsumed DLPack capsule")


def _deleter_of(managed: _Managed | _Versioned) -> Callable[[], object] | None:
    """Return a function that returns the tensor to its exporter."""
    return functools.partial(_DELETER(managed.deleter), ctypes.addressof(managed)) if managed.deleter else None


def _check(tensor: _Tensor) -> None:
    if tensor.device_type not in _HOST_DEVICES:
        raise BufferError(f"tensor is on DLPack device type {tensor.device_type}, not in host memory")
    if (tensor.code, tensor.bits) not in _TOKENS or tensor.lanes != 1:
        raise TypeError(f"DLPack dtype ({tensor.code}, {tensor.bits}) has no dtype token")
    if not tensor.is_c_contiguous():
        raise BufferError("tensor is not C-contiguous: make it so before")
