"""The structs of ``include/hpcckpt/plugin.h``, as Python sees them; ``ABI.md`` says what they mean."""

from __future__ import annotations

import ctypes
import platform
import sys
from ctypes import c_int, c_int64, c_uint32, c_uint64, c_void_p

MAJOR = 1
MINOR = 0
MAGIC = int.from_bytes(b"hpcckptA", "little")
SYMBOL = "hpcckpt_plugin_abi"
ERROR_BYTES = 4096
"""Room for the text of an error."""
NO_SPACE = -3
"""The code that says that storage or quota is full."""
DAMAGED = -4
"""The code that says that what was stored is damaged, or not there."""

FEATURES = {"stores": 1, "concurrent": 2, "durable": 4, "partial": 8}
KINDS = {"replicated": 0, "root": 1, "sharded": 2, "per-rank": 3}
DTYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9,
    "float16": 10, "float32": 11, "float64": 12, "complex64": 13, "complex128": 14, "bfloat16": 15,
    "float8_e4m3fn": 16, "float8_e5m2": 17, "float8_e4m3": 18, "float8_e3m4": 19, "float8_e8m0fnu": 20,
    "float8_e4m3b11": 21, "float8_e4m3b11fnuz": 22, "float8_e4m3fnuz": 23, "float8_e5m2fnuz": 24,
}  # fmt: skip
"""Numbers of dtype tokens; 0 is any other."""

_ARCHS = {
    "x86_64": 1, "amd64": 1, "aarch64": 2, "arm64": 2, "ppc64": 3, "ppc64le": 3, "riscv64": 4, "s390x": 5,
    "loongarch64": 6, "i386": 7, "i686": 7, "arm": 8, "armv7l": 8,
}  # fmt: skip


def this_platform() -> int:
    """Return this process's tag: bytes of a pointer, byte order, instruction set."""
    pointer_bytes = ctypes.sizeof(c_void_p)
    arch = _ARCHS.get(platform.machine().lower(), 0)
    if pointer_bytes == 4:  # a 32-bit process on a 64-bit system
        arch = {1: 7, 2: 8}.get(arch, arch)
    return pointer_bytes | (sys.byteorder == "big") << 8 | arch << 16


def platform_name(tag: int) -> str:
    """Say a platform's tag in words."""
    names = {number: name for name, number in reversed(_ARCHS.items())}
    order = "big-endian" if tag >> 8 & 0xFF else "little-endian"
    return f"{names.get(tag >> 16, f'machine {tag >> 16}')}, {8 * (tag & 0xFF)} bits, {order}"


class Tensor(ctypes.Structure):
    """``hpcckpt_tensor``."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("dtype", c_uint32),
        ("name", ctypes.c_char_p),
        ("dtype_name", ctypes.c_char_p),
        ("itemsize", c_uint32),
        ("ndim", c_uint32),
        ("kind", c_uint32),
        ("reserved_flags", c_uint32),
        ("global_shape", c_void_p),
        ("offset", c_void_p),
        ("shape", c_void_p),
        ("first_element", c_uint64),
        ("n_elements", c_uint64),
        ("data", c_void_p),
        ("nbytes", c_uint64),
        ("reserved", c_void_p * 4),
    )


class Context(ctypes.Structure):
    """``hpcckpt_context``."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved_flags", c_uint32),
        ("directory", ctypes.c_char_p),
        ("save_id", ctypes.c_char_p),
        ("step", c_int64),
        ("rank", c_uint32),
        ("n_ranks", c_uint32),
        ("n_tensors", c_uint64),
        ("tensors", c_void_p),
        ("reserved", c_void_p * 4),
    )


class BackendTable(ctypes.Structure):
    """``hpcckpt_backend_table``."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("features", c_uint32),
        ("name", c_uint64),
        ("create", c_uint64),
        ("save", c_uint64),
        ("load", c_uint64),
        ("destroy", c_uint64),
        ("reserved", c_uint64 * 4),
    )


class PluginTable(ctypes.Structure):
    """``hpcckpt_plugin_table``."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("platform", c_uint32),
        ("magic", c_uint64),
        ("abi_major", c_uint32),
        ("abi_minor", c_uint32),
        ("n_backends", c_uint64),
        ("backends", c_uint64),
        ("reserved", c_uint64 * 4),
    )


Entry = ctypes.CFUNCTYPE(c_void_p)
Create = ctypes.CFUNCTYPE(c_int, ctypes.c_char_p, ctypes.POINTER(c_void_p), c_void_p, c_uint64)
Call = ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.POINTER(Context), c_void_p, c_uint64)
Destroy = ctypes.CFUNCTYPE(None, c_void_p)
