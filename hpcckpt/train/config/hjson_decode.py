"""Text of a configuration decoded by `hjson`, which also keeps what the values alone do not tell."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, shown

PYTHONS_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORD = re.compile(r"(True|False|None)\b")
CLOSED = re.compile(r"[,\]}]$")


def decoded(text: str, source: str) -> Any:
    """Return what a text says, of the types of this module.

    Raises
    ------
    TrainConfigError
        If its syntax is wrong.
    """
    decoder = _decoder()
    try:
        # A line before it: hjson looks for the beginning of the line where a text of several lines begins.
        return decoder.decode("\n" + text)
    except RecursionError:
        raise TrainConfigError.of([ConfigProblem(source, "lies deeper than can be read", "take it apart")]) from None
    except IndexError:  # what is not closed is looked for beyond the end of the text
        begin = max(text.rfind("/*"), text.rfind("'''"))
        where = f"{source}:{text.count(chr(10), 0, max(begin, 0)) + 1}"
        raise TrainConfigError.of([ConfigProblem(where, "what begins here is not closed", "close it")]) from None
    except ValueError as error:
        raise TrainConfigError.of([_syntax_problem(error, source, decoder.loose)]) from None


class _Float(float):
    """A number with a point or an exponent, which hjson would make an int of where it is whole."""

    __slots__ = ()

    def __int__(self) -> int:
        return 0 if self else 1


class Loose(str):
    """A text that had no quotes."""

    __slots__ = ()


class Pairs(dict[str, Any]):
    """A mapping that knows which of its keys stood twice."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        found = list(pairs)
        super().__init__(found)
        counts = Counter(name for name, _ in found)
        self.repeated = sorted(name for name, count in counts.items() if count > 1)


def _decoder() -> Any:
    try:
        from hjson import decoder as hjson
    except ImportError as error:
        raise TrainConfigError(f"{error}; configurations of trainings need it: pip install 'hpcckpt[train]'") from error

    class Decoder(hjson.HjsonDecoder):  # type: ignore[misc]  # hjson has no types
        """Keeps what the result alone does not tell: whole numbers with a point, repeated keys, missing quotes."""

        def __init__(self) -> None:
            super().__init__(object_pairs_hook=Pairs, parse_float=_Float)
            self.loose: list[tuple[int, str]] = []
            self.parse_tfnns = self._without_quotes
            self.scan_once, self.scan_object_once = hjson.make_scanner(self)

        def raw_decode(self, s: str, idx: int = 0, _: object = None) -> tuple[Any, int]:
            """Decode the first value: a list, a mapping with or without braces, or nothing at all."""
            first, at = hjson.getNext(s, idx)
            try:
                found: tuple[Any, int] = (None, at)
                if first:
                    found = self.scan_once(s, at) if first in "{[" else self.scan_object_once(s, at)
            except hjson.HjsonDecodeError:
                with contextlib.suppress(ValueError):
                    return json.loads(s), len(s)  # a number, say: there is a better word for it than a wrong syntax
                raise
            return found

        def _without_quotes(self, context: Any, text: str, at: int) -> tuple[Any, int]:
            value, end = hjson.scantfnns(context, text, at)
            if isinstance(value, str):
                self.loose.append((text.count("\n", 0, at), value))
                value = Loose(value)
            return value, end

    return Decoder()


def _syntax_problem(error: ValueError, source: str, loose: list[tuple[int, str]]) -> ConfigProblem:
    message = getattr(error, "msg", None)
    if message is None:
        return ConfigProblem(source, f"holds a number that cannot be read ({error})", "write a shorter one")
    document, at = error.doc, error.pos  # type: ignore[attr-defined]  # of hjson's error
    if message.startswith("Invalid control character"):
        return _control_problem(document[at - 1], error.lineno - 1, source)  # type: ignore[attr-defined]
    text = message.replace("%r", repr(document[at : at + 1])).removesuffix(" at")
    where = f"{source}:{error.lineno - 1}:{error.colno}"  # type: ignore[attr-defined]
    swallowed = [(line, word) for line, word in loose if CLOSED.search(word)]
    if swallowed:
        line, word = swallowed[-1]
        pythons = _WORD.match(word)
        remedy = f"write {PYTHONS_WORDS[pythons[0]]}" if pythons else "put quotes around it"
        text = f"without quotes the text runs to the end of its line: {shown(word)!r}"
        return ConfigProblem(f"{source}:{line}", text, remedy)
    return ConfigProblem(where, text, "correct the syntax there; it is JSON or Hjson")


def _control_problem(character: str, line: int, source: str) -> ConfigProblem:
    if character == "\n":
        remedy = "write its closing quotes, or '''…''' around a text of several lines"
        return ConfigProblem(f"{source}:{line - 1}", "a text is not closed where the line ends", remedy)
    return ConfigProblem(
        f"{source}:{line}", f"the character {character!r} is in a text", "write it as JSON does, \\t say"
    )
