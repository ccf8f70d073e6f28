"""The value of ``config``: for a plugin a text in its format, for a backend in Python options."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from hpcckpt.errors import OptionError

Config = str | Mapping[str, Any]


def check(backend: Any, config: Any, include_optimizer: Any) -> None:
    """Raise if an argument has a wrong type.

    Raises
    ------
    TypeError
        In TMCI's words.
    """
    if not isinstance(backend, str):
        raise TypeError("backend should be a string")
    if not isinstance(config, str | Mapping):
        raise TypeError("config should be a string or a dictionary")
    if not isinstance(include_optimizer, bool):
        raise TypeError("include_optimizer should be a boolean")


def as_text(config: Config) -> str:
    """Return what a plugin is given: a text as it is, anything else as JSON."""
    return config if isinstance(config, str) else json.dumps(dict(config))


def as_options(config: Config) -> dict[str, Any]:
    """Return options, given as a dict, as JSON or Hjson (if that is installed), or as ``key=value,key=value``.

    Raises
    ------
    OptionError
        If it is none of them.
    """
    if not isinstance(config, str):
        return dict(config)
    if not config.strip().startswith("{"):
        return _pairs(config)
    problem: Exception | None = None
    for parse in _parsers():
        try:
            return dict(parse(config))
        except (ValueError, TypeError) as error:
            problem = problem or error
    raise OptionError(f"config: {config!r} – is not JSON: {problem}")


def _parsers() -> list[Callable[[str], Any]]:
    try:
        return [json.loads, importlib.import_module("hjson").loads]
    except ModuleNotFoundError:
        return [json.loads]


def _pairs(text: str) -> dict[str, Any]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    wrong = [key.strip() for key, separator, _ in pairs if not separator]
    if wrong:
        raise OptionError(f"config: {wrong[0]!r} – neither JSON nor key=value,key=value")
    return {key.strip(): _value(value.strip()) for key, _, value in pairs}


def _value(text: str) -> Any:
    """Return a number, true, false or null as such, and all else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
