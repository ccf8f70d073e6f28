"""What a tensor is, without its values: name, dtype token, global shape, extent.

Dtypes are written as tokens so that login-node tools need no NumPy to add up sizes: NumPy's names
(``float32``, ``bool``), those of ml_dtypes (``bfloat16``, ``float8_e4m3fn``), and NumPy's type
strings, always little-endian, for the rest (``<U5``, ``|S3``, ``<M8[ns]``, ``|V16``).
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["replicated", "root", "sharded", "per-rank"]
"""How ranks share a tensor.

``replicated``: equal on all ranks, compared by digest.  ``root``: may differ between ranks, rank 0's
value counts (BatchNorm statistics).  ``sharded``: each rank holds an extent.  ``per-rank``: each rank
has its own.
"""
KINDS: tuple[str, ...] = get_args(Kind)

ITEMSIZE = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3": 1, "float8_e3m4": 1, "float8_e8m0fnu": 1,
    "float8_e4m3b11": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
SAFETENSORS_CODES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""Names of dtype tokens in safetensors; in hpcckpt's files the others are stored as bytes."""
_TYPE_STRING = re.compile(
    r"[<|]([USV])([0-9]{1,8})|<(f)(16)|<(c)(32)|<([Mm])(8)(?:\[(?:[1-9][0-9]{0,5})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
MAX_DIMS = 64
MAX_NBYTES = 1 << 60


def itemsize(token: str) -> int:
    """Return the bytes per element of a dtype token.

    Raises
    ------
    ValueError
        If `token` is not a dtype token.
    """
    if token in ITEMSIZE:
        return ITEMSIZE[token]
    match = _TYPE_STRING.fullmatch(token)
    if match is None:
        raise ValueError(f"unknown dtype {token!r}")
    letter, size = (part for part in match.groups() if part is not None)
    if letter in "SU" and int(size) == 0:  # NumPy takes it for one character: arrays of it have bytes that no file has
        raise ValueError(f"dtype {token!r} is text without room for any")
    return int(size) * (4 if letter == "U" else 1)


@dataclass(frozen=True, slots=True)
class Extent:
    """A box in a tensor: `offset` and `shape`, in elements, one number per axis."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the fields: ranks send many of these, and the pickles of frozen dataclasses take twice as long."""
        return Extent, (self.offset, self.shape)

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Extent:
        """Return the box that is the whole tensor."""
        return cls((0,) * len(shape), shape)

    @property
    def n_elements(self) -> int:
        """Number of elements in the box."""
        return math.prod(self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return True if the box lies inside a tensor of `shape`."""
        if not len(self.offset) == len(self.shape) == len(shape):
            return False
        for start, length, limit in zip(self.offset, self.shape, shape, strict=True):
            if start < 0 or length < 0 or start + length > limit:
                return False
        return True


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype token, global shape and kind of a tensor.

    The shape of a per-rank tensor is that of rank 0.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: Kind = "replicated"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the fields; see `Extent`."""
        return TensorSpec, (self.name, self.dtype, self.shape, self.kind)

    @property
    def nbytes(self) -> int:
        """Bytes of one full copy of the tensor."""
        return math.prod(self.shape) * itemsize(self.dtype)

    @property
    def is_for_any_ranks(self) -> bool:
        """Whether, of a per-rank tensor, rank 0's value is restored on another number of ranks."""
        return self.kind == "per-rank" and self.name.endswith(f"/{OWN_SUFFIX}")


OWN_SUFFIX = ".own"
"""Last part of the names of per-rank tensors of which rank 0's is restored on another number of ranks."""


def is_text(value: str) -> bool:
    """Return True if a string can be written as UTF-8: one with a lone surrogate cannot."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


@functools.lru_cache(maxsize=1 << 16)  # a state has the same names at every save
def name_problem(name: str) -> str | None:
    """Return what is wrong with a tensor name, or ``None``.

    Names become paths in HDF5 files and on restore, so no name may lead out of its directory.
    """
    if not name:
        return "has no name: give a mapping of names to tensors"
    if len(name) > 4096:
        return "is longer than 4096 characters"
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return "contains a control character"
    if not is_text(name):
        return "is not Unicode text: it holds half of a character"
    if any(part in {"", ".", ".."} for part in name.split("/")):
        return "has an empty, '.' or '..' part"
    if name == "__metadata__":
        return "is reserved by safetensors"
    return None
