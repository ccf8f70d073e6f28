"""The tool itself: help, version, start."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

from hpcckpt import __version__
from hpcckpt.cli.lazy import load_own
from hpcckpt.cli.verbs import SECTIONS, VERBS, Verb
from tests.support.paths import ROOT

HEAVY = ("numpy", "rich", "mpi4py", "tensorflow", "h5py", "keras", "horovod", "torch")
Cli = Callable[..., Any]


def test_help_names_every_verb_and_the_exit_codes(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    for verb in VERBS:
        assert f"  {verb.name} " in result.out
        assert verb.summary in result.out
    assert "8 busy" in result.out


def test_no_words_mean_help(cli: Cli) -> None:
    assert cli().out == cli("--help").out


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verb_says_what_the_table_says(verb: Verb, cli: Cli) -> None:
    command = load_own(verb)
    assert (command.help or "").splitlines()[0] == verb.summary
    assert verb.section in SECTIONS
    assert cli(verb.name, "-h").code == 0


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verb_prints_json_on_request(verb: Verb) -> None:
    if verb.name == "completion":
        pytest.skip("it prints a program of a shell, not data")
    command = load_own(verb)
    for each in command.commands.values() if isinstance(command, click.Group) else [command]:
        assert "--json" in {option for param in each.params for option in param.opts}


def test_the_pages_have_the_verbs_of_the_table() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    listed = (ROOT / "README.md").read_text("utf-8").rpartition("\n`list`, ")[2].partition("See\n")[0]
    table = page.partition("## Conventions")[0]
    for name in (verb.name for verb in VERBS):
        assert f"[`{name}`](#" in table, "docs/cli.md has a row for each verb"
        assert re.search(rf"^## .*\b{name}\b", page, re.MULTILINE), "docs/cli.md has a section for each verb"
        assert f"`{name}`" in f"`list`, {listed}", "README.md lists the verbs"


def test_version(cli: Cli, spawn: Cli) -> None:
    assert cli("--version").out == f"hpcckpt {__version__}\n"
    assert spawn("--version").out == f"hpcckpt {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list", "--help"], ["nonsense"]])
def test_help_imports_nothing_heavy(words: list[str], environment: Callable[..., dict[str, str]]) -> None:
    code = (
        f"import json, sys; from hpcckpt.cli import main; main({words!r}); "
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == ([] if words[0] != "list" else [name for name in loaded if name == "numpy"])


def test_listing_loads_no_framework(saved: object, environment: Callable[..., dict[str, str]]) -> None:
    verbs = [["list"], ["info"], ["tensors"], ["verify"], ["diff", "10", "20"]]
    calls = "; ".join(f"main({[verb[0], str(saved), *verb[1:]]!r})" for verb in verbs)
    code = f"import sys; from hpcckpt.cli import main; {calls}; print([n for n in {HEAVY[1:]!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_starts_in_less_than_a_third_of_a_second(spawn: Cli) -> None:
    def cpu_seconds() -> float:  # a start does nothing but compute, and the machine may be busy with other tests
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert spawn("--help").code == 0
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    assert any(cpu_seconds() < 0.3 for _ in range(20)), "what shares caches and cores with it costs it time as well"
