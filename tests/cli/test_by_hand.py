"""What ``repair`` and ``reshard`` change in a run by hand is in its journal, and in what shows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.rundir.journal import NAME, read_journal
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.tools.report.read_history import read_run_history
from hpcckpt.tools.report.watch_view import frame_of, lines_of

Cli = Callable[..., Any]


def told(run: Path) -> list[dict[str, Any]]:
    """Return what the journal has of changes by hand, without the times."""
    return [{key: entry[key] for key in entry if key != "time"} for entry in read_journal(run) if "by" in entry]


def by_hand(run: Path) -> str:
    return dict(lines_of(frame_of(read_run_history(run), time.time())))["by hand"]


def test_a_repaired_step_is_told(cli: Cli, saved: Path) -> None:
    (saved / layout.step_dirname(20) / layout.MANIFEST).unlink()
    assert cli("repair", saved, "--yes").code == 0
    manifest = discovery.read_manifest(saved / layout.step_dirname(20))
    facts = {"step": 20, "save_id": manifest.save_id, "bytes": manifest.nbytes}
    assert told(saved) == [{"event": "repaired", **facts, "by": "repair"}]
    assert by_hand(saved).startswith("repaired step 20 (hpcckpt repair)")
    assert {save.step: save.state for save in read_run_history(saved).saves} == {
        10: "kept",
        20: "kept",
        30: "kept",
    }


def test_evidence_that_gets_its_name_back_is_told(cli: Cli, saved: Path) -> None:
    os.rename(saved / layout.step_dirname(20), saved / layout.bad_dirname("x"))
    assert cli("repair", saved / layout.bad_dirname("x"), "--yes").code == 0
    assert [(entry["event"], entry["step"]) for entry in told(saved)] == [("repaired", 20)]


def test_what_cannot_be_repaired_is_not_told(cli: Cli, saved: Path) -> None:
    step = saved / layout.step_dirname(20)
    (step / layout.MANIFEST).unlink()
    next((step / "data").iterdir()).unlink()
    assert cli("repair", saved, "--yes").code == 3
    assert told(saved) == []


def test_a_resharded_step_is_told_as_the_save_that_it_is_now(cli: Cli, saved: Path) -> None:
    assert cli("reshard", saved, "30", "--files", 2, "--drop-per-rank", "--in-place", "--yes").code == 0
    manifest = discovery.read_manifest(saved / layout.step_dirname(30))
    facts = {"step": 30, "save_id": manifest.save_id, "bytes": manifest.nbytes, "n_ranks": 2}
    assert told(saved) == [{"event": "resharded", **facts, "by": "reshard"}]
    assert by_hand(saved).startswith("resharded step 30 (hpcckpt reshard)")
    assert "resharded step 30" in cli("report", saved, "-o", "-").out


def test_a_step_that_is_resharded_into_a_new_directory_begins_no_journal_there(
    cli: Cli, saved: Path, tmp_path: Path
) -> None:
    assert cli("reshard", saved, "30", "--files", 2, "--drop-per-rank", "--out", tmp_path / "out").code == 0
    assert NAME not in os.listdir(tmp_path / "out")
    assert told(saved) == []


def test_what_is_left_of_a_step_that_was_replaced_in_place_is_no_failure(
    cli: Cli, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a file that somebody reads keeps its directory from going."""

    def refuse(_: Path) -> None:
        raise OSError(39, "Directory not empty")

    words = ("reshard", saved, "30", "--files", 2, "--drop-per-rank", "--in-place", "--yes")
    with monkeypatch.context() as patch:
        patch.setattr("hpcckpt.core.files.remove_tree", refuse)
        assert cli(*words).code == 0
    assert discovery.read_manifest(saved / layout.step_dirname(30)).n_ranks == 2
    Workspace.at(saved).retire(layout.step_dirname(10))
    assert cli("verify", saved).code == 0
