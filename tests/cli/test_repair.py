"""``hpcckpt repair``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.format import layout
from hpcckpt.native.posix_files import PosixFileSystem

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


def step(run: Path, number: int) -> Path:
    return run / f"step-{number:010d}"


def lose_manifest(run: Path, *numbers: int) -> None:
    for number in numbers:
        (step(run, number) / "manifest.json").unlink()


def damage_data(run: Path, number: int) -> None:
    path = step(run, number) / "data" / "rank-00001.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def test_every_step_that_lacks_a_manifest_is_repaired(cli: Cli, saved: Path) -> None:
    before = hc.load(step(saved, 30))
    lose_manifest(saved, 20, 30)
    result = cli("repair", saved, "--yes", "--json")
    assert result.code == 0
    assert set(result.json) == {"directory", "dry_run", "repaired", "failed"}
    assert [each["step"] for each in result.json["repaired"]] == [20, 30]
    assert result.json["repaired"][0]["lost"] == ["objects", "metrics", "environment"]
    assert result.json["failed"] == []
    after = hc.load(step(saved, 30))
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    assert cli("verify", saved, "--all").code == 0


def test_one_step_can_be_named(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 20, 30)
    result = cli("repair", saved, 20, "--yes")
    assert result.code == 0
    assert result.out.startswith("repaired step-0000000020: step 20, ")
    assert "are lost: restore such a step with strict=False" in result.err
    assert not (step(saved, 30) / "manifest.json").exists()


def test_the_directory_of_a_step_will_do(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 30)
    assert cli("repair", step(saved, 30), "--yes").code == 0
    assert hc.latest_checkpoint(saved) == step(saved, 30)


def test_a_run_without_damage_has_nothing_to_repair(cli: Cli, saved: Path) -> None:
    result = cli("repair", saved)
    assert (result.code, result.out) == (0, "")
    assert "nothing to repair" in result.err
    assert cli("repair", saved, 30, "--yes", "--json").json["repaired"] == []


def test_a_set_that_is_not_complete_exits_with_3_and_names_what_is_missing(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 30)
    (step(saved, 30) / "data" / "rank-00001.safetensors").unlink()
    result = cli("repair", saved, "--yes")
    assert result.code == 3
    assert "step-0000000030: CORRUPT  cannot be repaired:" in result.out
    assert "data/rank-00001.safetensors is missing" in result.out
    assert cli("repair", saved, "--yes", "--json").json["failed"][0]["problems"] == [
        "data/rank-00001.safetensors is missing"
    ]


def test_damaged_bytes_exit_with_3_and_are_named(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 30)
    damage_data(saved, 30)
    result = cli("repair", saved, "--yes", "--json")
    assert result.code == 3
    (block,) = result.json["failed"][0]["damage"]
    assert block["file"] == "data/rank-00001.safetensors"
    assert not (step(saved, 30) / "manifest.json").exists()


def test_a_step_whose_files_are_gone_cannot_be_helped_by_a_manifest(cli: Cli, saved: Path) -> None:
    (step(saved, 30) / "data" / "rank-00001.safetensors").unlink()
    result = cli("repair", saved, 30, "--yes")
    assert result.code == 3
    assert "data/rank-00001.safetensors is missing" in result.out


def test_a_part_that_is_repaired_exits_with_6(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 20, 30)
    damage_data(saved, 30)
    result = cli("repair", saved, "--yes", "--json")
    assert result.code == 6
    assert [each["step"] for each in result.json["repaired"]] == [20]
    assert [Path(each["path"]).name for each in result.json["failed"]] == ["step-0000000030"]


def test_a_dry_run_verifies_and_changes_nothing(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 20, 30)
    damage_data(saved, 30)
    result = cli("repair", saved, "--dry-run")
    assert result.code == 6
    assert "would repair step-0000000020" in result.out
    assert "checksum mismatch in data/rank-00001.safetensors" in result.out
    assert not (step(saved, 20) / "manifest.json").exists()
    assert not (saved / ".lock").exists()


def test_it_asks_first(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 30)
    declined = cli("repair", saved, answer="n\n")
    assert declined.code == 1
    assert "Repair 1 checkpoint?" in declined.err
    assert not (step(saved, 30) / "manifest.json").exists()
    assert cli("repair", saved, answer="y\n").code == 0
    assert (step(saved, 30) / "manifest.json").exists()
    lose_manifest(saved, 30)
    assert cli("repair", saved).code == 2


def test_a_running_job_makes_it_exit_with_8(cli: Cli, busy: Path) -> None:
    lose_manifest(busy, 30)
    assert cli("repair", busy, "--yes").code == 8
    assert not (step(busy, 30) / "manifest.json").exists()


def test_evidence_gets_its_name_back_if_it_is_whole(cli: Cli, saved: Path) -> None:
    step(saved, 30).rename(saved / ".bad-0123456789ab")
    result = cli("repair", saved / ".bad-0123456789ab", "--yes", "--json")
    assert result.code == 0
    assert result.json["repaired"][0]["path"] == str(step(saved, 30))
    assert result.json["repaired"][0]["lost"] == []
    assert hc.latest_checkpoint(saved) == step(saved, 30)


def test_a_name_that_is_taken_is_said(cli: Cli, saved: Path) -> None:
    shutil.copytree(step(saved, 30), saved / ".bad-0123456789ab")
    result = cli("repair", saved / ".bad-0123456789ab", "--yes")
    assert result.code == 3
    assert "is there; move that one away first" in result.out


@pytest.mark.parametrize(("words", "code"), [(["nowhere"], 4), (["RUN", "25"], 4), (["RUN", "latest"], 2)])
def test_what_is_not_there_is_said(cli: Cli, saved: Path, words: list[str], code: int) -> None:
    assert cli("repair", *[str(saved) if word == "RUN" else word for word in words]).code == code


def test_what_was_never_committed_is_refused(cli: Cli, saved: Path) -> None:
    (saved / ".retired-0123456789ab").mkdir()
    assert cli("repair", saved / ".retired-0123456789ab", "--yes").code == 2


def test_list_and_info_show_a_repaired_step(cli: Cli, saved: Path) -> None:
    lose_manifest(saved, 30)
    assert cli("repair", saved, "--yes", "-q").err == ""
    assert cli("list", saved, "--json").json["resume_step"] == 30
    shown = cli("info", saved).out
    assert "objects, metrics, environment were lost" in shown
    assert "weights: only weights come back" in shown


def test_where_no_step_is_the_error_names_the_places_below(cli: Cli, save: Any, tmp_path: Path) -> None:
    run = tmp_path / "cycles"
    (save(run / "cycle-1", (10,)) / "step-0000000010" / "manifest.json").unlink()
    (tmp_path / "empty").mkdir()
    for directory, hint in ((run, f"; its checkpoints are in {run / 'cycle-1'}"), (tmp_path / "empty", "")):
        result = cli("repair", directory)
        assert (result.code, result.err) == (4, f"hpcckpt: error: no checkpoint in {directory}{hint}\n")


def test_a_step_that_may_not_be_read_keeps_no_other_from_being_repaired(cli: Any, unreadable: Path) -> None:
    (unreadable / layout.step_dirname(30) / layout.MANIFEST).unlink()
    result = cli("repair", unreadable, "--yes", "--json")
    assert result.code == 6
    assert [each["step"] for each in result.json["repaired"]] == [30]
    (failed,) = result.json["failed"]
    assert failed["path"].endswith(layout.step_dirname(20))
    assert failed["problems"][0].endswith("make it readable for this user")


def test_a_step_that_a_running_job_retires_meanwhile_needs_no_repair(cli: Cli, saved: Path, monkeypatch: Any) -> None:
    names = PosixFileSystem.names

    def retire(files: PosixFileSystem, directory: Any) -> Any:
        found = names(files, directory)
        shutil.rmtree(step(saved, 10), ignore_errors=True)
        return found

    monkeypatch.setattr(PosixFileSystem, "names", retire)
    result = cli("repair", saved)
    assert (result.code, result.out) == (0, "")
