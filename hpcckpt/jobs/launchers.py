"""The programs that start ranks, as the words of a command name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

KILL_ON_TERM = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "prun"})
"""Launchers that kill their ranks on TERM instead of forwarding it; a program that saves treats USR1 the same."""
LAUNCHERS = KILL_ON_TERM | {"srun", "aprun"}


def without_env(words: Sequence[str]) -> Sequence[str]:
    """Return the program that a command starts and its words, after ``env`` with its options and variables. Pure."""
    if not words or Path(words[0]).name != "env":
        return words
    is_value = False
    for number, word in enumerate(words[1:], 1):
        if not (is_value or word.startswith("-") or "=" in word):
            return words[number:]
        is_value = not is_value and word in {"-u", "--unset", "-C", "--chdir"}
    return ()


def program_name(words: Sequence[str]) -> str:
    """Return the name of the program that a command starts: ``srun`` for ``env A=1 /usr/bin/srun ...``. Pure."""
    return Path((without_env(words) or words)[0]).name
