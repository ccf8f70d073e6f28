"""``hpcckpt backends``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_the_built_in_ones_are_listed(cli: Cli) -> None:
    result = cli("backends", "--json")
    assert result.code == 0
    by_name = {info["name"]: info for info in result.json["backends"]}
    assert set(by_name["rankfile"]) == {"name", "origin", "version", "target", "features", "problem"}
    assert (by_name["rankfile"]["origin"], by_name["rankfile"]["problem"]) == ("hpcckpt", "")
    lines = cli("backends").out.splitlines()
    assert max(len(line) for line in lines if "/" not in line) <= 80
    assert lines[lines.index(next(line for line in lines if "rankfile" in line)) + 1].split(", ")[1:3] == [
        "own-files", "partial-read",
    ]  # fmt: skip


def test_a_broken_one_is_listed_with_its_problem(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[hpcckpt.backends]\ncloud = no_such_module:Backend\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = cli("backends", "--json")
    assert result.code == 0
    (cloud,) = [info for info in result.json["backends"] if info["name"] == "cloud"]
    assert cloud["origin"] == "acme"
    assert "no_such_module" in cloud["problem"]
    assert cli("doctor").code == 1
