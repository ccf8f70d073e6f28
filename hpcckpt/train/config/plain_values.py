"""Values of a configuration made plain: only what JSON has, whether read from a file or given by a program."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from hpcckpt.train.config_errors import ConfigProblem, inside, shown

MOST_LEVELS = 40


def plain(value: Any, where: str, problems: list[ConfigProblem], level: int = 0) -> Any:
    """Return a copy made of what JSON has; what cannot be made so is a problem.

    Parameters
    ----------
    value : object
        Of a configuration: mappings, sequences, texts, numbers, NumPy's too, paths.
    where : str
        Its place.
    problems : list of ConfigProblem
        What is wrong is added here.
    level : int
        How deep it lies.
    """
    if level > MOST_LEVELS:
        text = f"lies more than {MOST_LEVELS} levels deep, or contains itself"
        problems.append(ConfigProblem(_cut(where), text, "take it apart, or build it in a function of your own"))
        return None
    if isinstance(value, Mapping):
        return _mapping(value, where, problems, level)
    if isinstance(value, list | tuple):
        return [plain(item, inside(where, i), problems, level + 1) for i, item in enumerate(value)]
    return _scalar(value, where, problems)


def _mapping(value: Mapping[Any, Any], where: str, problems: list[ConfigProblem], level: int) -> dict[str, Any]:
    found = {}
    for key, item in value.items():
        if isinstance(key, str):
            found[str(key)] = plain(item, inside(where, key), problems, level + 1)
        else:
            problems.append(ConfigProblem(where, f"the key {shown(key)} is no text", f'write "{key}"'))
    return found


def _scalar(value: Any, where: str, problems: list[ConfigProblem]) -> Any:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return _number(kind(value), where, problems)
    problems.append(
        ConfigProblem(
            where,
            f"a {type(value).__qualname__} cannot be in a configuration",
            'write a factory, {"dotted.path": {arguments}}; what is your own becomes one by @export_config',
        )
    )
    return None


def _number(value: float | str, where: str, problems: list[ConfigProblem]) -> float | str:
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(
            ConfigProblem(where, f"{value} is no number that a configuration can hold", "write a finite one")
        )
    return value


def _cut(where: str) -> str:
    return where if len(where) <= 200 else f"{where[:200]}…"


def kind_of(value: Any) -> str:
    """Return a description of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", tuple: "a list"}
    return names.get(type(value), "a mapping" if isinstance(value, Mapping) else f"a {type(value).__qualname__}")
