"""On a terminal: colours, a progress bar, a prompt; and none of it where it is not seen or wanted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcckpt.cli.progress import rate_column

pexpect = pytest.importorskip("pexpect")
Environment = Callable[..., dict[str, str]]
LIMIT_S = 240.0


def on_terminal(environment: dict[str, str], *words: object) -> tuple[int, str]:
    child = pexpect.spawn(
        sys.executable, ["-m", "hpcckpt", *map(str, words)], env=environment, encoding="utf-8", dimensions=(40, 200)
    )
    child.expect(pexpect.EOF, timeout=LIMIT_S)
    child.wait()
    child.close()
    return child.exitstatus, child.before


def test_colours_and_a_bar(environment: Environment, saved: Path) -> None:
    code, text = on_terminal(environment(TERM="xterm-256color", NO_COLOR=""), "verify", saved)
    assert code == 0
    assert "\x1b[32mOK\x1b[0m" in text
    assert "verifying" in text
    assert "100%" in text


def test_a_bar_shows_its_rate_in_the_units_of_the_result() -> None:
    task = SimpleNamespace(finished_speed=None, speed=1.5 * 2**20)
    assert str(rate_column().render(task)) == "1.50 MiB/s"


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb", "NO_COLOR": ""}])
def test_neither_where_they_are_not_wanted(variables: dict[str, str], environment: Environment, saved: Path) -> None:
    for verb in ("verify", "list"):
        code, text = on_terminal(environment(**variables), verb, saved)
        assert code == 0
        assert "\x1b" not in text
        assert "verifying" not in text


def test_quiet_means_no_bar(environment: Environment, saved: Path) -> None:
    _, text = on_terminal(environment(TERM="xterm", NO_COLOR=""), "verify", saved, "-q")
    assert "verifying" not in text


def test_json_has_no_colours(environment: Environment, saved: Path) -> None:
    _, text = on_terminal(environment(TERM="xterm", NO_COLOR=""), "list", saved, "--json")
    assert "\x1b" not in text


def test_interrupting_a_question_changes_nothing(environment: Environment, saved: Path) -> None:
    words = ["-m", "hpcckpt", "prune", str(saved), "--keep-last", "1"]
    child = pexpect.spawn(sys.executable, words, env=environment(TERM="dumb"), encoding="utf-8")
    child.expect("Remove 2 checkpoints", timeout=LIMIT_S)
    for _ in range(10):  # Python does not see an interrupt that comes just before it begins to read
        child.sendintr()
        if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=LIMIT_S / 10) == 0:
            break
    child.wait()
    child.close()
    assert child.exitstatus == 130
    assert len(list(saved.glob("step-*"))) == 3
