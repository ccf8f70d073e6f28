"""The lines by which a batch script speaks to its scheduler, checked against what the scheduler documents.

Which lines count is decided by each scheduler, and a line that does not count is silently a comment:

======  ==========================================================================================================
Slurm   ``#SBATCH`` lines above the first command; words as a shell splits them, a comment may follow them
PBS     ``#PBS`` lines above the first command; ALCF asks for no comment between them, nor after one
Cobalt  ``#COBALT`` lines from the second line on without a gap; words as blanks split them, quotes mean nothing
======  ==========================================================================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcckpt.errors import Problem
from tests.support.jobs import directives_tables as tables
from tests.support.jobs.directives_values import KINDS


class Option(NamedTuple):
    """An option as documented: its names, the kind of its value (``-``: none), and if that may be left out."""

    names: tuple[str, ...]
    kind: str
    is_optional: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a value may follow."""
        return self.kind != "-"


class Given(NamedTuple):
    """An option that a script or a command line gives; `name` is the first that the table has for it."""

    where: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a scheduler is spoken to.

    Attributes
    ----------
    scheduler : str
        ``slurm``, ``pbs`` or ``cobalt``.
    prefix : str
        What its lines begin with.
    source : str
        Where its options are documented.
    options : mapping of str to Option
        By each of their names.
    """

    scheduler: str
    prefix: str
    source: str
    options: dict[str, Option] = field(repr=False)


def _read(table: str) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for line in table.strip().splitlines():
        *names, kind = line.split()
        option = Option(tuple(names), kind.removeprefix("?"), kind.startswith("?"))
        found |= dict.fromkeys(names, option)
    return found


DIALECTS = {
    "slurm": Dialect("slurm", "#SBATCH", tables.SLURM_SOURCE, _read(tables.SLURM)),
    "pbs": Dialect("pbs", "#PBS", tables.PBS_SOURCE, _read(tables.PBS)),
    "cobalt": Dialect("cobalt", "#COBALT", tables.COBALT_SOURCE, _read(tables.COBALT)),
}
"""By name of the scheduler."""


# -- words -----------------------------------------------------------------------------------------


def read_words(words: Sequence[str], dialect: Dialect, where: str) -> tuple[list[Given], list[str], list[Problem]]:
    """Read words as the scheduler does: return its options, what follows them (a script), and what is wrong."""
    given: list[Given] = []
    problems: list[Problem] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in {"-", "--"}:
        found = _take(rest, dialect, where)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            given.append(found)
    return given, rest, problems + [problem for one in given for problem in _value_problems(one, dialect)]


def _take(rest: list[str], dialect: Dialect, where: str) -> Given | Problem:
    """Take an option and its value off the front."""
    word = rest.pop(0)
    name, value = _split(word, dialect)
    option = dialect.options.get(name)
    if option is None:
        return Problem(where, f"{name} is no option of {dialect.scheduler}", "unknown-option")
    if not option.takes_value:
        return Problem(where, f"{name} takes no value", "value") if value else Given(where, option.names[0], "")
    if value is None and not option.is_optional:
        if not rest:
            return Problem(where, f"{name} needs a value", "value")
        value = rest.pop(0)
    return Given(where, option.names[0], value or "")


def _split(word: str, dialect: Dialect) -> tuple[str, str | None]:
    """Split ``--name=value`` and ``-nVALUE``."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    is_known = word[:2] in dialect.options
    return (word[:2], word[2:] or None) if is_known else (word, None)


def _value_problems(given: Given, dialect: Dialect) -> Iterator[Problem]:
    option = dialect.options[given.name]
    if not option.takes_value or (option.is_optional and not given.value):
        return
    complaint = KINDS[option.kind](given.value)
    if complaint:
        yield Problem(given.where, f"{'/'.join(option.names)}: {complaint}", "value")


# -- scripts ---------------------------------------------------------------------------------------


def dialect_of(text: str) -> Dialect | None:
    """Return the dialect whose lines a script has."""
    for dialect in DIALECTS.values():
        if any(_is_directive(line, dialect) for line in text.splitlines()):
            return dialect
    return None


def read_script(text: str, dialect: Dialect) -> tuple[list[Given], list[Problem]]:
    """Read the lines of a script that are for the scheduler: return the options, and everything that is wrong."""
    lines = text.splitlines()
    problems = list(_place_problems(lines, dialect))
    given: list[Given] = []
    for number in _counting(lines, dialect):
        where = f"line {number + 1}"
        words = _words(lines[number].removeprefix(dialect.prefix), dialect)
        if words is None:
            problems.append(Problem(where, "a quotation does not end", "syntax"))
            continue
        found, rest, wrong = read_words(words, dialect, where)
        given += found
        problems += wrong
        problems += [Problem(where, f"{' '.join(rest)!r} belongs to no option", "syntax")] if rest else []
    return given, sorted(problems, key=lambda problem: int(problem.loc.split()[-1]))


def check_script(text: str, dialect: Dialect) -> list[Problem]:
    """Return everything that is wrong with a script's lines for the scheduler."""
    given, problems = read_script(text, dialect)
    return problems + list(_contradictions(given, dialect))


def missing(given: Iterable[Given], dialect: Dialect) -> list[Problem]:
    """Return what a submission lacks: script and command line together must give it."""
    names = {one.name for one in given}
    resources = {one.value for one in given if one.name == "-l"}
    needed = {"pbs": ("-A",), "cobalt": ("-n", "-t"), "slurm": ()}[dialect.scheduler]
    lacking = [name for name in needed if name not in names]
    if dialect.scheduler == "pbs":
        asked = {part.partition("=")[0] for value in resources for part in value.split(",")}
        lacking += [f"-l {name}=" for name in ("select", "walltime", "filesystems") if name not in asked]
    return [Problem("submission", f"{name} is not given", "missing") for name in lacking]


def _is_directive(line: str, dialect: Dialect) -> bool:
    return line == dialect.prefix or line.startswith((dialect.prefix + " ", dialect.prefix + "\t"))


def _counting(lines: Sequence[str], dialect: Dialect) -> Iterator[int]:
    """Yield the indexes of the lines that the scheduler heeds."""
    is_cobalt = dialect.scheduler == "cobalt"
    for number, line in enumerate(lines):
        if number == 0 and line.startswith("#!"):
            continue
        if _is_directive(line, dialect):
            yield number
        elif is_cobalt or (line.strip() and not line.lstrip().startswith("#")):
            return


def _place_problems(lines: Sequence[str], dialect: Dialect) -> Iterator[Problem]:
    """Yield lines that are ignored at their place."""
    if not lines or not lines[0].startswith("#!"):
        yield Problem("line 1", "no #! line: the scheduler takes the login shell, whatever that is", "shebang")
    heeded = set(_counting(lines, dialect))
    last = max(heeded, default=0)
    for number, line in enumerate(lines):
        where = f"line {number + 1}"
        if _is_directive(line, dialect) and number not in heeded:
            yield Problem(where, f"{dialect.scheduler} ignores this line where it stands: {line}", "ignored")
        elif dialect.scheduler == "pbs" and 0 < number < last and number not in heeded:
            yield Problem(where, "between the #PBS lines stands something else; move it below them", "comment")
        elif line.lstrip().startswith(dialect.prefix) and not _is_directive(line, dialect):
            yield Problem(where, f"{dialect.prefix} must begin the line, with a blank behind it", "syntax")


def _words(text: str, dialect: Dialect) -> list[str] | None:
    if dialect.scheduler == "cobalt":
        return text.split()
    try:
        return shlex.split(text, comments=dialect.scheduler == "slurm")
    except ValueError:
        return None


def _contradictions(given: Sequence[Given], dialect: Dialect) -> Iterator[Problem]:
    """Yield options that are given twice, and such as do not go together."""
    seen: dict[str, str] = {}
    for one in given:
        key = one.name
        if key in {"-l", "-W", "--env", "--attrs", "-v"}:
            key = f"{one.name} {one.value.partition('=')[0]}"
        if key in seen:
            yield Problem(one.where, f"{key} stands in {seen[key]} already", "twice")
        seen.setdefault(key, one.where)
    values = {one.name: one for one in given}
    if dialect.scheduler == "pbs" and "-J" in values and values.get("-r", Given("", "-r", "y")).value != "y":
        yield Problem(values["-J"].where, "-J: the jobs of an array are rerunnable, -r n is refused", "contradiction")
    if "--requeue" in values and "--no-requeue" in values:
        yield Problem(values["--requeue"].where, "--requeue and --no-requeue", "contradiction")
