"""``hpcckpt info``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]
KEYS = {
    "step", "epoch", "path", "save_id", "run_id", "parent", "created", "ranks", "backend", "level", "nbytes",
    "tensor_nbytes", "block_bytes", "pinned", "damage", "metrics", "objects", "environment", "tensors", "files",
}  # fmt: skip


def test_json_tells_what_a_checkpoint_is(cli: Cli, saved: Path) -> None:
    result = cli("info", saved, "--json")
    assert result.code == 0
    assert set(result.json) == KEYS
    assert (result.json["step"], result.json["ranks"], result.json["epoch"]) == (30, 3, 3)
    assert result.json["tensors"] == {"per-rank": 1, "replicated": 5, "sharded": 1}
    assert result.json["objects"]["state"]["epoch"] == 3
    assert len(result.json["files"]) == 3
    assert result.json["parent"] == cli("info", saved, 20, "--json").json["save_id"]


def test_best_latest_and_a_step_directory_name_a_step(cli: Cli, saved: Path) -> None:
    assert cli("info", saved, "best", "--json").json["step"] == 20
    assert cli("info", saved, "best", "--metric", "max:acc", "--json").json["step"] == 30
    assert cli("info", saved, "latest", "--json").json["step"] == 30
    assert cli("info", saved / "step-0000000010", "--json").json["step"] == 10


def test_a_relative_path_from_within_a_step_names_that_step(
    cli: Cli, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved / "step-0000000010" / "data")
    assert cli("info", "..", "--json").json["step"] == 10
    monkeypatch.chdir(saved / "step-0000000020")
    assert cli("info", ".", "--json").json["step"] == 20
    assert hc.info(".").step == 20


@pytest.mark.parametrize("step", ["10", "20", "latest", "best"])
def test_a_step_directory_with_a_step_is_refused_and_the_run_named(cli: Cli, saved: Path, step: str) -> None:
    for verb in ("info", "verify"):
        found = cli(verb, saved / "step-0000000010", step)
        assert found.code == 4
        assert f"give no step with it, or give that of the run, {saved}" in found.err


def test_text_for_people(cli: Cli, saved: Path) -> None:
    cli("pin", saved, 20)
    result = cli("info", saved, 20)
    assert "step       20 (pinned)" in result.out
    assert "3 files" in result.out
    assert "object     epoch: 2" in result.out


def test_nothing_in_a_checkpoint_can_steer_the_terminal(cli: Cli, saved: Path, damage: Any) -> None:
    def poison(document: dict[str, Any]) -> None:
        document["metrics"] = {"\x1b]0;title\x07\x1b[2Jloss": 1.0}
        document["environment"] = {"numpy": "\x1b[31m\x9b5n"}

    damage.reseal(saved / "step-0000000030" / "manifest.json", poison)
    for verb in ("info", "list"):
        result = cli(verb, saved, *(["--metric", "\x1b]0;title\x07\x1b[2Jloss"] if verb == "list" else []))
        assert result.code == 0
        assert not set(result.out) & {"\x1b", "\x07", "\x9b"}


def test_an_absent_step_exits_with_4_and_names_those_there(cli: Cli, saved: Path) -> None:
    result = cli("info", saved, 25)
    assert result.code == 4
    assert "10, 20, 30" in result.err
    assert cli("info", saved, "newest").code == 4


def test_a_damaged_manifest_exits_with_3(cli: Cli, saved: Path, damage: Any) -> None:
    damage.flip(saved / "step-0000000030" / "manifest.json", 100)
    result = cli("info", saved, 30, "--json")
    assert result.code == 3
    assert result.json["error"]["kind"] == "manifest"


def test_a_newer_format_exits_with_1(cli: Cli, saved: Path, damage: Any) -> None:
    damage.reseal(saved / "step-0000000030" / "manifest.json", lambda document: document.update(format=99))
    result = cli("info", saved, 30, "--json")
    assert (result.code, result.json["error"]["kind"]) == (1, "format-version")
