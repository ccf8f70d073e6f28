"""``hpcckpt tensors``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc

Cli = Callable[..., Any]


def test_json_lists_name_dtype_shape_bytes_and_kind(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, "--json")
    tensors = {tensor.pop("name"): tensor for tensor in result.json["tensors"]}
    assert tensors["table"] == {"dtype": "float64", "shape": [6, 5], "nbytes": 240, "kind": "sharded"}
    assert tensors["half"] == {"dtype": "bfloat16", "shape": [7], "nbytes": 14, "kind": "replicated"}
    assert tensors["seed"]["kind"] == "per-rank"
    assert len(tensors) == 7


def test_table_and_total(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, "--only", "model/*")
    assert [line.split()[0] for line in result.out.splitlines()] == ["NAME", "model/dense/bias", "model/dense/kernel"]
    assert result.err.startswith("2 tensors, ")


def test_a_pattern_that_matches_nothing_is_a_usage_error(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, "--only", "modell/*")
    assert result.code == 2
    assert "names begin with" in result.err


def test_statistics(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, 20, "--stats", "--json")
    found = {each["name"]: each for each in result.json["statistics"]}
    kernel = np.arange(600) * 20.0
    assert found["model/dense/kernel"]["maximum"] == kernel.max()
    assert found["model/dense/kernel"]["mean"] == pytest.approx(kernel.mean())
    assert found["model/dense/kernel"]["std"] == pytest.approx(kernel.std())
    assert found["half"]["minimum"] == found["half"]["maximum"] == 20
    assert found["seed#2"]["maximum"] == 20
    assert "model/dense/kernel" in cli("tensors", saved, "--stats").out


def test_values_of_one_tensor(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, 20, "-d", "table", "--json")
    assert result.json["values"] == {"table": [[20.0] * 5] * 2 + [[21.0] * 5] * 2 + [[22.0] * 5] * 2}
    assert cli("tensors", saved, 20, "-d", "half", "--json").json["values"] == {"half": [20.0] * 7}
    assert cli("tensors", saved, 20, "-d", "seed").out.splitlines()[:2] == ["seed#0 int64 [2]", "[20  0]"]


def test_a_rank_s_json_is_shown_as_text(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"rng": hc.PerRank({"seed": 7}), "name": np.array(["ü"]), "z": np.array([1 + 2j])})
    assert '{"seed": 7}' in cli("tensors", tmp_path / "run", "-d", "rng/json").out
    assert cli("tensors", tmp_path / "run", "-d", "name", "--json").json["values"] == {"name": ["ü"]}
    statistics = cli("tensors", tmp_path / "run", "--stats", "--json").json["statistics"]
    assert {each["name"] for each in statistics} == {"z"}
