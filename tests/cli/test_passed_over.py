"""What the tool says of newer steps that are damaged, and of checkpoints that are one level down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.format import layout

Cli = Callable[..., Any]
NEWEST = "step-0000000030"
REPAIR = "use an older step, or 'hpcckpt repair', which may rebuild it"


@pytest.fixture
def cut(saved: Path, damage: Any) -> Path:
    """A run of which the newest step is truncated: 20 can be restored, 30 cannot."""
    damage.cut(damage.first_file(saved / NEWEST))
    return saved


# -- newer steps that are damaged ------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["latest"]])
def test_verify_names_a_truncated_newest_step_and_exits_with_3(words: list[str], cli: Cli, cut: Path) -> None:
    result = cli("verify", cut, *words)
    assert result.code == 3
    sound, broken = result.out.splitlines()
    assert sound.startswith("step 20: OK")
    assert broken.startswith("step 30: CORRUPT  data/rank-00000.safetensors has ")
    assert f"use step 20 instead; check it first: hpcckpt verify {cut} 20" in result.err


def test_verify_tells_programs_of_every_newer_step_that_is_not_whole(cli: Cli, cut: Path) -> None:
    (cut / "step-0000000020" / layout.MANIFEST).unlink()
    result = cli("verify", cut, "--json")
    assert (result.code, result.json["ok"]) == (3, False)
    assert [(step["step"], step["ok"]) for step in result.json["steps"]] == [(10, True), (20, False), (30, False)]
    assert "no manifest" in result.json["steps"][1]["problem"]
    assert "bytes instead of" in result.json["steps"][2]["problem"]


def test_verify_leaves_out_a_newer_step_of_a_newer_format_and_exits_with_6(cli: Cli, saved: Path, damage: Any) -> None:
    damage.reseal(saved / NEWEST / layout.MANIFEST, lambda document: document.update(format=99))
    result = cli("verify", saved, "--json")
    assert (result.code, result.json["ok"]) == (6, False)
    assert [step["step"] for step in result.json["steps"]] == [20]
    assert [step["step"] for step in result.json["skipped"]] == [30]


def test_verify_of_a_step_that_is_named_asks_after_no_other(cli: Cli, cut: Path) -> None:
    for words in ([cut, 20], [cut, "best"], [cut / "step-0000000020"]):
        result = cli("verify", *words)
        assert result.code == 0
        assert "step 30" not in result.out + result.err


@pytest.mark.parametrize("verb", ["info", "restore", "copy", "reshard", "convert", "tensors"])
def test_a_newer_step_that_is_passed_over_is_told_once(verb: str, cli: Cli, cut: Path, tmp_path: Path) -> None:
    words = {
        "restore": ["--out", tmp_path / "out.npz"],
        "copy": [tmp_path / "copy"],
        "reshard": ["--files", 1, "--out", tmp_path / "one", "--drop-per-rank"],
        "convert": [tmp_path / "out.npz"],
    }
    result = cli(verb, cut, *words.get(verb, []))
    assert result.code == 0
    warning = "hpcckpt: warning: step 30 is passed over for step 20: data/rank-00000.safetensors has "
    assert result.err.count(warning) == 1


def test_nothing_is_passed_over_where_a_step_is_named_or_all_are_whole(cli: Cli, saved: Path, damage: Any) -> None:
    assert "passed over" not in cli("info", saved).err
    damage.cut(damage.first_file(saved / NEWEST))
    for words in ([saved, 10], [saved, "best"], [saved / "step-0000000010"]):
        assert "passed over" not in cli("info", *words).err


def test_of_many_that_are_passed_over_five_are_named(cli: Cli, saved: Path) -> None:
    for step in range(31, 38):
        (saved / layout.step_dirname(step)).mkdir()
    lines = [line for line in cli("info", saved).err.splitlines() if "warning" in line]
    assert [line.split()[3] for line in lines[:-1]] == ["33", "34", "35", "36", "37"]
    assert lines[-1].endswith(f"and 2 more; see 'hpcckpt list {saved}'")


# -- checkpoints one level down ----------------------------------------------------------------------


@pytest.fixture
def cycles(save: Callable[..., Path], tmp_path: Path) -> Path:
    """A directory as that of ``hpcckpt train``, with two cycles."""
    for name in ("cycle-2", "cycle-10"):
        save(tmp_path / "trained" / name, steps=(1,), n_ranks=1)
    (tmp_path / "trained" / "logs").mkdir()
    return tmp_path / "trained"


@pytest.mark.parametrize(
    "words",
    [
        ["list", "{run}"],
        ["info", "{run}"],
        ["info", "{run}", "1"],
        ["verify", "{run}"],
        ["verify", "{run}", "--all"],
        ["prune", "{run}", "--keep-last", "1"],
        ["prune", "{run}", "--dry-run"],
        ["copy", "{run}", "{run}-copy"],
        ["copy", "{run}", "{run}-copy", "all"],
        ["restore", "{run}", "--out", "{run}.npz"],
        ["convert", "{run}", "{run}.npz"],
    ],
)
def test_where_nothing_is_the_error_says_in_which_directories_below_it_is(
    words: list[str], cli: Cli, cycles: Path
) -> None:
    result = cli(*(word.format(run=cycles) for word in words))
    assert result.code == 4
    assert result.err.endswith(f"; its checkpoints are in {cycles}/cycle-2 and {cycles}/cycle-10\n")
    assert "nothing to remove" not in result.err


def test_directories_that_hold_runs_are_named_too_a_few_of_them(cli: Cli, save: Any, cycles: Path) -> None:
    parent = cycles.parent
    assert cli("list", parent).err.endswith(f"; its checkpoints are in {cycles}\n")
    for name in "abcd":
        save(parent / name, steps=(1,), n_ranks=1)
    names = ", ".join(str(parent / name) for name in "abcd")
    assert cli("list", parent).err.endswith(f"; its checkpoints are in {names} and others\n")


def test_an_empty_directory_and_a_link_point_nowhere(cli: Cli, saved: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "cycle-1").symlink_to(saved)
    result = cli("list", empty)
    assert (result.code, result.err.strip()) == (4, f"hpcckpt: error: no checkpoint in {empty}")
    assert "nothing to remove" in cli("prune", empty).err


# -- damaged manifests -------------------------------------------------------------------------------


def test_of_a_damaged_manifest_list_and_info_say_that_it_may_be_rebuilt_and_it_is(
    cli: Cli, saved: Path, damage: Any
) -> None:
    damage.flip(saved / NEWEST / layout.MANIFEST, 100)
    for result in (cli("list", saved), cli("info", saved, 30), cli("info", saved)):
        assert f"the manifest is damaged; {REPAIR}" in result.err
    assert cli("repair", saved, "--yes").code == 0
    assert cli("verify", saved).code == 0
