"""``--set PATH=VALUE``: changes single values of a configuration.

A path is written as in error messages: ``[1].optimizer.tf.keras.optimizers.Adam.learning_rate``.  How it is read:

1. ``[1]`` at its beginning is the number of a cycle, from 0; without it the change is made in the first cycle and in
   all that give the key themselves, so that all cycles have it.
2. At a mapping, the longest matching key is taken, dots included; a key may be in double quotes.
3. At a factory, what is not its name is one of its arguments: ``optimizer.learning_rate`` will do.
4. ``[0]`` at a list is the number of an item, from 0.
5. Only the last part may be new.

A value is JSON, or else a text.  A key that the cycle inherits is copied first, so that the cycles before keep theirs.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcckpt.train.config import schema
from hpcckpt.train.config.factory_parse import EXAMPLE, is_factory
from hpcckpt.train.config.hjson_decode import PYTHONS_WORDS, decoded
from hpcckpt.train.config.plain_values import kind_of, plain
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, did_you_mean, nearest, shown

_INDEX = re.compile(r"\[(\d{1,9})\]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_OF_FACTORY = re.compile(r"\[\d+\]\.(datasets|model|loss|metrics\[\d+\]|optimizer|train_loop)")
_USAGE = "write PATH=VALUE, such as [1].optimizer.learning_rate=0.1"


class _WrongError(Exception):
    """A change that cannot be made.

    Parameters
    ----------
    text, remedy : str
        Of the problem.
    """

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.text = text
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of a mapping or a list, which may not be there yet."""

    holder: Any
    key: str | int


def changed(raw: Sequence[Any], sets: Sequence[str], problems: list[ConfigProblem]) -> list[Any]:
    """Return the cycles with changes made; what cannot be made is added to `problems`.

    Parameters
    ----------
    raw : list of dict
        The cycles, of what JSON has.
    sets : sequence of str
        The changes, ``PATH=VALUE``, made in this order.
    problems : list of ConfigProblem
        What is wrong.
    """
    result = copy.deepcopy(list(raw))
    for change in sets:
        try:
            path, value = split(change)
            _change(result, path, value)
        except _WrongError as error:
            problems.append(ConfigProblem(f"--set {shown(change)}", error.text, error.remedy))
    return result


def split(change: str) -> tuple[str, Any]:
    """Return path and value of ``PATH=VALUE``; quoted keys may have a ``=`` in them."""
    at = 0
    while at < len(change) and change[at] != "=":
        quoted = _QUOTED.match(change, at)
        at = quoted.end() if quoted else at + 1
    path = change[:at].strip()
    if at == len(change) or not path:
        raise _WrongError("is no change", _USAGE)
    return path, _value(change[at + 1 :].strip())


def _value(text: str) -> Any:
    """Return what a value says: JSON; a number as people write it; Hjson in brackets; else it is a text."""
    if text in PYTHONS_WORDS:
        raise _WrongError(
            f"{text} is a word of Python's", f'write {PYTHONS_WORDS[text]}, or "\\"{text}\\"" for the text'
        )
    problems: list[ConfigProblem] = []
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        value = text
        if _NUMBER.fullmatch(text):
            value = _number(text)
        elif text[:1] in ("{", "[", '"'):
            try:
                value = decoded(text, "the value")
            except TrainConfigError as error:
                wrong = error.problems[0]
                raise _WrongError(
                    f"{wrong.where}: {wrong.text}", "correct it; the shell wants it in single quotes"
                ) from None
    value = plain(value, "the value", problems)
    if problems:
        raise _WrongError(f"{problems[0].where} {problems[0].text}", problems[0].remedy)
    return value


def _number(text: str) -> int | float:
    try:
        return float(text) if set(text) & set(".eE") else int(text)
    except ValueError as error:  # Python reads no number of thousands of digits
        raise _WrongError(f"the number cannot be read ({error})", "write a shorter one") from None


# -- where -----------------------------------------------------------------------------------------


def _change(cycles: list[Any], path: str, value: Any) -> None:
    index = _INDEX.match(path)
    if index is None:
        name = _key_of_cycle(path)[0]
        chosen = [number for number, cycle in enumerate(cycles) if number == 0 or name in cycle]
    else:
        chosen = [int(index[1])]
        path = path[index.end() :].removeprefix(".")
    for number in chosen:
        if number >= len(cycles):
            are = "there is one cycle, [0]" if len(cycles) == 1 else f"the cycles are [0] to [{len(cycles) - 1}]"
            raise _WrongError(f"there is no cycle [{number}]", are)
        name, rest = _key_of_cycle(path)
        if rest:
            cycles[number][name] = _own(cycles, number, name)
        place = _find(_Place(cycles[number], name), rest, f"[{number}].{name}")
        place.holder[place.key] = copy.deepcopy(value)


def _key_of_cycle(path: str) -> tuple[str, str]:
    """Return the key of a cycle that a path begins with, and the rest."""
    known = schema.CycleKeys.model_fields
    name, rest = _head(path, [])
    if name not in known:
        raise _WrongError(f"there is no key {shown(name)!r}", did_you_mean(name, known, "the keys are"))
    return name, rest


def _own(cycles: Sequence[Any], number: int, name: str) -> Any:
    """Return a copy of a cycle's value, which may be inherited or the default."""
    for cycle in cycles[number::-1]:
        if cycle.get(name) is not None:
            return copy.deepcopy(cycle[name])
        if name in cycle:
            break
    default = schema.DEFAULTS.get(name)
    if default is None and name in schema.PARTS:
        return {}
    return copy.deepcopy(default)


def _find(place: _Place, path: str, where: str) -> _Place:
    """Follow a path to its end; only the last part may be new."""
    while path:
        value = place.holder[place.key]
        index = _INDEX.match(path)
        if index is not None:
            place = _Place(value, _item(value, int(index[1]), where))
            path, where = _after(path[index.end() :]), f"{where}{index[0]}"
        elif isinstance(value, dict):
            holder, where = _arguments(value, path, where)
            name, path = _head(path, list(holder))
            if path and name not in holder:
                raise _WrongError(
                    f"{where} has no {shown(name)!r}", _parts_of(holder, name, is_factory=holder is not value)
                )
            place, where = _Place(holder, name), f"{where}.{name}"
        else:
            raise _WrongError(f"{where} is {kind_of(value)}, which has no parts", _whole(where))
    return place


def _arguments(value: dict[str, Any], path: str, where: str) -> tuple[dict[str, Any], str]:
    """Return the arguments of a factory if the path continues with one of them, and not with its name."""
    if len(value) != 1 or not (is_factory(value) or _OF_FACTORY.fullmatch(where)):
        return value, where
    ((name, arguments),) = value.items()
    if _head(path, [name])[0] == name or not isinstance(arguments, dict) or name == "@":
        return value, where
    return arguments, f"{where}.{name}"


def _item(value: Any, number: int, where: str) -> int:
    if not isinstance(value, list):
        raise _WrongError(f"{where} is {kind_of(value)}, no list", "name a key, not a number")
    if number >= len(value):
        raise _WrongError(
            f"{where} has no item [{number}]", f"it has {len(value)}, from [0]" if value else "it has none"
        )
    return number


def _head(path: str, known: Sequence[str]) -> tuple[str, str]:
    """Return the first key of a path, and the rest: quoted, the longest known one, or all up to the next dot."""
    quoted = _QUOTED.match(path)
    if quoted is not None and _is_end(path[quoted.end() :]):
        return _unquoted(quoted), _after(path[quoted.end() :])
    for name in sorted(known, key=len, reverse=True):
        if path.startswith(name) and _is_end(path[len(name) :]):
            return name, _after(path[len(name) :])
    if path.startswith('"'):
        raise _WrongError(f"{shown(path)} begins with quotes that are not closed", _USAGE)
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    if not name:
        raise _WrongError(f"an empty part before {shown(path)!r}", _USAGE)
    return name, _after(path[len(name) :])


def _is_end(rest: str) -> bool:
    return rest == "" or rest[0] in ".["


def _after(rest: str) -> str:
    if rest == ".":
        raise _WrongError("the path ends with a dot", _USAGE)
    return rest.removeprefix(".")


def _unquoted(quoted: re.Match[str]) -> str:
    try:
        return str(json.loads(quoted[0]))
    except ValueError:
        raise _WrongError(f"{quoted[0]} is no key in quotes", _USAGE) from None


def _parts_of(holder: dict[str, Any], name: str, *, is_factory: bool) -> str:
    if is_factory and nearest(name, holder) is None:
        return "append the name of an argument; if only some cycles have it, name the cycle: [0].…"
    if not holder:
        return f"it is empty; write a factory as its value, {EXAMPLE}"
    return did_you_mean(name, map(shown, holder), "it has")


def _whole(where: str) -> str:
    return f"give it a value as a whole: '{where}=…'"
