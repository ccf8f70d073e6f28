"""What a foreign file holds, before it becomes a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.tensors import Kind, name_problem
from hpcckpt.errors import ConfigError, CorruptError, ForeignFormatError, Problem, list_problems
from hpcckpt.format.note import Note
from hpcckpt.restoring.reader import Array
from hpcckpt.state.tree import is_json
from hpcckpt.tools.convert.result import LeftOut, choose

_MOST_PACKED = 1100
"""More than what deflate makes of zeros, 1032 to 1: no honest file says that it holds more than so much."""
_ALWAYS_FINE = 1 << 26


def refuse_claim(where: str, nbytes: int, stored: int) -> None:
    """Raise if something that takes `stored` bytes in a file says that it is `nbytes` large, before they are allocated.

    Raises
    ------
    CorruptError
        If that cannot be.
    """
    if nbytes > max(_MOST_PACKED * stored, _ALWAYS_FINE):
        raise CorruptError(f"{where} says that it has {nbytes} bytes, and {stored} are there")


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What a foreign file holds.

    Attributes
    ----------
    tensors : dict of str to array
        By the names they will have; arrays may lie in the file.
    kinds : dict of str to str
        Those that are not replicated.
    state_objects, objects : dict
        JSON values of the state, and beside it.
    step : int or None
        What the file says.
    left_out : tuple of LeftOut
        What of it cannot be in a checkpoint.
    remarks : tuple of str
        What else the user should know.
    """

    tensors: Mapping[str, Array]
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    state_objects: Mapping[str, Any] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()


def with_note(contents: Contents, note: Note | None) -> Contents:
    """Return contents as they were in the checkpoint that the note is of. Pure.

    A checkpoint that is imported is of one rank: of what each rank had for itself it has rank 0's.
    """
    if note is None:
        return contents
    ranked = [name for name, kind in note.kinds.items() if kind == "per-rank"]
    of_ranks = {f"{name}#{rank}": name for name in ranked for rank in range(min(note.ranks, 1 << 16))}
    tensors: dict[str, Array] = {}
    for name, array in contents.tensors.items():
        if name not in of_ranks:
            tensors[name] = _narrowed(array, note.dtypes.get(name))
        elif name.endswith("#0"):
            tensors[of_ranks[name]] = _narrowed(array, note.dtypes.get(name))
    dropped = tuple(name for name in contents.tensors if name in of_ranks and not name.endswith("#0"))
    why = f"of ranks 1 to {note.ranks - 1}: a checkpoint that is imported is of one rank"
    objects = note.objects or {}
    remarks = () if note.objects is not None else ("the file had no room for the objects of the checkpoint",)
    return replace(
        contents,
        tensors=tensors,
        kinds={**{name: cast(Kind, kind) for name, kind in note.kinds.items() if name in tensors}, **contents.kinds},
        state_objects={**_plain(objects.get("state")), **contents.state_objects},
        objects={**_plain(objects.get("user")), **contents.objects},
        metrics=dict(note.metrics),
        step=note.step,
        left_out=(*contents.left_out, *([LeftOut(dropped, why)] if dropped else [])),
        remarks=(*contents.remarks, *remarks),
    )


def _narrowed(array: Array, token: str | None) -> Array:
    """Return values in the dtype that they had before they were widened."""
    try:
        return array if token is None else array.astype(numpy_dtype(str(token)))
    except (ValueError, ConfigError) as error:
        raise ForeignFormatError(f"its note names a dtype that there is not: {error}") from None


def _plain(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    return {name: value for name, value in values.items() if is_json(value) and name_problem(name) is None}


def chosen(contents: Contents, patterns: Iterable[str] | None, *, with_optimizer: bool) -> Contents:
    """Return what is wanted of contents. Pure.

    Raises
    ------
    OptionError
        If a pattern matches nothing.
    ForeignFormatError
        If nothing is there, or names cannot be those of tensors; names all of these.
    """
    if not contents.tensors:
        raise ForeignFormatError("there is no tensor in it")
    problems = [Problem(repr(name), what) for name in contents.tensors if (what := name_problem(name))]
    if problems:
        raise ForeignFormatError(f"these cannot be names of tensors: {list_problems(problems, 5)}; choose with --only")
    names, left_out = choose(contents.tensors, patterns, with_optimizer=with_optimizer)
    return replace(
        contents,
        tensors={name: contents.tensors[name] for name in names},
        state_objects={} if patterns is not None else contents.state_objects,
        left_out=(*contents.left_out, *left_out),
    )
