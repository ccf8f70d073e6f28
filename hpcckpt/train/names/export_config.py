"""Classes and functions of a program's own, made visible to configurations by their bare names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from hpcckpt.errors import CodeError

T = TypeVar("T", bound=Callable[..., Any])

_EXPORTED: dict[str, Any] = {}
_TAKEN = ("tf", "tensorflow", "keras", "hpcckpt", "ktf")


class ExportError(CodeError, ValueError):
    """Something cannot be exported to configurations: its name is taken, or is none."""

    kind = "export"


@overload
def export_config(thing: T, /) -> T: ...
@overload
def export_config(thing: None = None, /, *, name: str | None = None) -> Callable[[T], T]: ...
def export_config(thing: T | None = None, /, *, name: str | None = None) -> T | Callable[[T], T]:
    """Make a class or a function available to configurations by its bare name.

    This is a decorator.

    Parameters
    ----------
    thing : class or function
        The decorated class or function.
    name : str, optional
        Its name in configurations; by default its own.

    Raises
    ------
    ExportError
        If the name is already used, or is not a plain name.

    Examples
    --------
    >>> @export_config
    ... def my_datasets(batch_size): ...

    A configuration may now have ``"datasets": {"my_datasets": {"batch_size": 64}}``.
    """
    if thing is None:
        return lambda later: _export(later, name)
    return _export(thing, name)


def exported() -> Mapping[str, Any]:
    """Return what is exported, by name."""
    return MappingProxyType(_EXPORTED)


def _export(thing: T, name: str | None) -> T:
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        raise ExportError(f"export_config takes a class or a function, not a {type(thing).__qualname__}")
    called = thing.__name__ if name is None else name
    if not called.isidentifier() or called.startswith("_") or called in _TAKEN:
        raise ExportError(f"export_config: {called!r} cannot be a name in configurations; give name='…', a plain name")
    other = _EXPORTED.get(called, thing)
    if other is not thing and not _is_redefinition(other, thing):
        owner = f"{other.__module__}.{other.__qualname__}"
        raise ExportError(
            f"export_config: {called!r} is exported already, by {owner}; give one of both another name: "
            f"@export_config(name='…')"
        )
    _EXPORTED[called] = thing
    return thing


def _is_redefinition(old: Any, new: Any) -> bool:
    """Return True if the same definition ran again: a reloaded module, or a cell of a notebook."""
    if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__):
        return False
    if new.__module__ == "__main__" and (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
        return True
    return _source_line(old) == _source_line(new) is not None


def _source_line(thing: Any) -> tuple[str, int] | None:
    """Return file and line of a definition; ``None`` if unknown."""
    codes = [thing] if not inspect.isclass(thing) else list(vars(thing).values())
    for each in codes:
        code = getattr(inspect.unwrap(each) if callable(each) else each, "__code__", None)
        if code is not None:
            return code.co_filename, code.co_firstlineno
    return None
