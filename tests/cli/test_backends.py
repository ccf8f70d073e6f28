"""``hpcckpt backends``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.backends import registry
from hpcckpt.backends.plugin import listing

Cli = Callable[..., Any]


def test_the_built_in_ones_are_listed(cli: Cli) -> None:
    result = cli("backends", "--json")
    assert result.code == 0
    by_name = {info["name"]: info for info in result.json["backends"]}
    assert set(by_name["rankfile"]) == {"name", "origin", "version", "target", "features", "problem"}
    assert (by_name["rankfile"]["origin"], by_name["rankfile"]["problem"]) == ("hpcckpt", "")
    lines = cli("backends").out.splitlines()
    first = lines.index(next(line for line in lines if "rankfile" in line)) + 1
    assert " own-files, partial-read," in lines[first]


def test_lines_of_features_fit_in_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    features = tuple(f"feature-{number}" for number in range(12))
    many = registry.BackendInfo("plugin:every-feature", "/lib/libmany.so", "", features=features)
    monkeypatch.setattr(listing, "known_plugins", lambda: (many,))
    lines = cli("backends").out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(lines[lines.index(next(line for line in lines if "every-feature" in line)) + 1 :])
    assert [each.strip() for each in shown.split(",")] == [*features]


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
