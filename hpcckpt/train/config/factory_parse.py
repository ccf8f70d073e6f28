"""Factories found in the values of a configuration.

The arguments of a factory may contain, at any depth, further factories, and ``{"@": "dotted.path"}``: the object
itself, not called, such as a function. Any other mapping is an argument as it is. A text is a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcckpt.train.config.factories import REFERENCE, Factory
from hpcckpt.train.config.plain_values import kind_of
from hpcckpt.train.config_errors import ConfigProblem, inside, nearest, shown
from hpcckpt.train.names.export_config import exported

EXAMPLE = '{"dotted.path": {arguments}}'
_DOTTED = re.compile(r"[^\W\d_]\w*(\.\w+)+")
_ROOTS = ("tf", "tensorflow", "keras", "hpcckpt", "ktf")
_SERIALIZED = "class_name"


def parse(value: Any, where: str, problems: list[ConfigProblem]) -> Factory | None:
    """Return the factory that a value must be; what is wrong is added to `problems`."""
    if not isinstance(value, dict):
        remedy = f"write a factory, {EXAMPLE}"
        if isinstance(value, str) and _DOTTED.fullmatch(value):
            remedy = f'write {{"{value}": {{}}}}'
        problems.append(ConfigProblem(where, f"is {kind_of(value)}, no factory", remedy))
        return None
    if not value:
        problems.append(ConfigProblem(where, "is empty", f"write a factory, {EXAMPLE}"))
        return None
    if len(value) > 1:
        _several(value, where, problems)
        return None
    ((name, arguments),) = value.items()
    if name == REFERENCE:
        return _reference(arguments, where, problems)
    return _factory(name, arguments, where, problems)


def parse_value(value: Any, where: str, problems: list[ConfigProblem]) -> Any:
    """Return an argument with its factories parsed; what is wrong is added to `problems`."""
    if isinstance(value, list):
        return [parse_value(item, inside(where, i), problems) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if is_factory(value):
        return parse(value, where, problems)
    if _SERIALIZED in value:
        text = f"Keras would build what a mapping with {_SERIALIZED!r} says, whatever it is"
        problems.append(ConfigProblem(where, text, f"write a factory instead, {EXAMPLE}"))
        return None
    problems += _misspelt(value, where)
    return {name: parse_value(item, inside(where, name), problems) for name, item in value.items()}


def is_factory(value: Mapping[str, Any]) -> bool:
    """Return True if a mapping among arguments is meant as a factory: it names something that may be called."""
    if REFERENCE in value:
        return True
    for name, arguments in value.items():
        is_called = isinstance(arguments, dict)
        if _DOTTED.fullmatch(name) and (is_called or name.partition(".")[0] in _ROOTS):
            return True
        if is_called and len(value) == 1 and name in exported():
            return True
    return False


def _misspelt(value: Mapping[str, Any], where: str) -> list[ConfigProblem]:
    """Find the one key that is nearly the name of something exported."""
    if len(value) != 1:
        return []
    ((name, arguments),) = value.items()
    found = nearest(name, exported()) if isinstance(arguments, dict) and name[:1].isupper() else None
    if found is None:
        return []
    return [ConfigProblem(inside(where, name), "nothing of this name is exported", f"did you mean {found!r}?")]


def _several(value: Mapping[str, Any], where: str, problems: list[ConfigProblem]) -> None:
    names = " and ".join(repr(shown(name)) for name in list(value)[:3])
    remedy = "keep one"
    called = [name for name in value if _DOTTED.fullmatch(name)]
    if len(called) == 1:
        remedy = f"put its arguments inside: {{{called[0]!r}: {{…}}}}".replace("'", '"')
    elif called:
        remedy = "keep one; several of them make a list, [{…}, {…}], where one is taken"
    problems.append(ConfigProblem(where, f"a factory has exactly one key, here are {len(value)}: {names}", remedy))


def _reference(name: Any, where: str, problems: list[ConfigProblem]) -> Factory | None:
    if isinstance(name, str) and name:
        return Factory(name, {}, where, is_called=False)
    problems.append(
        ConfigProblem(inside(where, REFERENCE), f"is {kind_of(name)}, no name", 'write {"@": "dotted.path"}')
    )
    return None


def _factory(name: str, arguments: Any, where: str, problems: list[ConfigProblem]) -> Factory | None:
    place = inside(where, name)
    if not isinstance(arguments, dict):
        remedy = f'write {{"{shown(name)}": {{"argument": value}}}}, or {{}} for none'
        problems.append(ConfigProblem(place, f"its arguments are {kind_of(arguments)}, no mapping", remedy))
        return None
    if _SERIALIZED in arguments and "config" in arguments:
        text = f"{_SERIALIZED!r} and 'config' are no arguments but Keras' serialized form"
        problems.append(ConfigProblem(place, text, f"write a factory instead, {EXAMPLE}"))
        return None
    kwargs = {key: parse_value(item, inside(place, key), problems) for key, item in arguments.items()}
    return Factory(name, kwargs, where)
