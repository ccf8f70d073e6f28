"""Single numbers of a state: Python's, NumPy's, and arrays and variables without axes, restored into one another.

A program that starts with ``{"energy": 0.0}`` and later stores ``(u**2).sum()`` saves another kind of number than it
has when it resumes. The value is restored exactly, in the type that the state has now; where that type cannot hold
it, the restore is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hpcckpt.dtypes import numpy_dtype
from hpcckpt.errors import Problem
from hpcckpt.leaves import Array, StateTree, TensorLeaf
from hpcckpt.loading import StepReader
from hpcckpt.tensors import ITEMSIZE, TensorSpec
from hpcckpt.values import ScalarLeaf


class Scalars(NamedTuple):
    """Numbers that a step and a state have in different forms.

    Attributes
    ----------
    tensors : dict of str to ndarray
        Values for tensors of the state.
    objects : dict of str to object
        Values for Python numbers of the state.
    unfit : dict of str to str
        Those that the state cannot hold exactly, and why, in words.
    """

    tensors: Mapping[str, Array]
    objects: Mapping[str, Any]
    unfit: Mapping[str, str]

    @property
    def names(self) -> set[str]:
        """All of them."""
        return {*self.tensors, *self.objects, *self.unfit}

    @property
    def problems(self) -> list[Problem]:
        """The unfit ones, as problems."""
        return [Problem(repr(name), text) for name, text in self.unfit.items()]


def match_scalars(tree: StateTree, reader: StepReader, objects: Mapping[str, Any]) -> Scalars:
    """Convert the numbers that a step has in another form than the state. Independent.

    Parameters
    ----------
    tree : StateTree
        The state.
    reader : StepReader
        The step; the numbers in question are read, and verified.
    objects : mapping of str to object
        The JSON values of the step.
    """
    tensors: dict[str, Array] = {}
    values: dict[str, Any] = {}
    unfit: dict[str, str] = {}
    for name, leaf in tree.tensors.items():
        own, saved = leaf.declaration.spec, reader.specs.get(name)
        if own == saved or _nature(own) is None:
            continue
        if _nature(own) != (_nature_of_object(objects.get(name)) if saved is None else _nature(saved)):
            continue
        value = objects[name] if saved is None else reader.load(name).item()
        new = _as_text(value, leaf) if isinstance(value, str | bytes) else as_array(value, own.dtype)
        if new is None:
            unfit[name] = f"is {value!r} in the checkpoint, which {own.dtype} in the state cannot hold exactly"
        else:
            tensors[name] = new
    for name, other in tree.objects.items():
        saved = reader.specs.get(name)
        if saved is None or _nature(saved) is None:
            continue
        if other.value is not None and _nature(saved) != _nature_of_object(other.value):
            continue
        value = reader.load(name).item()
        plain = value if isinstance(value, str) else as_python(value, other.value)
        if plain is None:
            unfit[name] = f"is {value!r} in the checkpoint, which a Python number in the state cannot hold exactly"
        else:
            values[name] = plain
    return Scalars(tensors, values, unfit)


def _nature(spec: TensorSpec) -> str | None:
    """Return what a tensor of no axes is, number or text; ``None`` for all others. Pure."""
    if spec.shape != () or spec.kind not in {"replicated", "root"}:
        return None
    if spec.dtype[:2] in {"<U", "|S"}:
        return "text" if spec.dtype[1] == "U" else "bytes"
    return "number" if spec.dtype in ITEMSIZE or spec.dtype in {"<f16", "<c32"} else None


def _nature_of_object(value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, np.generic)
    return "number" if is_number else "text" if isinstance(value, str) else None


def _as_text(value: str | bytes, leaf: TensorLeaf) -> Array | None:
    """Return text of another length for a NumPy scalar; ``None`` if it does not fit. Pure."""
    new = np.array(value)
    return new if isinstance(leaf, ScalarLeaf) and new.item() == value else None


def as_array(value: Any, dtype: str) -> Array | None:
    """Return a number as an array of no axes; ``None`` if the dtype cannot hold it exactly. Pure."""
    try:
        with np.errstate(all="ignore"):
            new: Array = np.array(value).astype(numpy_dtype(dtype))
    except (OverflowError, ValueError, TypeError):
        return None
    return new if _is_same(new.item(), value) else None


def as_python(value: Any, now: Any) -> Any:
    """Return a number in the type of the Python number that it replaces, or else in its own. Pure.

    ``None`` if neither holds it exactly.
    """
    plain = value.real if isinstance(value, complex) and value.imag == 0 else value
    own = next((cls for cls in (bool, int, float) if isinstance(now, cls)), None)
    for cls in (own, bool if isinstance(plain, bool) else int if isinstance(plain, int) else float):
        try:
            number = None if cls is None else cls(plain)
        except (OverflowError, ValueError, TypeError):
            continue
        if number is not None and _is_same(number, plain):
            return number
    return None


def _is_same(a: Any, b: Any) -> bool:
    """Return True if two numbers are equal, the sign of zero included, or both are NaN. Pure."""
    if a != a or b != b:
        return bool(a != a and b != b)
    return bool(a == b) and (bool(a) or math.copysign(1.0, a.real) == math.copysign(1.0, b.real))
