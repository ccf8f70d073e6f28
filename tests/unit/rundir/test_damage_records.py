"""Damage that a reader found is recorded: `list`, restarts and retention use it, until the step is found whole."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.backends.rankfile.backend import RankfileBackend
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import damage_records as records, discovery
from hpcckpt.testing.groups import ThreadRanks
from hpcckpt.tools.convert.export import export_checkpoint

pytestmark = pytest.mark.counts(1, 2)


def state(value: float, rank: int = 0) -> dict[str, Any]:
    return {"w": np.full(4_000, float(value)), "n": hc.PerRank(np.full(3, value + rank, float))}


def save_steps(ranks: Any, run: Path, *steps: int, **options: Any) -> None:
    def body(comm: Any) -> None:
        with hc.Checkpointer(run, comm=comm, **{"max_to_keep": None, **options}) as ckpt:
            for step in steps:
                ckpt.save(step, state(step, comm.rank))

    ranks(body)


def restored(ranks: Any, run: Path, step: int | None = None, **options: Any) -> int:
    def body(comm: Any) -> int:
        with hc.Checkpointer(run, comm=comm) as ckpt:
            return ckpt.restore(state(0, comm.rank), step, **options).step

    return int(ranks(body)[0])


def first_file(run: Path, step: int) -> Path:
    return run / layout.step_dirname(step) / "data" / "rank-00000.safetensors"


@pytest.fixture
def damaged(ranks: Any, run_dir: Path, damage: Any) -> Path:
    """A run with steps 1, 2 and 3; the last has a changed byte, which no size and no manifest shows."""
    save_steps(ranks, run_dir, 1, 2, 3)
    ranks.on_root(lambda: damage.flip(first_file(run_dir, 3), -100))
    return run_dir


def test_a_restore_that_finds_damage_lets_later_restarts_and_readers_know(ranks, damaged):
    assert discovery.latest_step(damaged) == 3
    assert restored(ranks, damaged) == 2
    info = discovery.inspect_step(damaged, 3)
    assert info.is_recorded
    assert "a restore found damage on " in info.problem
    assert re.search(r" found damage on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: ", info.problem)
    assert "checksum mismatch" in info.problem
    assert discovery.latest_step(damaged) == 2
    assert hc.latest_checkpoint(damaged) == damaged / layout.step_dirname(2)


READERS = {
    "load": hc.load,
    "load of one tensor": lambda run: hc.load(run / layout.step_dirname(3), "w"),
    "export": lambda run: export_checkpoint(run / layout.step_dirname(3), run.with_name("exported.npz")),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("at", [-100, 20], ids=["values", "header"])
def test_any_reader_that_finds_damage_lets_restarts_know(tmp_path, damage, reader, at):
    ranks, run = ThreadRanks(1), tmp_path / "run"
    save_steps(ranks, run, 1, 2, 3)
    damage.flip(first_file(run, 3), at)
    with pytest.raises(errors.CorruptError):
        READERS[reader](run)
    assert "a reader found damage on " in discovery.inspect_step(run, 3).problem
    assert hc.load(run)["w"][0] == 2.0
    assert restored(ranks, run) == 2


def test_a_reader_that_may_not_write_raises_the_same_error_and_changes_nothing(tmp_path, damage, monkeypatch):
    ranks, run = ThreadRanks(1), tmp_path / "run"
    save_steps(ranks, run, 1)
    damage.flip(first_file(run, 1), -100)
    before = sorted(run.rglob("*"))

    def refuse(path, *_args, **_options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(errors.CorruptError, match="checksum mismatch"):
        hc.load(run)
    assert sorted(run.rglob("*")) == before


def test_a_copy_of_a_step_under_another_name_has_no_record(tmp_path, damage):
    save_steps(ThreadRanks(1), tmp_path / "run", 1)
    shutil.copytree(tmp_path / "run" / layout.step_dirname(1), tmp_path / "copy")
    damage.flip(tmp_path / "copy" / "data" / "rank-00000.safetensors", -100)
    with pytest.raises(errors.CorruptError):
        hc.load(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "run"]


def test_a_step_with_a_record_is_not_read_again_by_a_restart(ranks, damaged, damage):
    assert restored(ranks, damaged) == 2
    ranks.on_root(lambda: damage.flip(first_file(damaged, 3), -100))  # whole again, but not verified
    assert restored(ranks, damaged) == 2


@pytest.mark.parametrize("call", ["lstat", "fstat"])
def test_a_file_that_cannot_be_read_just_now_is_no_damage(tmp_path, monkeypatch, call):
    """Each call of the system fails once with EIO: the step may be skipped, and no record is made."""
    ranks, run = ThreadRanks(2), tmp_path / "run"
    save_steps(ranks, run, 1, 2)
    data, real, left = str(run / layout.step_dirname(2) / "data"), getattr(os, call), 0

    def failing(at, *args, **options):
        nonlocal left
        if data in str(os.readlink(f"/proc/self/fd/{at}") if isinstance(at, int) else at):
            left -= 1
            if left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, *args, **options)

    monkeypatch.setattr(os, call, failing)
    n_calls = 0
    while left <= 0:
        n_calls += 1
        left = n_calls
        assert restored(ranks, run) in {1, 2}
        assert not (run / layout.DAMAGED).exists(), n_calls
    assert n_calls > 3


def test_a_step_that_is_asked_for_is_tried_and_its_record_removed_if_it_reads_well(ranks, damaged, damage):
    restored(ranks, damaged)
    with pytest.raises(errors.CorruptError):
        restored(ranks, damaged, 3)
    assert discovery.inspect_step(damaged, 3).is_recorded
    ranks.on_root(lambda: damage.flip(first_file(damaged, 3), -100))
    assert restored(ranks, damaged, 3) == 3
    assert not (damaged / layout.DAMAGED).exists()
    assert restored(ranks, damaged) == 3


def test_a_restart_that_skips_a_recorded_step_names_what_lifts_the_record(ranks, damaged):
    def body(comm: Any) -> tuple[str, ...]:
        with hc.Checkpointer(damaged, comm=comm) as ckpt:
            return ckpt.restore(state(0, comm.rank)).warnings

    restored(ranks, damaged)
    for warnings in ranks(body):
        assert f"(to check it again: hpcckpt verify {damaged} 3)" in warnings[0]


def test_a_missing_file_is_no_damage_if_the_step_has_all_that_it_lists(tmp_path, monkeypatch):
    ranks, run = ThreadRanks(1), tmp_path / "run"
    save_steps(ranks, run, 1)

    def look_elsewhere(_self: Any, path: Path, *_: Any) -> Any:
        return (path / "data" / "misspelt").read_bytes()

    monkeypatch.setattr(RankfileBackend, "index", look_elsewhere)
    for read in (lambda: hc.load(run), lambda: restored(ranks, run)):
        with pytest.raises(errors.HpcckptError, match="misspelt: No such file"):
            read()
    assert not (run / layout.DAMAGED).exists()
    monkeypatch.undo()
    assert restored(ranks, run) == 1


def test_a_part_of_a_step_that_reads_well_proves_nothing_of_the_rest(ranks, run_dir, damage):
    def save(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None) as ckpt:
            for step in (1, 2):
                ckpt.save(step, {"good": np.full(4_000, float(step)), "bad": np.full(400_000, float(step))})

    def restore(comm: Any, step: int | None, names: list[str]) -> int:
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.restore({name: np.zeros(4_000 if name == "good" else 400_000) for name in names}, step,
                                strict=False).step  # fmt: skip

    ranks(save)
    ranks.on_root(lambda: damage.flip(first_file(run_dir, 2), 400_000))
    assert {block.tensor for block in open_step(run_dir / layout.step_dirname(2)).verify()} == {"bad"}
    assert ranks(lambda comm: restore(comm, None, ["good", "bad"]))[0] == 1
    assert ranks(lambda comm: restore(comm, 2, ["good"]))[0] == 2
    assert discovery.inspect_step(run_dir, 2).is_recorded


def test_a_record_belongs_to_one_save_not_to_a_step_number(ranks, damaged):
    assert restored(ranks, damaged) == 2
    save_steps(ranks, damaged, 3, on_newer="aside")
    assert not discovery.inspect_step(damaged, 3).problem
    assert len(list(damaged.glob(".bad-*"))) == 1
    assert restored(ranks, damaged) == 3


def test_retention_keeps_a_step_with_a_record_as_evidence_and_counts_it_not_as_good(ranks, damaged):
    assert restored(ranks, damaged) == 2
    save_steps(ranks, damaged, 4, 5, max_to_keep=2)
    assert discovery.step_numbers(damaged) == [3, 4, 5]


def test_the_record_of_a_step_that_is_gone_is_removed_by_the_next_save(ranks, damaged):
    assert restored(ranks, damaged) == 2
    ranks.on_root(lambda: shutil.rmtree(damaged / layout.step_dirname(3)))
    save_steps(ranks, damaged, 4)
    assert not (damaged / layout.DAMAGED).exists()


HOSTILE = {
    "a link": lambda path, other: path.symlink_to(other),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a directory": lambda path, _: path.mkdir(),
    "too long": lambda path, _: path.write_bytes(b" " * (records.MAX_NBYTES + 1)),
    "not JSON": lambda path, _: path.write_text("{", encoding="utf-8"),
    "of another save": lambda path, _: path.write_text(
        json.dumps({"format": 1, "step": 3, "save_id": "0" * 32, "problem": "x", "found_by": "x", "found": "x"}),
        encoding="utf-8",
    ),
    "without a text": lambda path, _: path.write_text(json.dumps({"format": 1, "step": 3}), encoding="utf-8"),
    "nested": lambda path, _: path.write_text("[" * 60_000, encoding="utf-8"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_record_is_ignored_and_never_followed(kind, tmp_path):
    run_dir = tmp_path / "run"
    save_steps(ThreadRanks(1), run_dir, 3)
    manifest = discovery.read_manifest(run_dir / layout.step_dirname(3))
    good = json.dumps({"format": 1, "step": 3, "save_id": manifest.save_id, "problem": "\x1b[31m", "found_by": "a",
                       "found": "b"})  # fmt: skip
    (tmp_path / "other").write_text(good, encoding="utf-8")
    place = run_dir / layout.DAMAGED
    place.mkdir()
    HOSTILE[kind](place / f"{layout.step_dirname(3)}.{manifest.save_id}.json", tmp_path / "other")
    assert discovery.inspect_step(run_dir, 3).is_restorable
    shutil.rmtree(place)
    place.mkdir()
    (place / f"{layout.step_dirname(3)}.{manifest.save_id}.json").write_text(good, encoding="utf-8")
    assert discovery.inspect_step(run_dir, 3).problem == "step 3: a found damage on b: ?[31m"
    shutil.rmtree(place)
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / f"{layout.step_dirname(3)}.{manifest.save_id}.json").write_text(good, encoding="utf-8")
    place.symlink_to(tmp_path / "place")
    assert discovery.inspect_step(run_dir, 3).is_restorable
    assert not records.record(run_dir, 3, manifest.save_id, "x", "x")


def test_where_nothing_can_be_written_a_restore_works_and_says_so(ranks, damaged, monkeypatch, caplog):
    monkeypatch.setattr(os, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "denied")))
    assert restored(ranks, damaged) == 2
    assert not (damaged / layout.DAMAGED).exists()
    assert "that step 3 is damaged cannot be recorded" in caplog.text or ranks.size > 1
