"""``hpcckpt tensors``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc

pytestmark = pytest.mark.one_case

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


def test_the_tree_has_shapes_and_the_sum_of_each_branch(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, 20, "--tree")
    rows = [re.split(r"\s{2,}", line.lstrip("│├└─ ")) for line in result.out.splitlines()]
    assert rows[0] == ["step-0000000020", "7 tensors", "5.08 KiB"]
    assert rows[2:6] == [
        ["model", "2 tensors", "2.46 KiB"],
        ["dense", "2 tensors", "2.46 KiB"],
        ["bias", "float32 [30]", "120 B"],
        ["kernel", "float32 [20, 30]", "2.34 KiB"],
    ]
    assert ["seed", "int64 [2] per rank", "16 B"] in rows
    assert [line.index(line.lstrip("│├└─ ")) for line in result.out.splitlines()[2:6]] == [4, 8, 12, 12]


def test_the_tree_as_json_is_nested(cli: Cli, saved: Path) -> None:
    tree = cli("tensors", saved, "--tree", "--only", "model/*", "--json").json["tree"]
    (model,) = tree["branches"]
    (dense,) = model["branches"]
    assert {key: model[key] for key in ("name", "n_tensors", "nbytes")} == {
        "name": "model", "n_tensors": 2, "nbytes": 2520,
    }  # fmt: skip
    assert dense["branches"][0] == {
        "name": "bias", "n_tensors": 1, "nbytes": 120, "dtype": "float32", "shape": [30], "kind": "replicated",
    }  # fmt: skip


def test_the_tree_fits_80_columns_and_leaves_nothing_out(cli: Cli, tmp_path: Path) -> None:
    deep = "/".join("d" * 2000)
    state = {"a": {"y" * 65: np.zeros(3), "x" * 150: {"w": np.zeros([1] * 30)}}, deep: np.zeros(2)}
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state)
    lines = cli("tensors", tmp_path / "run", "--tree").out.splitlines()
    assert max(map(len, lines)) == 80
    text = "".join(lines)
    assert (text.count("x"), text.count("y"), text.count("1, ") + text.count("1,") + text.count("1]")) == (150, 65, 59)
    assert text.count("d/") == 1990


def test_a_tensor_may_have_the_name_of_a_branch(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"a": np.zeros(2), "a/b": np.zeros(3)})
    rows = [line.split() for line in cli("tensors", tmp_path / "run", "--tree").out.splitlines()]
    assert rows[1:] == [["└──", "a", "2", "tensors", "40", "B"], ["└──", "b", "float64", "[3]", "24", "B"]]


def test_a_tree_shows_no_values(cli: Cli, saved: Path) -> None:
    result = cli("tensors", saved, "--tree", "--stats")
    assert result.code == 2
    assert "--tree shows no values" in result.err


@pytest.mark.parametrize("words", [["-d", "half", "--stats"], ["-d", "half", "--only", "half"], ["-d", "", "--tree"]])
def test_an_option_that_the_values_of_one_tensor_leave_unused_is_refused(
    cli: Cli, saved: Path, words: list[str]
) -> None:
    assert cli("tensors", saved, *words).code == 2


def test_a_rank_and_a_count_of_thousands_of_digits_are_only_unknown_names(cli: Cli, saved: Path) -> None:
    assert cli("tensors", saved, "-d", "seed#" + "9" * 5000).code == 2
    assert cli("tensors", saved, "best", "--metric", "val_loss:" + "9" * 5000).code == 4
