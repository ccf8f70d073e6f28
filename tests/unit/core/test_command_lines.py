"""A command that a message suggests does what it says where paths have blanks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import hpcckpt
from hpcckpt.core.command_lines import command_line
from hpcckpt.errors import StepNotFoundError

PACKAGE = Path(hpcckpt.__file__).parent
UNQUOTED = re.compile(r"(?<!this )\bhpcckpt [a-z-]+ (?:--?[a-z-]+ )*\{(?!run\})")
"""A command in an f-string with a word that is not quoted; ``{run}`` is a template that its caller fills quoted."""


def test_paths_are_quoted(tmp_path):
    run = tmp_path / "a run"
    run.mkdir()
    with pytest.raises(StepNotFoundError) as raised:
        hpcckpt.load(run)
    assert shlex.split(str(raised.value).partition("see '")[2].removesuffix("'")) == ["hpcckpt", "list", str(run)]


def test_numbers_and_options_are_as_they_are_typed():
    assert command_line("verify", Path("runs/a"), 7, "--all") == "hpcckpt verify runs/a 7 --all"


def test_no_message_has_a_command_with_an_unquoted_path():
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if UNQUOTED.search(line) and "shlex." not in line
    ]
    assert not found, "\n".join(found)
