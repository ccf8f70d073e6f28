"""Single numbers of a state: Python's, NumPy's, and arrays and variables without axes, restored into one another.

A program that starts with ``{"energy": 0.0}`` and later stores ``(u**2).sum()`` saves another kind of number than it
has when it resumes. The value is restored exactly, in the type that the state has now; where that type cannot hold
it, the restore is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcckpt.core.dtypes import LONG_DOUBLES, numpy_dtype
from hpcckpt.core.tensors import ITEMSIZE, TensorSpec
from hpcckpt.errors import Problem
from hpcckpt.restoring.reader import StepReader
from hpcckpt.restoring.sequences import StoredValues, UnknownError, match_lists
from hpcckpt.state.arrays import JSON_SUFFIX, PerRankJsonLeaf, ScalarLeaf, json_bytes, json_value
from hpcckpt.state.leaves import Array, ObjectLeaf, StateTree, TensorLeaf, join

_LONG = np.longdouble | np.clongdouble


@dataclass(slots=True)
class Scalars:
    """Numbers that a step and a state have in different forms.

    Attributes
    ----------
    tree : StateTree
        The state, with the leaves that fit the step.
    stored : StoredValues
        The values of the step by the names that the state has.
    tensors : dict of str to ndarray
        Values for tensors of the state.
    objects : dict of str to object
        Values for Python numbers of the state.
    unfit : dict of str to str
        Those that the state cannot hold exactly, and why, in words.
    gone : list of str
        Those that each rank has for itself, in a step of another number of ranks.
    """

    tree: StateTree
    stored: StoredValues
    tensors: dict[str, Array] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """All of them."""
        return {*self.tensors, *self.objects, *self.unfit, *self.gone}

    @property
    def problems(self) -> list[Problem]:
        """The unfit ones, as problems."""
        return [Problem(repr(name), text) for name, text in self.unfit.items()]


def match_scalars(tree: StateTree, reader: StepReader, rank: int | None) -> Scalars:
    """Convert the numbers that a step has in another form than the state. Independent.

    Parameters
    ----------
    tree : StateTree
        The state.
    reader : StepReader
        The step; the numbers in question are read, and verified.
    rank : int or None
        This rank, if the step was saved by the same number of ranks.
    """
    stored = StoredValues(reader.specs, reader.manifest.objects.get("state", {}))
    tree, stored = match_lists(tree, stored, lambda name, now: _item(reader, name, now))
    found = Scalars(tree, stored)
    for name, leaf in tree.tensors.items():
        if leaf.declaration.spec.kind == "per-rank":
            _match_own(found, name, leaf, reader, rank)
        elif leaf.declaration.spec != stored.specs.get(name):
            _match_tensor(found, name, leaf, reader)
    for name, other in tree.objects.items():
        if name in stored.specs:
            _match_object(found, name, other, reader)
    return found


def _item(reader: StepReader, name: str, now: Any) -> Any:
    """Return a tensor of a step as an item of a list: a Python value, or a NumPy scalar where no Python number fits."""
    if _nature(reader.specs[name]) is None:
        raise UnknownError
    array = reader.load(name)
    value = array.item()
    if _nature(reader.specs[name]) == "text":
        return value
    plain = as_python(value, now) if _nature(reader.specs[name]) == "number" else None
    return array[()] if plain is None else plain


def _match_tensor(found: Scalars, name: str, leaf: TensorLeaf, reader: StepReader) -> None:
    """Convert a single value for a tensor of the state, if the step has one in another form. Independent."""
    own, saved = leaf.declaration.spec, found.stored.specs.get(name)
    if saved is not None and _nature(saved) == _nature(own) is not None:
        _convert(found, name, leaf, reader.load(name))
    elif saved is None and name in found.stored.objects and _nature(own) is not None:
        _convert_json(found, name, leaf, found.stored.objects[name])


def _match_own(found: Scalars, name: str, leaf: TensorLeaf, reader: StepReader, rank: int | None) -> None:
    """Convert a single value that each rank has for itself, if the step has it in another form. Independent."""
    source = _own_source(leaf, found.stored.specs)
    if source is None:
        return
    found.stored.specs[name] = found.stored.specs.pop(source)
    if rank is None:
        found.gone.append(name)
        return
    array = reader.load_rank(source, rank)
    base = leaf.base if isinstance(leaf, PerRankJsonLeaf) else None
    if source not in {name, base}:
        value = json_value(array, name)
        if not _convert_json(found, name, leaf, value):
            found.unfit[name] = f"is {value!r} in the checkpoint, and {leaf.declaration.spec.dtype} in the state"
    elif array.shape:
        found.unfit[name] = f"has shape {array.shape} in the checkpoint and is a single value in the state"
    elif isinstance(leaf, PerRankJsonLeaf):
        value = array.item()
        plain = value if isinstance(value, str) else as_python(value, leaf.value.value)
        if plain is None:
            found.unfit[name] = _unfit(value, "a Python number")
        else:
            found.tensors[name] = json_bytes(plain)
    else:
        _convert(found, name, leaf, array)


def _own_source(leaf: TensorLeaf, specs: Mapping[str, TensorSpec]) -> str | None:
    """Return the name that a per-rank single value has in a step; ``None`` if it has the same form there. Pure."""
    own = leaf.declaration.spec
    saved = specs.get(own.name)
    source = join(own.name, JSON_SUFFIX)
    if isinstance(leaf, PerRankJsonLeaf):
        source = leaf.base
        is_other = saved is None and source in specs and _nature(specs[source], "per-rank") in {"number", "text"}
    elif saved is not None:
        source = own.name
        nature = _nature(own, "per-rank")
        is_other = saved.dtype != own.dtype and nature is not None and nature == _nature(saved, "per-rank")
    else:
        is_other = source in specs and specs[source].kind == "per-rank" and _nature(own, "per-rank") is not None
    return source if is_other else None


def _match_object(found: Scalars, name: str, leaf: ObjectLeaf, reader: StepReader) -> None:
    """Convert a single value for a Python value of the state, if the step has a tensor. Independent."""
    nature = _nature(found.stored.specs[name])
    if nature not in {"number", "text"} or (leaf.value is not None and nature != _nature_of_object(leaf.value)):
        return
    value = reader.load(name).item()
    plain = value if isinstance(value, str) else as_python(value, leaf.value)
    if plain is None:
        found.unfit[name] = _unfit(value, "a Python number")
    else:
        found.objects[name] = plain


def _nature(spec: TensorSpec, *kinds: str) -> str | None:
    """Return what a tensor of no axes is, such as number or text; ``None`` for all others. Pure."""
    if spec.shape != () or spec.kind not in (kinds or {"replicated", "root", "sharded"}):
        return None
    if spec.dtype in ITEMSIZE or spec.dtype in LONG_DOUBLES:
        return "number"
    return _NATURES[spec.dtype[1]]


_NATURES = {"U": "text", "S": "bytes", "V": "void", "M": "date", "m": "duration"}


def _nature_of_object(value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, np.generic)
    return "number" if is_number else "text" if isinstance(value, str) else None


def _convert(found: Scalars, name: str, leaf: TensorLeaf, array: Array) -> None:
    """Convert a single value of a step to the dtype of a leaf. Independent."""
    own = leaf.declaration.spec
    if _nature(own, own.kind) == "number":
        new = as_array(array.item(), own.dtype)
    elif isinstance(leaf, ScalarLeaf):  # the scalar is replaced: text of any length, dates of any unit
        new = array
    else:
        new = _as_date(array, own.dtype)
    if new is None:
        found.unfit[name] = _unfit(array.item(), own.dtype)
    else:
        found.tensors[name] = new


def _convert_json(found: Scalars, name: str, leaf: TensorLeaf, value: Any) -> bool:
    """Convert a JSON value of a step to the dtype of a leaf; return False if it is of another nature. Independent."""
    own = leaf.declaration.spec
    if value is None and isinstance(leaf, ScalarLeaf):  # the scalar is replaced, by what ``array[()]`` is
        found.tensors[name] = np.array(None, object)
        return True
    nature = _nature(own, own.kind)
    if nature is None or nature != _nature_of_object(value):
        return False
    new = as_array(value, own.dtype) if nature == "number" else _as_text(value, leaf)
    if new is None:
        found.unfit[name] = _unfit(value, own.dtype)
    else:
        found.tensors[name] = new
    return True


def _unfit(value: Any, target: str) -> str:
    return f"is {value!r} in the checkpoint, which {target} in the state cannot hold exactly"


def _as_text(value: str, leaf: TensorLeaf) -> Array | None:
    """Return text of another length for a NumPy scalar; ``None`` if it does not fit. Pure."""
    new = np.array(value)
    return new if isinstance(leaf, ScalarLeaf) and new.item() == value else None


def _as_date(array: Array, dtype: str) -> Array | None:
    """Return a date or duration in another unit; ``None`` if that cannot hold it exactly, or for other types. Pure."""
    if array.dtype.kind not in "Mm":
        return None
    try:
        new: Array = array.astype(numpy_dtype(dtype))
        back = new.astype(array.dtype)
    except (OverflowError, ValueError, TypeError):
        return None
    return new if back.tobytes() == array.tobytes() else None


def as_array(value: Any, dtype: str) -> Array | None:
    """Return a number as an array of no axes; ``None`` if the dtype cannot hold it exactly. Pure."""
    target = numpy_dtype(dtype)
    if np.iscomplexobj(value) and target.kind != "c":
        value = value.real if value.imag == 0 else None
    try:
        with np.errstate(all="ignore"):
            new: Array = np.array(value).astype(target)
    except (OverflowError, ValueError, TypeError):
        return None
    return new if _is_same(new.item(), value) else None


def as_python(value: Any, now: Any) -> Any:
    """Return a number in the type of the Python number that it replaces, or else in its own. Pure.

    ``None`` if neither holds it exactly.
    """
    plain = value.real if np.iscomplexobj(value) and value.imag == 0 else value
    if np.iscomplexobj(plain):
        return None
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
    if isinstance(a, _LONG) or isinstance(b, _LONG):
        return bool(_exact(a.real) == _exact(b.real) and _exact(a.imag) == _exact(b.imag))
    return bool(a == b) and (bool(a) or math.copysign(1.0, a.real) == math.copysign(1.0, b.real))


def _exact(number: Any) -> Any:
    """Return what compares exactly: NumPy 2 rounds an integer that it compares with a long double. Pure."""
    if abs(number) == math.inf:
        return float(number)
    return number.as_integer_ratio(), number == 0 and math.copysign(1.0, number)
