"""A pinned step is not moved, its pin is of one save, and a pin that is no ordinary file hangs nothing."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.core import failpoints
from hpcckpt.core.options import Options
from hpcckpt.core.system import OperatingSystem
from hpcckpt.errors import PinnedStepError
from hpcckpt.format import layout
from hpcckpt.native.posix_files import PosixFileSystem
from hpcckpt.restoring.reader import open_step
from hpcckpt.restoring.segments import held_step
from hpcckpt.rundir import commit, discovery, journal, pins, retention
from hpcckpt.tiers.copy import Rules, copy_step
from hpcckpt.tools import prune, reshard

pytestmark = pytest.mark.timeout(60)


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(3, value)}


def save(run_dir: Path, *steps: int, **options: Any) -> None:
    with hc.Checkpointer(run_dir, **{"max_to_keep": None, **options}) as ckpt:
        for step in steps:
            ckpt.save(step, state(step)).result()


def save_id_of(run_dir: Path, step: int) -> str:
    return discovery.read_manifest(run_dir / layout.step_dirname(step)).save_id


def value_of(run_dir: Path, step: int) -> float:
    return float(hc.load(run_dir, step=step)["w"][0])


@pytest.mark.counts(1, 2)
def test_a_pinned_step_is_not_moved_aside_when_the_run_goes_back(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, on_newer="aside") as ckpt:
            for step in (1, 2, 3):
                ckpt.save(step, state(step)).result()
            ckpt.pin(3)
        with hc.Checkpointer(run_dir, comm=comm, on_newer="aside") as ckpt:
            ckpt.restore(state(0), 1)
            with pytest.raises(PinnedStepError, match=r"step 3 in .* is pinned.*hpcckpt unpin .* 3"):
                ckpt.save(2, state(-2)).result()
        return [value_of(run_dir, step) for step in (1, 2, 3)]

    assert ranks(body) == [[1.0, 2.0, 3.0]] * ranks.size
    ranks.on_root(lambda: pins.unpin(run_dir, 3))

    def go_on(comm):
        with hc.Checkpointer(run_dir, comm=comm, on_newer="aside") as ckpt:
            ckpt.restore(state(0), 1)
            ckpt.save(2, state(-2)).result()

    ranks(go_on)


def test_a_pinned_step_is_not_replaced(run_dir, faults):
    save(run_dir, 1, 2)
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.restore(state(0))
        ckpt.pin(2)
        writes: list[str] = []
        with (
            faults.calling("2-write", lambda: writes.append("2-write")),
            pytest.raises(PinnedStepError, match="is pinned"),
        ):
            ckpt.save(2, state(-2), overwrite=True).result()
        assert not writes  # refused before anything is written
        assert value_of(run_dir, 2) == 2.0
        ckpt.unpin(2)
        ckpt.save(2, state(-2), overwrite=True).result()
    assert value_of(run_dir, 2) == -2.0


def test_a_pin_is_of_one_save_and_not_of_a_later_one_of_its_number(run_dir):
    save(run_dir, 1, 2)
    pins.pin_save(run_dir, 2)
    assert pins.pins_to_obey(run_dir) == {2}
    (run_dir / layout.step_dirname(2)).rename(run_dir / layout.aside_dirname(2, "0" * 12))
    assert pins.pins_to_obey(run_dir) == {2}  # nothing has its number
    save(run_dir, 2, 3)
    assert pins.pins_to_obey(run_dir) == set()
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(4, state(4)).result()
    assert discovery.step_numbers(run_dir) == [4]


def test_a_pin_of_an_older_version_names_no_save_and_holds(run_dir):
    save(run_dir, 1, 2)
    (run_dir / layout.PINS).mkdir()
    (run_dir / layout.PINS / layout.step_dirname(1)).touch()
    with hc.Checkpointer(run_dir, max_to_keep=1, on_newer="aside") as ckpt:
        ckpt.restore(state(0))
        ckpt.save(3, state(3)).result()
        with pytest.raises(PinnedStepError):
            ckpt.save(1, state(-1), overwrite=True).result()
    assert discovery.step_numbers(run_dir) == [1, 3]


@pytest.mark.parametrize("reader", ["", "reader-elsewhere-1"])
def test_a_pin_that_is_set_while_retention_chooses_holds(run_dir, monkeypatch, reader):
    read = retention.pins_to_obey

    def read_before_the_pin_is_set(*args):
        found = read(*args)
        if discovery.step_numbers(run_dir) == [1, 2]:
            pins.pin(run_dir, 1, reader, save_id="" if reader else save_id_of(run_dir, 1))
        return found

    monkeypatch.setattr(retention, "pins_to_obey", read_before_the_pin_is_set)
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        saved = [ckpt.save(step, state(step)).result() for step in (1, 2, 3)]
        assert ckpt.all_steps() == [1, 3]
    assert [each.kept for each in saved] == [1, 2, 2]
    assert value_of(run_dir, 1) == 1.0
    removed = [entry["steps"] for entry in journal.read_journal(run_dir) if entry["event"] == "removed"]
    assert removed == [[2]]


def test_a_step_that_is_pinned_once_a_prune_is_planned_is_not_removed(run_dir):
    save(run_dir, 1, 2, 3)
    with prune.locked_to_remove(run_dir, AssertionError):
        plan = prune.plan_prune(run_dir, Options(max_to_keep=1), holds_lock=True)
        pins.pin_save(run_dir, 1)
        failures = prune.carry_out(run_dir, plan, {removal.path for removal in plan.removals})
    assert {path.name: text for path, text in failures.items()} == {layout.step_dirname(1): "it was pinned meanwhile"}
    assert discovery.step_numbers(run_dir) == [1, 3]


def test_a_pin_of_an_earlier_save_of_its_number_does_not_keep_a_step_that_retires(run_dir):
    save(run_dir, 1, 2)
    (run_dir / layout.PINS).mkdir()
    (run_dir / layout.PINS / layout.step_dirname(1)).write_text("0" * 32, encoding="ascii")
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(3, state(3)).result()
    assert discovery.step_numbers(run_dir) == [3]


def test_a_pin_is_not_reported_as_set_if_the_step_was_retired_meanwhile(run_dir, monkeypatch):
    save(run_dir, 2)
    monkeypatch.setattr(pins, "step_numbers", lambda *_: [1, 2])  # as it was just before
    with pytest.raises(errors.StepNotFoundError, match="cannot pin step 1"):
        pins.pin_save(run_dir, 1)
    assert not (run_dir / layout.PINS).exists()


def test_a_pin_is_not_reported_as_set_if_the_step_was_replaced_meanwhile(run_dir):
    save(run_dir, 1)
    with pytest.raises(errors.StepNotFoundError, match="cannot pin step 1"):
        pins.pin(run_dir, 1, save_id="0" * 32)
    assert not (run_dir / layout.PINS).exists()


@pytest.fixture
def pin_before_the_rename(run_dir):
    """Pins a step when a commit has checked the pins, and has renamed nothing."""

    def install(step: int) -> None:
        def act(phase: str, _rank: int) -> None:
            if phase == "4-durable":
                pins.pin_save(run_dir, step)

        failpoints.install_hook(act)

    yield install
    failpoints.install_hook(None)


def test_a_pin_that_is_set_just_before_an_overwrite_holds(run_dir, pin_before_the_rename):
    save(run_dir, 1)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state(0))
        pin_before_the_rename(1)
        with pytest.raises(PinnedStepError, match=r"step 1 in .* is pinned"):
            ckpt.save(1, state(-1), overwrite=True).result()
    assert value_of(run_dir, 1) == 1.0
    assert pins.pinned_by_users(run_dir) == {1}
    assert discovery.step_numbers(run_dir) == [1]


@pytest.mark.parametrize("is_tiered", [False, True])
def test_a_pin_that_is_set_just_before_a_step_is_moved_aside_holds(
    run_dir, tmp_path, pin_before_the_rename, is_tiered, monkeypatch
):
    save(run_dir, 1, 2, 3)
    tiers = {"scratch": tmp_path / "scratch"} if is_tiered else {}
    with hc.Checkpointer(run_dir, on_newer="aside", **tiers) as ckpt:
        ckpt.restore(state(0), 1)
        if is_tiered:
            moves = commit._moves
            monkeypatch.setattr(commit, "_moves", lambda *args: pins.pin_save(run_dir, 3) or moves(*args))
        else:
            pin_before_the_rename(3)
        with pytest.raises(PinnedStepError, match=r"step 3 in .* is pinned"):
            ckpt.save(2, state(-2)).result()
    assert [value_of(run_dir, step) for step in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert not [path for path in run_dir.iterdir() if layout.is_aside(path.name)]


def test_a_pinned_step_is_not_replaced_by_a_copy(run_dir, tmp_path):
    save(run_dir, 1)
    save(tmp_path / "other", 1)
    pins.pin_save(run_dir, 1)
    with pytest.raises(PinnedStepError, match=r"step 1 in .* is pinned"):
        copy_step(SerialCommunicator(), tmp_path / "other" / layout.step_dirname(1), run_dir, Rules(is_replacing=True))
    assert pins.pinned_by_users(run_dir) == {1}


def test_a_pinned_step_is_not_resharded_in_place(run_dir):
    save(run_dir, 1)
    pins.pin_save(run_dir, 1)
    reader = open_step(run_dir)
    with pytest.raises(PinnedStepError, match=r"step 1 in .* is pinned"):
        reshard.reshard(reader, reshard.plan_reshard(reader, 2), run_dir, is_replacing=True)
    assert pins.pinned_by_users(run_dir) == {1}


def test_a_step_that_is_only_being_read_may_be_replaced(run_dir):
    save(run_dir, 1)
    pins.pin(run_dir, 1, "reader-elsewhere-1")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(1, state(-1), overwrite=True).result()
    assert value_of(run_dir, 1) == -1.0


def test_steps_that_wait_on_scratch_may_be_replaced(run_dir, tmp_path):
    with hc.Checkpointer(run_dir, scratch=tmp_path / "scratch") as ckpt:
        ckpt.save(1, state(1)).durable()
        ckpt.save(1, state(-1), overwrite=True).durable()
    assert value_of(run_dir, 1) == -1.0


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


IN_THE_WAY = {
    "fifo": os.mkfifo,
    "symbolic link": lambda path: path.symlink_to("/dev/zero"),
    "device": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
    "directory": os.mkdir,
    "huge file": _huge,
    "text that is no identity": lambda path: path.write_bytes(b"\xff\x1b[31m"),
}


def put(kind: str, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    try:
        IN_THE_WAY[kind](path)
    except PermissionError:
        pytest.skip("devices cannot be made here")


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_stands_in_place_of_a_pin_neither_hangs_nor_frees_the_step(run_dir, kind):
    save(run_dir, 1, 2)
    put(kind, run_dir / layout.PINS / layout.step_dirname(1))
    assert pins.pins_to_obey(run_dir) == {1}
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(3, state(3)).result()
        if kind not in {"huge file", "text that is no identity"}:
            with pytest.raises(errors.StorageError):
                ckpt.pin(1)
    assert discovery.step_numbers(run_dir) == [1, 3]


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_stands_in_place_of_a_readers_pin_does_not_hang_a_restore(run_dir, kind, monkeypatch):
    save(run_dir, 1)
    name = pins.reader_name()
    monkeypatch.setattr(pins, "reader_name", lambda *_: name)
    put(kind, run_dir / layout.PINS / f"{layout.step_dirname(1)}.{name}")
    into = state(0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(into)
    assert into["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("kind", [kind for kind in IN_THE_WAY if kind != "huge file"])
@pytest.mark.parametrize("name", ["journal.jsonl", ".lock.1-2-3", "HALT", ".HALT.done", ".next-000000000000"])
def test_what_stands_in_place_of_a_side_file_does_not_hang_a_job(run_dir, kind, name, caplog):
    save(run_dir, 1)
    path = run_dir / name
    if path.exists():
        path.unlink()
    put(kind, path)
    with caplog.at_level(logging.ERROR), hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(2, state(2)).result()
        with hc.preemption.watch(ckpt, signals=(), walltime=False, halt_every_s=0.001) as guard:
            guard.check(2)
    assert value_of(run_dir, 2) == 2.0


def test_each_reader_of_a_process_holds_its_step_by_a_pin_of_its_own(run_dir):
    save(run_dir, 1, 2)
    with held_step(run_dir / layout.step_dirname(1)) as first:
        with held_step(run_dir / layout.step_dirname(1)):
            pass
        save(run_dir, 3, max_to_keep=1)
        assert discovery.step_numbers(run_dir) == [1, 3]
        assert first.load("w").tolist() == [1.0] * 3
    assert not (run_dir / layout.PINS).exists()


def test_a_pin_whose_age_cannot_be_read_holds(run_dir):
    save(run_dir, 1, 2)
    name = f"{layout.step_dirname(1)}.reader-elsewhere-77"
    (run_dir / layout.PINS).mkdir()
    (run_dir / layout.PINS / name).touch()
    os.utime(run_dir / layout.PINS / name, (0, 0))

    class Stale(PosixFileSystem):
        def stat(self, path):
            if os.fspath(path).endswith(name):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return super().stat(path)

    stale = OperatingSystem(Stale())
    assert pins.pins_to_obey(run_dir, stale) == {1}
    pins.drop_stale_pins(run_dir, stale)
    assert (run_dir / layout.PINS / name).exists()
    pins.drop_stale_pins(run_dir)
    assert not (run_dir / layout.PINS).exists()


HOSTILE = "\x1b[2Jgood\r\x07\x9b\u202e"


def test_errors_escape_control_characters_wherever_they_come_from(run_dir):
    for cls in (errors.LockedError, errors.NoSpaceError, errors.CorruptError, errors.StateError, errors.PluginError):
        text = str(cls(f"{HOSTILE} é\n"))
        assert text == "\\x1b[2Jgood\\r\\x07\\x9b\\u202e é\n"
        joint = errors.collective_error(HOSTILE, {0: errors.Failure(cls.kind, HOSTILE)})
        assert isinstance(joint, cls)
        assert "\x1b" not in str(joint)
    failed = errors.as_failure(ValueError(HOSTILE))
    assert "\x1b" not in str(errors.collective_error("phase", {0: failed}))


def test_a_hostile_lock_does_not_reach_the_terminal(run_dir):
    import dataclasses
    import json

    from hpcckpt.rundir import lock

    run_dir.mkdir()
    holder = dataclasses.replace(lock.this_holder(), host=HOSTILE, job_id=HOSTILE)
    (run_dir / layout.LOCK).write_text(json.dumps(dataclasses.asdict(holder)), encoding="utf-8")
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(errors.LockedError) as refused:
        ckpt.save(1, state(1))
    assert "\x1b" not in str(refused.value)
    assert "\\x1b[2Jgood" in str(refused.value)
    assert "\x1b" not in str(lock.describe(run_dir)[0])
