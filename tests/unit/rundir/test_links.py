"""Symbolic links in a run directory lead nowhere: what they point to is neither read, written nor removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.core.options import Options
from hpcckpt.format import layout
from hpcckpt.rundir import discovery, journal, pins
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.workspace import Workspace

LONG_AGO_S = 2 * pins.READER_PIN_EXPIRY_S


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory of somebody's, with old files of his."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name in ("thesis.tex", layout.step_dirname(1), f"{layout.step_dirname(1)}.reader-x-1"):
        (place / name).write_text("mine", encoding="utf-8")
        os.utime(place / name, (time.time() - LONG_AGO_S,) * 2)
    return place


def contents(place: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in place.iterdir()}


def save(run: Path, *steps: int, max_to_keep: int | None = None) -> list[hc.SavedStep]:
    with hc.Checkpointer(run, max_to_keep=max_to_keep) as ckpt:
        return [ckpt.save(step, {"w": np.full(9, float(step))}).result() for step in steps]


def test_pins_that_are_a_link_cost_nobody_his_files_and_no_step(run_dir, elsewhere):
    save(run_dir, 1, 2)
    before = contents(elsewhere)
    (run_dir / layout.PINS).symlink_to(elsewhere)
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        assert ckpt.restore({"w": np.zeros(9)}).step == 2
        saved = ckpt.save(3, {"w": np.zeros(9)}).result()
        with pytest.raises(errors.StorageError, match="symbolic link"):
            ckpt.pin(3)
    assert "retention after step 3 failed" in saved.warnings[0]
    assert "symbolic link" in saved.warnings[0]
    assert contents(elsewhere) == before
    assert discovery.step_numbers(run_dir) == [1, 2, 3]


def test_a_pin_that_is_a_link_does_not_empty_what_it_points_to(run_dir, elsewhere):
    save(run_dir, 1)
    (run_dir / layout.PINS).mkdir()
    (run_dir / layout.PINS / layout.step_dirname(1)).symlink_to(elsewhere / "thesis.tex")
    with pytest.raises(errors.StorageError):
        pins.pin(run_dir, 1)
    assert contents(elsewhere)["thesis.tex"] == "mine"


def test_what_is_no_pin_stays_where_the_pins_are(run_dir):
    save(run_dir, 1)
    (run_dir / layout.PINS).mkdir()
    for name in ("notes.txt", f"{layout.step_dirname(1)}.reader-x-1"):
        (run_dir / layout.PINS / name).touch()
        os.utime(run_dir / layout.PINS / name, (time.time() - LONG_AGO_S,) * 2)
    save(run_dir, 2)
    assert os.listdir(run_dir / layout.PINS) == ["notes.txt"]


def test_while_the_pins_cannot_be_read_nothing_is_retired(run_dir):
    save(run_dir, 1, 2)
    (run_dir / layout.PINS).touch()
    with pytest.raises(errors.StorageError, match="look which steps are pinned"), RunLock.take(run_dir) as lock:
        Workspace.at(run_dir).retain(lock, Options(max_to_keep=1))
    assert discovery.step_numbers(run_dir) == [1, 2]
    assert pins.pins(run_dir) == set()


def test_a_step_that_is_a_link_to_an_archive_is_retired_and_the_archive_stays(run_dir, tmp_path):
    archive = tmp_path / "archive"
    save(archive, 1)
    save(run_dir, 2)
    name = layout.step_dirname(1)
    (run_dir / name).symlink_to(archive / name)
    Workspace.at(run_dir).retire(name)
    assert not os.path.lexists(run_dir / name)
    assert hc.load(archive)["w"].tolist() == [1.0] * 9


@pytest.mark.parametrize(
    "read",
    [
        lambda run: hc.load(run, step=1),
        lambda run: hc.load(run / layout.step_dirname(1)),
        lambda run: hc.load(f"{run / layout.step_dirname(1)}/"),
        lambda run: hc.info(run, 1),
        lambda run: hc.info(run / layout.step_dirname(1)),
        lambda run: discovery.read_manifest(run / layout.step_dirname(1)),
    ],
    ids=["load a step", "load its path", "load its path with a slash", "info", "info of its path", "manifest"],
)
def test_a_step_that_is_a_link_is_not_read_where_it_is_asked_for_by_name(run_dir, tmp_path, read):
    save(tmp_path / "private", 1)
    save(run_dir, 2)
    (run_dir / layout.step_dirname(1)).symlink_to(tmp_path / "private" / layout.step_dirname(1))
    with pytest.raises(errors.CorruptError, match=r"step-0000000001.*is a symbolic link.*not followed"):
        read(run_dir)


def test_a_run_directory_that_is_a_link_is_read(run_dir, tmp_path):
    save(run_dir, 1)
    (tmp_path / "run-link").symlink_to(run_dir)
    (tmp_path / "best").symlink_to(run_dir / layout.step_dirname(1))
    assert hc.load(tmp_path / "run-link", step=1)["w"][0] == 1
    assert hc.load(tmp_path / "best")["w"][0] == 1
    assert hc.info(tmp_path / "run-link").step == 1


def test_a_journal_that_grows_too_large_is_not_cut_into_what_a_link_points_to(run_dir, elsewhere, monkeypatch):
    save(run_dir, 1)
    (run_dir / f".{journal.NAME}.draft").symlink_to(elsewhere / "thesis.tex")
    monkeypatch.setattr(journal, "MAX_NBYTES", 1_000)
    Journal(run_dir, by="prune").removed(list(range(256)))
    assert contents(elsewhere)["thesis.tex"] == "mine"
    assert (run_dir / journal.NAME).stat().st_size < 2_000
    assert not (run_dir / journal.NAME).is_symlink()
