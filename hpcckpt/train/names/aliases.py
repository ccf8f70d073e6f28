"""Short names: ``tf`` in configurations, and ``ktf``, whose names are those of ktf's own packages.

Configurations (`hpcckpt.train.names.allow_list`) and programs (`hpcckpt.train.ktf`) both read this table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

ALIASES = {
    "tf": "tensorflow",
    "ktf": "hpcckpt.train",
    "ktf.train": "hpcckpt.train",
    "ktf.models.losses": "hpcckpt.train.losses",
}


def expanded(name: str) -> str:
    """Return a dotted name with the longest alias that it begins with replaced. Pure.

    >>> expanded("ktf.train.KerasTrainLoop"), expanded("ktf.models.LeNet5"), expanded("tfx.Net")
    ('hpcckpt.train.KerasTrainLoop', 'hpcckpt.train.models.LeNet5', 'tfx.Net')
    """
    for alias in sorted(ALIASES, key=len, reverse=True):
        if name == alias or name.startswith(f"{alias}."):
            return ALIASES[alias] + name[len(alias) :]
    return name


def attach_alias(alias: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that has the names of what an alias stands for. Independent."""

    def load(name: str) -> Any:
        path = f"{alias}.{name}"
        if path in ALIASES:
            return importlib.import_module(ALIASES[path])
        home = importlib.import_module(expanded(alias))
        if name not in home.__all__:
            raise AttributeError(f"module {alias!r} has no attribute {name!r}")
        return getattr(home, name)

    def names() -> list[str]:
        own = [other.rpartition(".")[2] for other in ALIASES if other.rpartition(".")[0] == alias]
        return sorted({*importlib.import_module(expanded(alias)).__all__, *own})

    return load, names
