"""What differs between two checkpoints, tensor by tensor and piece by piece. Needs no MPI."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import Extent
from hpcckpt.restoring.checkpoint_info import is_rank_json
from hpcckpt.restoring.reader import Array, StepReader, select
from hpcckpt.restoring.segments import StoredArray, pieces, read_array, stored_arrays
from hpcckpt.state.arrays import json_value
from hpcckpt.state.tree import as_bytes
from hpcckpt.tools.inspect import is_inexact, is_number, widened


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor that differs.

    Attributes
    ----------
    what : str
        ``values``, ``shape`` or ``dtype``.
    n_changed, n_elements : int
        Elements that differ, and elements in all.
    max_abs : float or None
        The largest difference; NaN if a NaN is on one side only; None if differences are not defined.
    before, after : str
        The values of scalars, or the shapes or dtypes.
    """

    name: str
    what: str
    n_changed: int = 0
    n_elements: int = 0
    max_abs: float | None = None
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One JSON value that differs; ``None`` where it is absent."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences between two checkpoints, and how many tensors are the same."""

    n_same: int
    changed: tuple[TensorChange, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    objects: tuple[ObjectChange, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not (self.changed or self.added or self.removed or self.objects)


def compare(
    before: StepReader,
    after: StepReader,
    patterns: tuple[str, ...] = (),
    rtol: float = 0.0,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the tensors of two checkpoints, whatever ranks and backends they were saved with. Independent.

    Parameters
    ----------
    before, after : StepReader
        The two.
    patterns : tuple of str
        Compare only tensors with such names.
    rtol : float
        Differences up to this part of the larger value do not count. With 0 every bit counts.
    progress : callable, optional
        Called with the bytes of each array of `before` that was compared.
    """
    names = select(sorted({*before.specs, *after.specs}), patterns or None)
    old = {source.name: source for source in stored_arrays(before, [name for name in names if name in before.specs])}
    new = {source.name: source for source in stored_arrays(after, [name for name in names if name in after.specs])}
    shared = [name for name in old if name in new]
    changes = []
    for name in shared:
        change = _compare_one(before, after, old[name], new[name], rtol)
        changes += [change] if change else []
        if progress:
            progress(old[name].nbytes)
    added, removed = sorted(set(new) - set(old)), sorted(set(old) - set(new))
    return Comparison(len(shared) - len(changes), tuple(changes), tuple(added), tuple(removed))


_BOOKKEEPING = tuple(f"user/tensorflow.CheckpointManager/{key}" for key in ("timestamps", "last_preserved_timestamp"))


def compare_objects(before: Any, after: Any, rtol: float = 0.0) -> tuple[ObjectChange, ...]:
    """Return the JSON values that differ, named by their paths, sorted; floats by more than `rtol`. Pure.

    When `hpcckpt.tensorflow.CheckpointManager` has saved which checkpoint is no difference of the state.
    """
    old, new = dict(_leaves(before)), dict(_leaves(after))
    names = sorted(name for name in {*old, *new} if not name.startswith(_BOOKKEEPING))
    changed = [n for n in names if (n in old) != (n in new) or not _is_same(old.get(n), new.get(n), rtol)]
    return tuple(ObjectChange(name, old.get(name), new.get(name)) for name in changed)


def _is_same(one: Any, other: Any, rtol: float) -> bool:
    """Return True if two JSON values are the same: NaN is NaN, and 1 is not 1.0. Pure."""
    if repr(one) == repr(other):
        return True
    if rtol == 0.0:
        return False
    if isinstance(one, float) and isinstance(other, float):
        return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= rtol * max(abs(one), abs(other))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_is_same(left, right, rtol) for left, right in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(_is_same(one[key], other[key], rtol) for key in one)
    return False


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}" if name else str(key))
    elif name or not isinstance(value, Mapping):
        yield name, value


def _compare_json(old: StoredArray, one: Any, other: Any, rtol: float) -> TensorChange | None:
    """Return what differs in the JSON value of one rank, as the first value that does. Pure."""
    changes = compare_objects(one, other, rtol)
    if not changes:
        return None
    first, n_values = changes[0], len({*dict(_leaves(one)), *dict(_leaves(other))})
    path = f"{first.name} " if first.name else ""
    texts = path + json.dumps(first.before), json.dumps(first.after)
    return TensorChange(old.name, "values", len(changes), n_values, None, *texts)


def _compare_one(
    before: StepReader, after: StepReader, old: StoredArray, new: StoredArray, rtol: float
) -> TensorChange | None:
    if is_rank_json(old.spec) and is_rank_json(new.spec):
        pairs = ((before, old), (after, new))
        left, right = (json_value(read_array(reader, each), each.name) for reader, each in pairs)
        return _compare_json(old, left, right, rtol)
    if old.shape != new.shape:
        return TensorChange(old.name, "shape", before=str(list(old.shape)), after=str(list(new.shape)))
    if old.spec.dtype != new.spec.dtype:
        return TensorChange(old.name, "dtype", before=old.spec.dtype, after=new.spec.dtype)
    n_changed, n_elements, largest, texts = 0, Extent.whole(old.shape).n_elements, _Largest(), ("", "")
    tolerance = rtol if is_inexact(old.spec.dtype) else 0.0
    for one, other in zip(pieces(before, old), pieces(after, new), strict=True):
        differing = differing_elements(one, other, tolerance)
        n_changed += int(differing.sum())
        if is_number(old.spec.dtype):
            largest.add(one.reshape(-1)[differing], other.reshape(-1)[differing])
        if n_elements == 1:
            texts = (str(one.item()), str(other.item()))
    if n_changed == 0:
        return None
    return TensorChange(old.name, "values", n_changed, n_elements, largest.value, *texts)


class _Largest:
    """The largest difference seen so far; NaN wins."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, one: Array, other: Array) -> None:
        if one.size:
            wide = [v if v.dtype.kind == "c" else widened(v) for v in (one, other)]
            with np.errstate(invalid="ignore", over="ignore"):
                difference = float(np.max(np.abs(wide[0] - wide[1])))
            self.value = difference if self.value is None else float(np.maximum(self.value, difference))


def differing_elements(one: Array, other: Array, rtol: float) -> Array:
    """Return which elements differ, flat: in any bit, or by more than `rtol` of the larger one. Pure."""
    width = one.dtype.itemsize
    if one.size == 0 or width == 0:
        return np.zeros(one.size, bool)
    if width in (1, 2, 4, 8):  # as whole numbers, many times faster than byte by byte
        bits: Array = as_bytes(one).view(f"u{width}") != as_bytes(other).view(f"u{width}")
    else:
        bits = (as_bytes(one).reshape(-1, width) != as_bytes(other).reshape(-1, width)).any(axis=1)
    if rtol == 0.0 or not bits.any():
        return bits
    far: Array = bits & ~_is_close(one.reshape(-1), other.reshape(-1), rtol)
    return far


def _is_close(one: Array, other: Array, rtol: float) -> Array:
    a, b = (v if v.dtype.kind == "c" else widened(v) for v in (one, other))
    with np.errstate(invalid="ignore", over="ignore"):
        close: Array = np.abs(a - b) <= rtol * np.maximum(np.abs(a), np.abs(b))
    finite = np.isfinite(a) & np.isfinite(b)
    alike: Array = (close & finite) | (a == b) | (np.isnan(a) & np.isnan(b))
    return alike
