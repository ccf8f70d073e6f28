"""``hpcckpt verify``."""

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


def test_a_whole_step_is_ok(cli: Cli, saved: Path) -> None:
    result = cli("verify", saved, "--json")
    assert result.code == 0
    assert set(result.json) == {"directory", "ok", "skipped", "steps"}
    (step,) = result.json["steps"]
    assert (step["step"], step["ok"], step["files"], step["tensors"], step["damage"]) == (30, True, 3, 7, [])
    assert cli("verify", saved, 20).out.startswith("step 20: OK  7 tensors, 3 files, ")


def test_a_flipped_bit_exits_with_3_and_names_tensor_file_bytes_and_the_next_move(
    cli: Cli, saved: Path, damage: Any
) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    result = cli("verify", saved)
    assert result.code == 3
    assert "step 30: CORRUPT" in result.out
    assert "data/rank-00000.safetensors, bytes" in result.out
    assert "tensor '" in result.out
    assert f"use step 20 instead; check it first: hpcckpt verify {saved} 20" in result.err
    older, step = cli("verify", saved, "--json").json["steps"]
    assert (older["step"], older["ok"]) == (20, True)
    (block,) = step["damage"]
    assert set(block) == {"tensor", "file", "offset", "nbytes", "reason", "is_proven"}
    assert "use step 20" in step["next"]


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_counts(threads: int, cli: Cli, saved: Path, damage: Any) -> None:
    file = damage.first_file(saved / "step-0000000030")
    for offset in [*range(0, 4096, 512), *range(4096, file.stat().st_size, 397)]:
        damage.flip(file, offset)
        assert cli("verify", saved, 30, "--threads", threads).code == 3, offset
        damage.flip(file, offset)
    assert cli("verify", saved, 30).code == 0


def test_all_steps(cli: Cli, saved: Path, damage: Any) -> None:
    damage.cut(damage.first_file(saved / "step-0000000010"))
    damage.flip(damage.first_file(saved / "step-0000000020"), 60)
    result = cli("verify", saved, "--all", "--json")
    assert result.code == 3
    assert [step["ok"] for step in result.json["steps"]] == [False, False, True]
    assert "bytes instead of" in result.json["steps"][0]["problem"]
    text = cli("verify", saved, "--all").out.splitlines()
    assert [line.split("  ")[0] for line in text] == ["step 10: CORRUPT", "step 20: CORRUPT", "step 30: OK"]


def test_all_and_a_step_are_too_much(cli: Cli, saved: Path) -> None:
    assert cli("verify", saved, 10, "--all").code == 2


def test_a_step_that_cannot_be_checked_makes_the_result_partial(cli: Cli, saved: Path, damage: Any) -> None:
    damage.reseal(saved / "step-0000000020" / "manifest.json", lambda document: document.update(format=99))
    result = cli("verify", saved, "--all", "--json")
    assert result.code == 6
    assert result.json["ok"] is False
    assert [step["step"] for step in result.json["skipped"]] == [20]
    assert "step 20: NOT CHECKED" in cli("verify", saved, "--all").out
    assert cli("verify", saved, 20).code == 1


def test_values_finds_nan_and_infinities(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"good": np.ones(3), "bad": np.array([1, np.nan, -np.inf], np.float32), "text": np.array(["a"])})
    assert cli("verify", tmp_path / "run").code == 0
    result = cli("verify", tmp_path / "run", "--values", "--json")
    assert result.code == 5
    (found,) = result.json["steps"][0]["not_finite"]
    assert (found["name"], found["n_nan"], found["n_inf"], found["count"]) == ("bad", 1, 1, 3)
    assert "tensor 'bad': 1 NaN, 1 infinite of 3" in cli("verify", tmp_path / "run", "--values").out


@pytest.mark.parametrize("dtype", ["float16", "float64", "longdouble", "complex64", "bfloat16", "float8_e5m2"])
def test_values_knows_every_type_that_has_nan(dtype: str, cli: Cli, tmp_path: Path) -> None:
    values = np.array([1, np.nan]).astype(getattr(ml_dtypes, dtype, dtype))
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"x": values})
    assert cli("verify", tmp_path / "run", "--values").code == 5


def test_values_of_a_sound_step(cli: Cli, saved: Path) -> None:
    result = cli("verify", saved, "--values")
    assert result.code == 0
    assert "no NaN or infinity" in result.out


def test_no_step_exits_with_4(cli: Cli, tmp_path: Path) -> None:
    assert cli("verify", tmp_path).code == 4
    assert cli("verify", tmp_path, "--all").code == 4


def test_damage_that_verify_finds_is_shown_by_list_and_passed_over_by_a_restart(
    cli: Cli, saved: Path, damage: Any
) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    assert cli("list", saved, "--json").json["resume_step"] == 30
    found = cli("verify", saved)
    assert found.code == 3
    assert f"recorded in {saved}: restarts do not use step 30" in found.err
    listed = cli("list", saved, "--json").json
    assert (listed["resume_step"], listed["checkpoints"][-1]["valid"]) == (20, False)
    assert "hpcckpt verify found damage on " in listed["checkpoints"][-1]["problem"]
    assert "hpcckpt verify found damage on " in cli("info", saved, 30, "--json").json["damage"]
    repaired = cli("repair", saved, 30, "--yes")
    assert (repaired.code, "only manifests are rebuilt" in repaired.out) == (3, True)
    with hc.Checkpointer(saved) as ckpt:
        assert ckpt.latest_step() == 20
    again = cli("verify", saved, "--json")  # what latest passes over is checked again
    assert (again.code, [step["ok"] for step in again.json["steps"]]) == (3, [True, False])


def test_a_later_verify_that_finds_the_step_whole_removes_the_record(cli: Cli, saved: Path, damage: Any) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    assert cli("verify", saved).code == 3
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    result = cli("verify", saved, 30)
    assert result.code == 0
    assert "step 30 was recorded as damaged and is whole: the record is removed" in result.err
    assert cli("list", saved, "--json").json["resume_step"] == 30
    assert not (saved / ".damaged").exists()


def test_damage_that_sizes_show_needs_no_record(cli: Cli, saved: Path, damage: Any) -> None:
    damage.cut(damage.first_file(saved / "step-0000000030"))
    assert cli("verify", saved).code == 3
    assert not (saved / ".damaged").exists()


def test_if_no_step_can_be_restored_all_are_checked_and_what_was_repaired_is_lifted(
    cli: Cli, saved: Path, damage: Any
) -> None:
    files = [damage.first_file(step) for step in sorted(saved.glob("step-*"))]
    for file in files:
        damage.flip(file, -1)
    assert cli("verify", saved, "--all").code == 3
    assert f"nothing to resume from; 'hpcckpt verify {saved} --all' checks them again" in cli("list", saved).err
    for file in files:  # as if the backend were repaired
        damage.flip(file, -1)
    result = cli("verify", saved)
    assert result.code == 0
    assert result.err.count("was recorded as damaged and is whole: the record is removed") == len(files)
    assert hc.latest_checkpoint(saved) == saved / "step-0000000030"


def test_a_step_that_may_not_be_read_is_left_out_and_the_others_are_checked(cli: Any, unreadable: Path) -> None:
    result = cli("verify", unreadable, "--all", "--json")
    assert result.code == 6
    assert [each["step"] for each in result.json["steps"] if each["ok"]] == [10, 30]
    (skipped,) = result.json["skipped"]
    assert skipped["step"] == 20
    assert skipped["problem"].endswith("make it readable for this user")


def test_a_damaged_step_is_not_recommended_where_it_cannot_be_recorded(cli: Cli, saved: Path, damage: Any) -> None:
    (saved / ".damaged").touch()
    for step in (20, 30):
        damage.flip(damage.first_file(saved / f"step-00000000{step}"), -1)
    result = cli("verify", saved, "--all")
    assert result.code == 3
    assert result.err.count("use step 10 instead") == 2
    steps = cli("verify", saved, "--all", "--json").json["steps"]
    assert [each["next"][:11] for each in steps] == ["", "use step 10", "use step 10"]
