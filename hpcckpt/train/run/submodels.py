"""Submodels by path, nested with ``@``: ``base_model@layer1@resample``.

A part of a path is a name that the model's author gave or sees: the attribute that holds a layer, the layer's own name,
or the name that it has in checkpoints (which does not count what was built before).  Of layers in a list it is the
list's attribute and, as the next part, a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcckpt.errors import OptionError
from hpcckpt.keras.model.layers import is_layer
from hpcckpt.keras.model.naming import Namer, stem
from hpcckpt.train.config_errors import nearest

SEPARATOR = "@"
MOST_LINES = 60
"""Of a tree in a message: who looks for a name sees what there is, and a scroll bar is of no use in a log."""


class SubmodelNotFoundError(OptionError, LookupError):
    """A model has no submodel of this path."""

    kind = "submodel-not-found"


def find(model: Any, path: str) -> Any:
    """Return the submodel that a path names. Independent.

    Parameters
    ----------
    model : keras.Model
        The model.
    path : str
        Names from the model down, with ``@`` between them.

    Raises
    ------
    SubmodelNotFoundError
        Saying how far the path leads, what name is nearest, and what there is, as a tree.
    """
    layer, parts, passed = model, path.split(SEPARATOR), 0
    while passed < len(parts):
        found, n_parts = _step(layer, parts[passed:])
        if found is None:
            raise SubmodelNotFoundError(_not_found(layer, parts, passed))
        layer, passed = found, passed + n_parts
    return layer


def freeze(model: Any, paths: Iterable[str]) -> list[Any]:
    """Have training leave submodels as they are, their statistics too; return them. Before ``compile``. Independent.

    Raises
    ------
    SubmodelNotFoundError
        If there is no such submodel; then nothing is frozen.
    """
    found = [find(model, path) for path in paths]
    for layer in found:
        layer.trainable = False
    return found


def tree(model: Any, most_lines: int = MOST_LINES) -> str:
    """Return the submodels of a model by name, one a line, those that are deepest left out where there are too many."""
    depth, lines = 1, list(_lines(model, 1))
    while depth < 8:
        deeper = list(_lines(model, depth + 1))
        if len(deeper) == len(lines) or len(deeper) > most_lines:
            break
        depth, lines = depth + 1, deeper
    if len(lines) > most_lines:
        lines[most_lines:] = [f"  … and {len(lines) - most_lines} more"]
    return "\n".join(lines)


def count(variables: Iterable[Any]) -> int:
    """Return how many numbers variables hold. Independent."""
    total = 0
    for variable in variables:
        size = 1
        for dim in variable.shape:
            size *= int(dim)
        total += size
    return total


# -- the names of children -------------------------------------------------------------------------


def children(layer: Any) -> dict[str, Any]:
    """Return the layers right below one, by the name that is best for people: the attribute, if there is one."""
    named = {id(child): name for name, child in _by_attribute(layer).items()}
    namer, found = Namer(), {}
    for child in _sublayers(layer):
        own = namer.take(stem(child.name, type(child).__name__))
        found[named.get(id(child), own)] = child
    return found


def _sublayers(layer: Any) -> list[Any]:
    below = layer._flatten_layers(include_self=False, recursive=False)
    distinct = {id(child): child for child in below}
    return [child for child in distinct.values() if type(child).__name__ != "InputLayer"]


def _by_attribute(layer: Any) -> dict[str, Any]:
    """Return what attributes hold, of lists as ``blocks@0``; names that begin with ``_`` are private and ignored."""
    below = {id(child) for child in _sublayers(layer)}
    found: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if name.startswith("_"):
            continue
        if id(value) in below:
            found.setdefault(name, value)
        elif _is_list(value):
            found |= {f"{name}{SEPARATOR}{n}": item for n, item in enumerate(value) if id(item) in below}
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and any(map(is_layer, value))


def _aliases(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield all names that children go by, the strongest first: attributes, names in checkpoints, Keras' own."""
    yield from _by_attribute(layer).items()
    namer = Namer()
    for child in _sublayers(layer):
        yield namer.take(stem(child.name, type(child).__name__)), child
    yield from ((child.name, child) for child in _sublayers(layer))


def _step(layer: Any, parts: Sequence[str]) -> tuple[Any, int]:
    """Return the child that the first part names, or the first two of a list; and how many parts those were."""
    aliases: dict[str, Any] = {}
    for name, child in _aliases(layer):
        aliases.setdefault(name, child)
    for n_parts in (1, 2):
        found = aliases.get(SEPARATOR.join(parts[:n_parts])) if len(parts) >= n_parts else None
        if found is not None:
            return found, n_parts
    return None, 0


# -- words -----------------------------------------------------------------------------------------


def _not_found(layer: Any, parts: Sequence[str], passed: int) -> str:
    missing, path = parts[passed], SEPARATOR.join(parts)
    place = f"{SEPARATOR.join(parts[:passed])!r}" if passed else "the model"
    known = {name for name, _ in _aliases(layer)}
    guess = nearest(missing, known)
    hint = f"did you mean {SEPARATOR.join([*parts[:passed], guess])!r}? " if guess is not None else ""
    has = f"{hint}{place} has\n{tree(layer)}" if known else f"{place} has no submodels"
    return f"no submodel {path!r}: nothing in {place} is called {missing!r}; {has}"


def _lines(layer: Any, depth: int, indent: str = "  ") -> Iterator[str]:
    for name, child in children(layer).items():
        yield f"{indent}{name}  {_about(child)}"
        if depth > 1:
            yield from _lines(child, depth - 1, indent + "  ")


def _about(layer: Any) -> str:
    n_all, n_trained = count(layer.weights), count(layer.trainable_weights)
    frozen = "" if n_all == 0 or n_trained else ", frozen"
    return f"{type(layer).__name__}, {n_all:,} parameters{frozen}"


def summary(model: Any, frozen: Mapping[str, Any]) -> str:
    """Return the line about what of a model is trained."""
    n_all, n_trained = count(model.weights), count(model.trainable_weights)
    names = f" frozen={','.join(frozen)}" if frozen else ""
    return f"parameters={n_all} trained={n_trained}{names}"
