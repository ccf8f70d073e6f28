"""Arguments and options that are no value: an empty path, NaN, a number of thousands of digits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from hpcckpt.cli.lazy import load_own
from hpcckpt.cli.parameter_types import FiniteRange, PathType
from hpcckpt.cli.verbs import VERBS

Cli = Callable[..., Any]


def parameters(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    for inner in getattr(command, "commands", {}).values():
        yield from parameters(inner)


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_each_path_and_number_of_a_verb_has_the_type_that_refuses_what_is_none(verb: str) -> None:
    (target,) = (each for each in VERBS if each.name == verb)
    for each in parameters(load_own(target)):
        assert not isinstance(each.type, click.Path) or isinstance(each.type, PathType), each.name
        assert not isinstance(each.type, click.FloatRange) or isinstance(each.type, FiniteRange), each.name


EMPTY = [
    ["list", ""], ["rm", "", "10"], ["convert", "x.npz", ""], ["copy", "run", ""], ["report", "run", "-o", ""],
    ["train", "-c", "x.hjson", "--run", ""], ["train", "-c", ""], ["supervise", "--run", "", "--", "true"],
    ["diff", "", "10", "20"], ["diff", "run", ""], ["verify-resume", "--file", "", "--", "true"],
    ["verify-resume", "--losses", "", "--", "true"],
]  # fmt: skip


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_an_empty_path_is_a_usage_error_and_not_the_current_directory(cli: Cli, saved: Path, words: list[str]) -> None:
    result = cli(*(saved if word == "run" else word for word in words))
    assert (result.code, "is empty" in result.err) == (2, True)


BELOW_NOTHING = [
    (["report", "run", "-o", "none/x.html"], "none does not exist; make it first"),
    (["report", "run", "--png", "none/x.png"], "none does not exist; make it first"),
    (["report", "run", "-o", "file/x.html"], "file is no directory; choose another path"),
    (["report", "run", "-o", "/"], "is a directory"),
    (["copy", "run", "file/x"], "file is no directory; choose another path"), (["copy", "run", "file"], "is a file"),
    (["copy", "run", "pipe"], "pipe is no directory; choose another path"),
    (["reshard", "run", "--files", "2", "-o", "pipe"], "pipe is no directory; choose another path"),
    (["train", "-c", "x.hjson", "--check", "--run", "pipe"], "pipe is no directory; choose another path"),
    (["reshard", "run", "--files", "2", "-o", "file/x"], "file is no directory; choose another path"),
    (["train", "-c", "x.hjson", "--check", "--run", "file/x"], "file is no directory; choose another path"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), BELOW_NOTHING)
def test_a_path_that_cannot_be_made_is_a_usage_error_with_the_next_action(
    cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    os.mkfifo("pipe")
    result = cli(*(saved if word == "run" else word for word in words))
    assert (result.code, text in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "run", "--once", "--every"], ["diff", "run", "10", "20", "--rtol"],
        ["verify-resume", "--work", "work", "--rtol"], ["verify-resume", "--work", "work", "--timeout"],
        ["supervise", "--dry-run", "--lead"],
    ],
    ids=lambda words: " ".join((words[0], words[-1])),
)  # fmt: skip
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_a_usage_error(cli: Cli, saved: Path, words: list[str], number: str) -> None:
    rest = ["--", "true"] if words[0] in {"supervise", "verify-resume"} else []
    assert cli(*(saved if word == "run" else word for word in words), number, *rest).code == 2
