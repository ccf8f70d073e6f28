"""Dtype tokens to NumPy dtypes and back; the only module of `core` that needs NumPy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hpcckpt import errors
from hpcckpt.core.tensors import ITEMSIZE, itemsize

LONG_DOUBLES = frozenset({"<f16", "<c32"})
"""Tokens of x86's 80-bit numbers, padded to 16 bytes; long doubles of other machines have the same name in NumPy."""
_MANTISSA_X87 = 63
_NUMPY_NAMES = {"bool", *(name for name in ITEMSIZE if name != "bool" and hasattr(np, name))}


def has_x87() -> bool:
    """Return True if the long doubles of this machine are x86's. Pure."""
    return np.finfo(np.longdouble).nmant == _MANTISSA_X87


@functools.cache
def numpy_dtype(token: str) -> np.dtype[Any]:
    """Return the little-endian NumPy dtype of a token.

    Raises
    ------
    ConfigError
        If this machine does not have this type (long doubles), or ml_dtypes is needed and does not.
    ValueError
        If `token` is not a dtype token.
    """
    itemsize(token)  # refuses whatever is not a token before NumPy sees it
    if token in LONG_DOUBLES and not has_x87():
        raise errors.ConfigError(
            f"dtype {token!r} is the 80-bit floating-point number of x86, and this machine has another format: read it "
            "on x86, and convert it to float64 there"
        )
    if token in _NUMPY_NAMES or token not in ITEMSIZE:
        try:
            return np.dtype(token)
        except TypeError:
            raise errors.ConfigError(f"dtype {token!r} is not known to NumPy on this machine") from None
    import ml_dtypes  # only the narrow types need it

    if not hasattr(ml_dtypes, token):
        raise errors.ConfigError(f"dtype {token!r} needs a newer ml_dtypes: pip install -U ml_dtypes")
    return np.dtype(getattr(ml_dtypes, token))


@functools.lru_cache(maxsize=1024)
def dtype_token(dtype: np.dtype[Any]) -> str:
    """Return the token of a NumPy dtype.

    Raises
    ------
    StateError
        If the dtype has no fixed-size plain form (objects, structured types), or its elements have no bytes (``V0``).
    """
    if dtype.name in ITEMSIZE:
        return dtype.name
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise errors.StateError(f"dtype {dtype} cannot be saved: split it into plain arrays, or store it as an object")
    if dtype.itemsize == 0:  # nothing in a file would show that the elements are there
        raise errors.StateError(f"dtype {dtype} cannot be saved: its elements have no bytes, leave it out")
    little = dtype.newbyteorder("<")
    token = little.str
    try:
        is_itself = numpy_dtype(token) == little  # others' types (int4) pass for plain bytes, and would come back so
    except (ValueError, errors.ConfigError):
        is_itself = False
    if not is_itself:
        raise errors.StateError(f"dtype {dtype} cannot be saved: convert it to a plain numeric dtype")
    return token
