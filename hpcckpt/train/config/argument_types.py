"""Checks arguments against the type hints of hpcckpt's functions and classes."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from hpcckpt.train.config.plain_values import kind_of
from hpcckpt.train.config_errors import ConfigProblem, inside, shown


def type_problems(target: Any, kwargs: Mapping[str, Any], place: str) -> Iterator[ConfigProblem]:
    """Yield a problem for each argument that does not match hpcckpt's type hint."""
    if not str(getattr(target, "__module__", "")).startswith("hpcckpt.train."):
        return
    hints = _hints(target)
    for argument, value in kwargs.items():
        if argument in hints and _is_plain(value) and not _fits(hints[argument], value):
            text = f"{shown(repr(value))} is not accepted" if not isinstance(value, list | dict) else kind_of(value)
            yield ConfigProblem(inside(place, argument), text, f"give {type_text(hints[argument])}")


def _hints(target: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):
        return {}  # names that are imported for type checkers only


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, str | int | float)


def _fits(hint: Any, value: Any) -> bool:
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter = TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
        adapter.validate_json(json.dumps(value))
    except ValidationError:
        return False
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
        return True  # no type that a configuration could be checked against
    return True


_WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "None": "null"}


def type_text(hint: Any) -> str:
    """Return a description of what a type accepts."""
    if hint is type(None):
        return "null"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f'"{each}"' if isinstance(each, str) else str(each) for each in arguments)
    if origin is typing.Union or type(hint).__name__ == "UnionType":
        return " or ".join(dict.fromkeys(type_text(each) for each in arguments))
    if inspect.isclass(origin or hint):
        name = (origin or hint).__name__
        if name in {"Mapping", "dict"}:
            return "a mapping"
        if name in {"Sequence", "list", "tuple", "Iterable"}:
            return "a list"
        return _WORDS.get(name, f"a {name}")
    return str(hint)
