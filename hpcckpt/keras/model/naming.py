"""Names that are the same in every process, although Keras counts the names it makes up."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

remembered = functools.lru_cache(maxsize=1 << 14)
"""For pure functions: the leaves of a state are named again at each save, from the same texts."""


class Namer:
    """Hands out each name once: the second ``dense`` becomes ``dense_1``."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Return `name`, or `name` with the lowest number that makes it new."""
        free, count = name, self._counts.get(name, 0)
        while free in self._used:
            count += 1
            free = f"{name}_{count}"
        self._used.add(free)
        self._counts[name] = count
        return free


def snake_case(class_name: str) -> str:
    """Return the name that Keras derives from a class: ``BatchNormalization`` gives ``batch_normalization``."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower().lstrip("_")


@remembered
def stem(name: str, class_name: str) -> str:
    """Return a name without the count that Keras gave it; a name that the user chose comes back as it is.

    Keras 2.15 calls functional models ``model`` and puts ``private`` before the names of private
    classes; `Bidirectional` puts a direction before the name of the layer it wraps.
    """
    base = snake_case(class_name)
    aliases = "|".join({re.escape(base), "model"} if base == "functional" else {re.escape(base)})
    match = re.fullmatch(rf"(forward_|backward_)?(?:private)?_*(?:{aliases})(?:_[0-9]+)?", name)
    return name if match is None else (match[1] or "") + base


@remembered
def variable_name(keras_name: str) -> str:
    """Return the last part of a variable's name (``kernel`` of ``dense_1/kernel:0``), less a count Keras made up."""
    last = keras_name.rpartition("/")[2].partition(":")[0]
    return "variable" if re.fullmatch(r"[Vv]ariable(_[0-9]+)?", last) else last


def slot_path(keras_name: str, weights: Mapping[str, str]) -> str:
    """Return the path of an optimizer's variable in a checkpoint, from what Keras calls it. Pure.

    ``Adam/m/dense/kernel:0`` of Keras 2.15 and ``adam/dense_kernel_m`` of Keras 3 are both ``m/dense/kernel``;
    ``adam/iteration`` is ``iteration``.

    Parameters
    ----------
    keras_name : str
        The variable's name.
    weights : mapping of str to str
        Paths of the model's weights, by these paths with ``_`` for ``/``.
    """
    name = keras_name.partition(":")[0]
    parts = name.split("/")
    for start in range(1, len(parts)):
        if weights.get("_".join(parts[start:])) == "/".join(parts[start:]):
            return "/".join(parts[start - 1 :])
    last = parts[-1]
    for end in range(len(last) - 1, 0, -1):
        if last[end] == "_" and last[:end] in weights:
            return f"{last[end + 1 :]}/{weights[last[:end]]}"
    return last
