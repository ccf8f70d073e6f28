"""Dtype tokens as HDF5 types: how other programs see bytes that are always those of the array."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from hpcckpt.backends.hdf5 import library
from hpcckpt.backends.hdf5.arrangement import MAX_DIMS
from hpcckpt.core.tensors import itemsize

_FLOATS = {  # bits of exponent and mantissa, and the bias, of types whose infinities and NaNs are those of IEEE 754
    "bfloat16": (8, 7, 127),
    "float8_e5m2": (5, 2, 15),
    "float8_e4m3": (4, 3, 7),
    "float8_e3m4": (3, 4, 3),
}
_TEXT = re.compile("<U([0-9]+)")
_TIME = re.compile(r"<[Mm]8.*")


@functools.cache
def file_type(token: str) -> tuple[Any, tuple[int, ...]]:
    """Return the HDF5 type of one element, and the axes that it adds to the dataset. Independent."""
    h5t = library.load().h5t
    text = _TEXT.fullmatch(token)
    if token in _FLOATS:
        return _float_type(h5t, 8 * itemsize(token), *_FLOATS[token]), ()
    if token.startswith("float8"):
        return h5t.STD_U8LE, ()
    if text:
        return h5t.STD_U32LE, (int(text[1]),)
    if _TIME.fullmatch(token):
        return h5t.STD_I64LE, ()
    if itemsize(token) == 0:
        return h5t.STD_U8LE, (0,)
    try:
        return h5t.py_create(np.dtype(token), logical=True), ()
    except TypeError:  # a long double that this machine does not have
        return h5t.py_create(np.dtype(f"V{itemsize(token)}"), logical=True), ()


def _float_type(h5t: Any, n_bits: int, exponent: int, mantissa: int, bias: int) -> Any:
    made = h5t.IEEE_F32LE.copy()
    made.set_fields(n_bits - 1, mantissa, exponent, 0, mantissa)
    made.set_size(n_bits // 8)
    made.set_ebias(bias)
    return made


def file_shape(token: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the dataset that holds an array of `shape`. Independent."""
    added = file_type(token)[1]
    if len(shape) + len(added) > MAX_DIMS:
        shape = (int(np.prod([int(n) for n in shape], dtype=object)),)
    return (*shape, *added)
