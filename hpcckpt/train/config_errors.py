"""Errors of a configuration: every problem with its place and its remedy, all in one error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcckpt.errors import OptionError

MOST_SHOWN = 50
_PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong.

    Attributes
    ----------
    where : str
        Its place: a path in the configuration, such as ``[0].model.ktf.models.OneHeadNet.base_model``; a file with
        line and column; an option of the command line.
    text : str
        What is wrong.
    remedy : str
        What to do about it.
    """

    where: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


class TrainConfigError(OptionError):
    """A configuration of a training is invalid. Raised on every rank.

    Attributes
    ----------
    problems : tuple of ConfigProblem
        Everything that is wrong with it.
    source : str
        The file it is wrong in; empty if that is not known.
    """

    kind = "train-config"
    problems: tuple[ConfigProblem, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, problems: Iterable[ConfigProblem], source: str = "") -> TrainConfigError:
        """Make the error that lists all problems.

        Parameters
        ----------
        problems : iterable of ConfigProblem
            The problems; duplicates are removed.
        source : str
            The file it is wrong in.
        """
        distinct = tuple(dict.fromkeys(problems))
        error = cls(_text(distinct, source))
        error.problems = distinct
        error.source = source
        return error

    def of_file(self, source: str) -> TrainConfigError:
        """Return this error with the file that it is wrong in, unless it names one."""
        return self if self.source or not self.problems else TrainConfigError.of(self.problems, source)


ConfigError = TrainConfigError
"""The documented name: ``hpcckpt.train.problems.ConfigError``."""


def _text(problems: Sequence[ConfigProblem], source: str) -> str:
    name = f"{source}: " if source else ""
    if len(problems) == 1:
        is_named = problems[0].where == source or problems[0].where.startswith(f"{source}:")
        return str(problems[0]) if is_named else f"{name}{problems[0]}"
    lines = [f"  {problem}" for problem in problems[:MOST_SHOWN]]
    if len(problems) > MOST_SHOWN:
        lines.append(f"  … and {len(problems) - MOST_SHOWN} more")
    return "\n".join([f"{name}{len(problems)} problems", *lines])


def inside(where: str, key: str | int) -> str:
    """Return the place of a part: of a value by its key, of an item by its number.

    >>> inside(inside("[0].train_loop", "ktf.train.KerasTrainLoop"), "callbacks")
    '[0].train_loop.ktf.train.KerasTrainLoop.callbacks'
    """
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{shown(key)}" if where else shown(key)


def shown(word: object) -> str:
    """Return a word of the configuration for a message: on one line, and not too long."""
    text = word if isinstance(word, str) else repr(word)
    return text if _PLAIN.fullmatch(text) else repr(text[:200])


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like a wrong one; ``None`` if none is like it."""
    names = sorted(set(known))
    folded = {name.lower(): name for name in reversed(names)}
    if word.lower() in folded:
        return folded[word.lower()]
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    found = found or difflib.get_close_matches(word.lower(), list(folded), n=1, cutoff=0.6)
    return folded.get(found[0], found[0]) if found else None


def did_you_mean(word: str, known: Iterable[str], what: str = "known are") -> str:
    """Return a remedy for a wrong word: the nearest known one, or else all of them."""
    names = sorted(set(known))
    found = nearest(word, names)
    if found is not None:
        return f"did you mean {found!r}?"
    return f"{what} {', '.join(names[:20])}{', …' if len(names) > 20 else ''}" if names else "check its spelling"


# -- names that are refused -----------------------------------------------------------------------


class RefusedError(Exception):
    """A name is refused; the caller, who knows its place, makes a problem of it.

    Parameters
    ----------
    text : str
        Why.
    remedy : str
        What to do about it.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.remedy = remedy
