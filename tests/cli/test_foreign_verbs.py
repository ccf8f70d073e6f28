"""Verbs of other packages, by the entry-point group ``hpcckpt.commands``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.cli.lazy import is_parallel

Cli = Callable[..., Any]
MODULE = """
import click

@click.command()
@click.argument("name")
def greet(name):
    \"\"\"Greet somebody.\"\"\"
    click.echo(f"hello {name}")
    return 6

greet.is_parallel = True
number = 42
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package: ``package("acme", "greet = acme_verbs:greet")``."""

    def install(name: str, *points: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("\n".join(["[hpcckpt.commands]", *points, ""]), encoding="utf-8")

    (tmp_path / "acme_verbs.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "acme_broken.py").write_text("import no_such_library\n", encoding="utf-8")
    (tmp_path / "acme_exits.py").write_text("import sys; sys.exit(3)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for module in ("acme_verbs", "acme_broken", "acme_exits"):
        sys.modules.pop(module, None)


def test_they_are_listed_and_run(package: Callable[..., None], cli: Cli) -> None:
    package("acme", "greet = acme_verbs:greet")
    assert "greet Greet somebody." in " ".join(cli("--help").out.split())
    result = cli("greet", "you")
    assert (result.code, result.out) == (6, "hello you\n")
    assert cli("greet").code == 2


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("acme_broken:x", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("acme_exits:x", "SystemExit: 3"),
        ("acme_verbs:absent", "AttributeError"),
        ("acme_verbs:number", "is not a click command"),
    ],
)
def test_a_broken_one_is_shown_as_broken_and_breaks_nothing_else(
    target: str, reason: str, package: Callable[..., None], cli: Cli, saved: Path
) -> None:
    package("acme", f"greet = {target}", "wave = acme_verbs:greet")
    assert "† broken: " in cli("--help").out
    assert reason.split(":")[0] in cli("--help").out
    assert cli("list", saved).code == 0
    assert cli("wave", "you").code == 6
    for words in (["greet"], ["greet", "--help"], ["greet", "you", "--json"]):
        result = cli(*words)
        assert result.code == 1
        assert reason in result.err


def test_two_packages_with_one_verb_are_a_conflict_that_names_both(package: Callable[..., None], cli: Cli) -> None:
    package("acme", "greet = acme_verbs:greet")
    package("zeta", "greet = acme_verbs:number")
    result = cli("greet", "you")
    assert result.code == 1
    assert "acme" in result.err
    assert "zeta" in result.err


def test_the_tool_s_own_verbs_cannot_be_taken(package: Callable[..., None], cli: Cli, saved: Path) -> None:
    package("acme", "list = acme_verbs:greet")
    assert cli("list", saved, "--json").json["resume_step"] == 30
    assert "Greet" not in cli("--help").out


def test_a_verb_may_run_on_all_ranks(package: Callable[..., None]) -> None:
    package("acme", "greet = acme_verbs:greet", "count = acme_verbs:number")
    assert is_parallel("greet")
    assert not is_parallel("count")
    assert not is_parallel("list")
    assert not is_parallel("nonsense")
