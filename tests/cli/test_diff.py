"""``hpcckpt diff``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


def save_one(directory: Path, state: dict[str, Any], objects: dict[str, Any] | None = None) -> Path:
    with hc.Checkpointer(directory) as ckpt:
        ckpt.save(1, state, objects=objects)
    return directory


@pytest.fixture
def compared(cli: Cli, tmp_path: Path) -> Callable[..., Any]:
    """Compare two states: ``compared({"w": …}, {"w": …}, "--rtol", 0.1)``."""

    def compare(before: dict[str, Any], after: dict[str, Any], *words: object) -> Any:
        save_one(tmp_path / "a", before)
        save_one(tmp_path / "b", after)
        return cli("diff", tmp_path / "a", tmp_path / "b", "--json", *words)

    return compare


def test_a_step_is_the_same_as_itself(cli: Cli, saved: Path) -> None:
    result = cli("diff", saved, 10, 10, "--json")
    assert result.code == 0
    assert result.json["same"] is True
    assert result.json["n_same"] == 9  # 7 tensors, one of them three times
    assert cli("diff", saved, 10, 10).out == "changed 0/9 tensors\n"


def test_rank_counts_do_not_matter(cli: Cli, save: Callable[..., Path], tmp_path: Path) -> None:
    one, other = save(tmp_path / "one", n_ranks=3), save(tmp_path / "other", n_ranks=3)
    assert cli("diff", one, other).code == 0
    few = save(tmp_path / "few", n_ranks=1)
    result = cli("diff", one, few, "--only", "model/*", "--json")
    assert result.code == 0


def test_two_steps_exit_with_5(cli: Cli, saved: Path) -> None:
    result = cli("diff", saved, 10, "latest", "--json")
    assert result.code == 5
    assert set(result.json) == {"same", "a", "b", "n_same", "changed", "added", "removed", "objects"}
    changed = {change["name"]: change for change in result.json["changed"]}
    assert changed["model/dense/kernel"]["max_abs"] == 599 * 20
    assert changed["model/dense/kernel"]["n_changed"] == 599  # the first element is 0 in both
    assert (changed["optimizer/iteration"]["before"], changed["optimizer/iteration"]["after"]) == ("10", "30")
    assert changed["half"]["max_abs"] == 20
    assert result.json["objects"] == [{"name": "state/epoch", "before": 1, "after": 3}]


def test_text_ranks_by_difference_and_shows_the_top(cli: Cli, saved: Path) -> None:
    lines = cli("diff", saved, 10, 20, "--top", 2).out.splitlines()
    assert lines[0] == "changed 8/9 tensors"
    assert lines[1].split() == ["model/dense/kernel", "max", "|d|", "5990", "599", "of", "600", "elements"]
    assert lines[3].strip().startswith("and 5 more")
    assert "optimizer/iteration: 10 -> 20" in lines
    assert "state/epoch: 1 -> 2" in lines


def test_added_and_removed(compared: Callable[..., Any]) -> None:
    result = compared({"x": np.ones(2), "old": np.ones(1)}, {"x": np.ones(2), "new": np.ones(1)})
    assert result.code == 5
    assert (result.json["added"], result.json["removed"], result.json["changed"]) == (["new"], ["old"], [])


def test_shapes_and_dtypes(compared: Callable[..., Any]) -> None:
    before = {"s": np.ones((2, 3)), "d": np.ones(2, np.float32)}
    after = {"s": np.ones((3, 2)), "d": np.ones(2, np.float64)}
    changed = {change["name"]: change for change in compared(before, after).json["changed"]}
    assert (changed["s"]["what"], changed["s"]["before"], changed["s"]["after"]) == ("shape", "[2, 3]", "[3, 2]")
    assert (changed["d"]["what"], changed["d"]["before"], changed["d"]["after"]) == ("dtype", "float32", "float64")


@pytest.mark.parametrize(("rtol", "code"), [(0, 5), (1e-6, 5), (1e-2, 0)])
def test_tolerance(rtol: float, code: int, compared: Callable[..., Any]) -> None:
    values = np.linspace(1, 2, 50, dtype=np.float32)
    assert compared({"w": values}, {"w": values * np.float32(1.001)}, "--rtol", rtol).code == code


def test_tolerance_does_not_hide_what_counts(compared: Callable[..., Any]) -> None:
    before = {"n": np.array([1000]), "f": np.array([1.0, np.inf]), "b": np.array([True])}
    after = {"n": np.array([1001]), "f": np.array([np.nan, 1.0]), "b": np.array([False])}
    changed = {change["name"]: change for change in compared(before, after, "--rtol", 0.5).json["changed"]}
    assert {name: change["n_changed"] for name, change in changed.items()} == {"n": 1, "f": 2, "b": 1}
    assert changed["f"]["max_abs"] == "nan"


def test_nan_is_nan_and_every_bit_counts(compared: Callable[..., Any]) -> None:
    before = {"same": np.array([np.nan, 1.0]), "zero": np.array([0.0, 1.0]), "narrow": np.ones(2, ml_dtypes.bfloat16)}
    after = {"same": np.array([np.nan, 1.0]), "zero": np.array([-0.0, 1.0]), "narrow": np.ones(2, ml_dtypes.bfloat16)}
    (change,) = compared(before, after).json["changed"]
    assert (change["name"], change["max_abs"]) == ("zero", 0.0)


def test_dtypes_without_differences(compared: Callable[..., Any]) -> None:
    before = {
        "t": np.array(["a", "b"]),
        "d": np.array(["2020-01-01"], "M8[s]"),
        "z": np.array([1 + 1j]),
        "e": np.empty(0),
    }
    after = {
        "t": np.array(["a", "c"]),
        "d": np.array(["2021-01-01"], "M8[s]"),
        "z": np.array([1 - 1j]),
        "e": np.empty(0),
    }
    changed = {change["name"]: change["max_abs"] for change in compared(before, after).json["changed"]}
    assert changed == {"t": None, "d": None, "z": 2.0}


def test_large_tensors_are_compared_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, compared: Callable[..., Any]
) -> None:
    monkeypatch.setattr("hpcckpt.restoring.segments.pieces.__defaults__", (1000,))
    before = np.random.default_rng(0).normal(size=(7, 1, 41, 13))
    after = before.copy()
    after[6, 0, 40, 12] += 1
    (change,) = compared({"w": before}, {"w": after}).json["changed"]
    assert (change["n_changed"], change["n_elements"]) == (1, before.size)
    assert change["max_abs"] == pytest.approx(1)


def test_objects_count_unless_left_out(cli: Cli, tmp_path: Path) -> None:
    one = save_one(tmp_path / "a", {"w": np.ones(2)}, {"lr": 0.1, "nested": {"n": 1}})
    other = save_one(tmp_path / "b", {"w": np.ones(2)}, {"lr": 0.01, "nested": {}})
    result = cli("diff", one, other, "--json")
    assert result.code == 5
    assert {each["name"] for each in result.json["objects"]} == {"user/lr", "user/nested", "user/nested/n"}
    assert cli("diff", one, other, "--no-objects").code == 0
    assert cli("diff", one, other, "--only", "w").code == 0


def test_times_of_a_checkpoint_manager_are_no_difference(cli: Cli, tmp_path: Path) -> None:
    times = [{"timestamps": {"60": at}, "last_preserved_timestamp": at, "other": 1} for at in (1.5, 2.5)]
    one, other = (
        save_one(tmp_path / str(number), {"w": np.ones(2)}, {"tensorflow.CheckpointManager": each})
        for number, each in enumerate(times)
    )
    assert cli("diff", one, other).code == 0


def test_usage(cli: Cli, saved: Path) -> None:
    assert cli("diff", saved).code == 2
    assert cli("diff", saved, 1, 2, 3).code == 2
    assert cli("diff", saved, 10, 20, "--only", "nothing*").code == 2


def test_damage_exits_with_3_and_absence_with_4(cli: Cli, saved: Path, damage: Any) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    assert cli("diff", saved, 10, 30).code == 3
    assert cli("diff", saved, 10, 99).code == 4
    assert not (saved / ".pins").exists() or not list((saved / ".pins").iterdir())


def test_two_directories_and_a_step_name_the_steps_to_give(cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("diff", saved, saved, 20)
    assert result.code == 2
    assert f"give {saved}/step-0000000020 {saved}/step-0000000020" in result.err
