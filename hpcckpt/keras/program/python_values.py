"""Values of Python that a program's own models, losses and functions use, so that a change of them is seen.

A checkpoint has variables, not attributes such as ``self.n_steps`` or a NumPy generator in a layer.  They need not be
saved as long as they are what the program itself sets them to before it trains.  So they are read once before the first
batch, and again at each save: a difference means that a resumed run would begin with other values.

These are read: of the program's classes the attributes that their code names; of its functions the globals, closure
variables and defaults; and everything in these.  Objects of Keras, TensorFlow and NumPy are not read, because their
states are variables; NumPy arrays and generators are.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import io
import pathlib
import random
import re
import sys
import types
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcckpt.core.units import nbytes_text
from hpcckpt.keras.model.layers import is_layer
from hpcckpt.state.tree import as_bytes

MAX_ARRAY_BYTES = 256 << 20
"""Larger arrays are not compared; so it is not known whether they change."""
_LIBRARIES = frozenset({
    "absl", "google", "h5py", "horovod", "hpcckpt", "keras", "ml_dtypes", "mpi4py", "numpy", "optree",
    "pybind11_builtins", "pytest", "scipy", "tensorflow", "tensorflow_datasets", "tf_keras", "wrapt",
}) | (sys.stdlib_module_names - {"__main__"})  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, np.generic, np.dtype)
_FIXED = (
    enum.Enum, pathlib.PurePath, re.Pattern, dt.date, dt.timedelta, dt.time, dt.tzinfo,
    decimal.Decimal, fractions.Fraction, uuid.UUID, types.BuiltinFunctionType, types.MethodWrapperType, property,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
)  # fmt: skip
_NOT_COMPARED = (types.GeneratorType, io.IOBase, memoryview)


@dataclass(slots=True)
class Values:
    """What one reading has found.

    Attributes
    ----------
    digests : dict of str to object
        Values, or digests of them, by path.
    unknown : dict of str to str
        What cannot be compared: why, by path.
    """

    digests: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _kept: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, roots: Mapping[str, Any], saved: Sequence[Any] = ()) -> Values:
        """Read what these objects use, but for objects that are saved anyway. Independent."""
        found = cls(_seen=set(map(id, saved)))
        for path, root in roots.items():
            found._visit_root(root, path)
        found._kept.clear()
        return found

    def changed(self, now: Values) -> list[str]:
        """Return the paths of what differs between two readings, outermost first. Pure."""
        missing = object()
        paths = self.digests.keys() | now.digests.keys()
        return sorted(path for path in paths if self.digests.get(path, missing) != now.digests.get(path, missing))

    def replace(self, now: Values, roots: Sequence[str]) -> None:
        """Take what another reading has found below some of the roots in place of this one's. Independent."""
        below = tuple(f"{root}{mark}" for root in roots for mark in ".[")
        for mine, theirs in ((self.digests, now.digests), (self.unknown, now.unknown)):
            for path in [path for path in mine if path.startswith(below)]:
                del mine[path]
            mine.update({path: value for path, value in theirs.items() if path.startswith(below)})

    # -- one value -----------------------------------------------------------------------------

    def _visit_root(self, root: Any, path: str) -> None:
        try:
            for place, item in _of_program(root, path):
                self._visit(item, place)
        except Exception as error:  # noqa: BLE001 - classes of the program may do what they like when they are read
            self.unknown[path] = type(error).__name__

    def _visit(self, value: Any, path: str) -> None:
        if isinstance(value, _PLAIN):
            self.digests[path] = (type(value).__name__, repr(value) if len(repr(value)) < 200 else _digest(repr(value)))
            return
        if id(value) in self._seen or isinstance(value, _FIXED):
            return
        self._seen.add(id(value))
        self._kept.append(value)  # so that no other one gets its id
        if isinstance(value, np.ndarray):
            self._visit_array(value, path)
        elif (stream := _stream(value)) is not None:
            self.digests[path] = stream
        elif _is_container(value):
            self._visit_container(value, path)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial | staticmethod | classmethod):
            self._visit_function(value, path)
        elif isinstance(value, type):
            self._visit_class(value, path)
        elif isinstance(value, _NOT_COMPARED) or (isinstance(value, Iterator) and not _is_of_library(value)):
            self.unknown[path] = type(value).__name__
        elif not isinstance(value, types.ModuleType):
            self._visit_object(value, path)

    def _visit_array(self, value: Any, path: str) -> None:
        if value.dtype.hasobject:
            self._visit_container(value.reshape(-1).tolist(), path)
        elif value.nbytes > MAX_ARRAY_BYTES:
            self.unknown[path] = f"array of {nbytes_text(value.nbytes)}"
        else:
            self.digests[path] = (value.shape, str(value.dtype), zlib.crc32(as_bytes(np.ascontiguousarray(value)).data))

    def _visit_container(self, value: Any, path: str) -> None:
        self.digests[path] = (type(value).__name__, len(value))
        if isinstance(value, AbstractSet):
            self.digests[path] = (type(value).__name__, _digest("".join(sorted(map(repr, value)))))
            return
        if isinstance(value, list | tuple) and all(isinstance(item, _PLAIN) for item in value):
            self.digests[path] = (type(value).__name__, len(value), _digest("".join(map(repr, value))))
            return
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in list(items):
            self._visit(item, f"{path}[{key!r:.40}]")

    def _visit_function(self, value: Any, path: str) -> None:
        if isinstance(value, functools.partial):
            for name, part in (("func", value.func), ("args", value.args), ("keywords", value.keywords)):
                self._visit(part, f"{path}.{name}")
            return
        if isinstance(value, types.MethodType):
            self._visit(value.__self__, path)
        function = getattr(value, "__func__", value)
        if not isinstance(function, types.FunctionType) or _is_of_library(function):
            return
        for name, item in _taken(function):
            self._visit(item, name if name in function.__globals__ else f"{path}.{name}")
        for name, item in vars(function).items():
            if not name.startswith(("__", "ag_", "_hpcckpt")):
                self._visit(item, f"{path}.{name}")

    def _visit_class(self, value: type, path: str) -> None:
        if not is_own(value):
            return
        for cls in filter(_is_own_class, value.__mro__):
            for name, item in list(vars(cls).items()):
                if not name.startswith("__") or isinstance(item, types.FunctionType):
                    self._visit(item, f"{path}.{name}")

    def _visit_object(self, value: Any, path: str) -> None:
        if (inner := getattr(value, "python_function", None)) is not None:  # of tf.function
            self._visit(inner, path)
        if not is_own(type(value)):
            if not _is_of_library(value) and not hasattr(value, "__dict__"):
                self.unknown[path] = type(value).__name__
            return
        self._visit_class(type(value), type(value).__name__)
        attributes = {**_slots(value), **getattr(value, "__dict__", {})}
        if any(map(_is_framework, type(value).__mro__)):  # the rest is the framework's own bookkeeping
            named = _names_in(type(value))
            attributes = {name: item for name, item in attributes.items() if name in named}
        elif not attributes and not hasattr(value, "__dict__"):
            self.unknown[path] = type(value).__name__
        for name, item in list(attributes.items()):
            self._visit(item, f"{path}.{name}")


# -- what is the program's ---------------------------------------------------------------------------


def holds_program(root: Any) -> bool:
    """Return True if a model, layer, loss or callback is the program's, or holds functions or objects of it."""
    return next(_of_program(root, ""), None) is not None


def _of_program(root: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a model, layer, loss or callback; of one of a library what the program has put into it."""
    if is_own(type(root)) or isinstance(root, types.FunctionType):
        yield path, root
        return
    for name, value in sorted(vars(root).items()) if hasattr(root, "__dict__") else ():
        for place, item in _flat(value, f"{path}.{name}"):
            if _is_of_program(item) and not is_layer(item):  # layers are roots themselves
                yield place, item


def is_own(cls: type) -> bool:
    """Return True if a class or one of its bases is the program's, or of a package that is not known here."""
    return any(map(_is_own_class, cls.__mro__))


def _is_own_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in _LIBRARIES and cls is not object


def _is_framework(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in {"hpcckpt", "keras", "tensorflow", "tf_keras"}


def _is_of_library(value: Any) -> bool:
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0] in _LIBRARIES


def _is_of_program(value: Any) -> bool:
    if isinstance(value, types.MethodType):
        return is_own(type(value.__self__))
    if isinstance(value, types.FunctionType | functools.partial):
        return not _is_of_library(getattr(value, "func", value))
    return not isinstance(value, _PLAIN) and not isinstance(value, type) and is_own(type(value))


def _flat(value: Any, path: str, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield a value, or what a list or mapping of a library's object holds."""
    if depth and isinstance(value, Mapping):
        for number, (key, item) in enumerate(value.items()):  # to print a variable takes long
            yield from _flat(item, f"{path}[{key if isinstance(key, str) else number}]", depth - 1)
    elif depth and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _flat(item, f"{path}[{number}]", depth - 1)
    else:
        yield path, value


def _taken(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the closure variables, defaults and globals that a function uses, and parts of the program's modules."""
    yield from closure_of(function)
    yield "defaults", [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    names = _names_of(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif value.__name__.partition(".")[0] not in _LIBRARIES:
            yield from ((f"{name}.{part}", vars(value)[part]) for part in sorted(names & vars(value).keys()))


def closure_of(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables of the enclosing functions that a function of Python uses, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


@functools.cache
def _names_of(code: types.CodeType) -> frozenset[str]:
    inner = [_names_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _names_in(cls: type) -> frozenset[str]:
    """Return all names that the program's own code of a class has in it."""
    functions = [vars(base).values() for base in filter(_is_own_class, cls.__mro__)]
    codes = [_code(value) for some in functions for value in some]
    return frozenset().union(*(_names_of(code) for code in codes if code is not None))


def _code(value: Any) -> types.CodeType | None:
    for name in ("python_function", "__func__", "fget", "func"):
        value = getattr(value, name, value)
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return getattr(value, "__code__", None)


def _slots(value: Any) -> dict[str, Any]:
    names = [name for cls in type(value).__mro__ for name in _as_tuple(vars(cls).get("__slots__", ()))]
    return {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}


def _as_tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _is_container(value: Any) -> bool:
    """Return True for lists, mappings and the like, also as Keras and TensorFlow wrap them; not for open files."""
    if isinstance(value, collections.deque):
        return True
    root = type(value).__module__.partition(".")[0]
    is_known = root in {"builtins", "collections", "keras", "tensorflow", "types", "wrapt"} or root not in _LIBRARIES
    return is_known and isinstance(value, Mapping | list | tuple | AbstractSet)


def _stream(value: Any) -> str | None:
    """Return a digest of the state of a generator of random numbers; ``None`` of anything else."""
    if isinstance(value, random.Random):
        return _digest(repr(value.getstate()))
    if isinstance(value, np.random.RandomState):
        return _digest(repr([value.get_state(legacy=False), _words(value.get_state(legacy=False))]))
    bits = getattr(value, "bit_generator", value)
    return _digest(repr([bits.state, _words(bits.state)])) if isinstance(bits, np.random.BitGenerator) else None


def _words(state: Any) -> list[Any]:
    """Return the words of a state, which ``repr`` abridges."""
    inner = state.get("state")
    return [item.tolist() for item in inner.values() if isinstance(item, np.ndarray)] if isinstance(inner, dict) else []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
