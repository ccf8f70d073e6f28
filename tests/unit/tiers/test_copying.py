"""Copies of checkpoints: the parts of the work, how fast it may go, and what an interrupted one leaves."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.core import failpoints
from hpcckpt.core.plan import FileRecord
from hpcckpt.core.system import OperatingSystem
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX
from hpcckpt.rundir import discovery
from hpcckpt.rundir.lock import RunLock
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tiers import copy
from hpcckpt.tiers.copy import Pace, Rules, copy_step, file_segments, pieces_of, share

pytestmark = pytest.mark.one_case

STEP = layout.step_dirname(7)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_segments, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(copy.pieces_of, "__defaults__", (1 << 16,))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a step that two ranks wrote."""

    def body(comm: Any) -> None:
        with hc.Checkpointer(tmp_path / "run", comm=comm) as ckpt:
            ckpt.save(7, {"w": np.arange(60_000.0), "n": hc.PerRank(np.full(3, comm.rank))}).result()

    run_ranks(2, body)
    return tmp_path / "run"


@pytest.fixture
def hook() -> Iterator[Any]:
    """Calls a function at a phase: ``hook("copy-piece", fn)``."""

    def install(name: str, act: Any) -> None:
        failpoints.install_hook(lambda phase, _rank: act() if phase == name else None)

    yield install
    failpoints.install_hook(None)


class StoppedError(Exception):
    """A simulated kill."""


def stop_after(n: int) -> Any:
    """Return a function that raises at its n-th call."""
    left = [n]

    def act() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise StoppedError

    return act


def copied(source: Path, destination: Path, **rules: Any) -> copy.Copied:
    return copy_step(SerialCommunicator(), source / STEP, destination, Rules(1, **rules))


def content(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


# -- parts of the work -------------------------------------------------------------------------------


def test_pieces_make_up_every_byte_of_every_file_and_an_empty_file_too() -> None:
    found = pieces_of([FileRecord("data/a", 10, 0), FileRecord("data/b", 0, 0)], 4)
    assert [(p.path, p.offset, p.nbytes) for p in found] == [
        ("data/a", 0, 4), ("data/a", 4, 4), ("data/a", 8, 2), ("data/b", 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_everything_once_and_even(size: int) -> None:
    items = [5, 0, 100, 100, 3, 100, 0, 100, 90, 10] * 10
    shares = [share(items, rank, size, lambda n: n) for rank in range(size)]
    assert [n for each in shares for n in each] == items
    assert max(map(sum, shares)) - min(map(sum, shares)) <= 200


def test_the_pace_is_kept_by_all_threads_together_until_it_is_lifted() -> None:
    pace, began = Pace(1_000_000), time.monotonic()
    for _ in range(4):
        pace.spend(50_000)
    assert time.monotonic() - began >= 0.19
    pace.lift()
    began = time.monotonic()
    pace.spend(500_000_000)
    assert time.monotonic() - began < 250


class CountedSleeps:
    """A clock that advances in `sleep` only; `lift_at` is the number of the sleep in which a pace is lifted."""

    def __init__(self) -> None:
        self.now_s, self.n_sleeps, self.lift_at = 0.0, 0, -1
        self.pace: Any = None

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.1, "a lifted pace takes effect soon"
        self.now_s += seconds
        self.n_sleeps += 1
        if self.n_sleeps == self.lift_at:
            self.pace.lift()


def test_a_pace_that_was_lifted_is_kept_again_without_spinning() -> None:
    clock = CountedSleeps()
    clock.pace = Pace(1000.0, OperatingSystem(POSIX, clock=clock))
    clock.lift_at = 3
    clock.pace.spend(1_000_000)
    assert clock.n_sleeps == 3
    clock.pace.limit()
    began = clock.now_s
    clock.pace.spend(2000)
    assert clock.now_s - began == pytest.approx(2.0)
    assert 20 <= clock.n_sleeps - 3 < 60


# -- a copy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_copy_is_the_same_save_to_the_byte(run: Path, tmp_path: Path, n_ranks: int) -> None:
    out = tmp_path / "deep" / "out"
    results = run_ranks(n_ranks, lambda comm: copy_step(comm, run / STEP, out, Rules(2)))
    assert content(out / STEP) == content(run / STEP)
    nbytes = sum(len(data) for name, data in content(out / STEP).items() if "data/" in name)
    assert [(r.is_new, r.nbytes, r.written_nbytes) for r in results] == [(True, nbytes, nbytes)] * n_ranks


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted there")
@pytest.mark.parametrize("failing", ["fstat", "ftruncate"])
def test_a_copy_that_fails_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    piece = pieces_of([FileRecord("x", 10, 0)])[0]
    (tmp_path / "x").write_bytes(bytes(20))
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="Input/output"):
        file_segments._open_target(str(tmp_path / "x"), piece, POSIX)
    if failing == "fstat":
        with pytest.raises(OSError, match="Input/output"):
            POSIX.open_regular(str(tmp_path / "x"))
    monkeypatch.undo()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("is_replacing", [False, True])
def test_a_save_that_is_there_is_left_alone(run: Path, tmp_path: Path, *, is_replacing: bool) -> None:
    copied(run, tmp_path / "out")
    before = (tmp_path / "out" / STEP).stat().st_ino
    again = copied(run, tmp_path / "out", is_replacing=is_replacing)
    assert (again.is_new, again.written_nbytes) == (False, 0)
    assert (tmp_path / "out" / STEP).stat().st_ino == before


def test_another_save_of_the_same_number_is_refused_or_replaced(run: Path, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "out") as ckpt:
        ckpt.save(7, {"x": np.zeros(3)}).result()
    with pytest.raises(errors.StepExistsError, match="another save"):
        copied(run, tmp_path / "out")
    assert set(hc.load(tmp_path / "out")) == {"x"}
    copied(run, tmp_path / "out", is_replacing=True)
    assert content(tmp_path / "out" / STEP) == content(run / STEP)


def test_a_damaged_step_in_the_way_is_kept_aside(run: Path, tmp_path: Path) -> None:
    copied(run, tmp_path / "out")
    (tmp_path / "out" / STEP / "data" / "rank-00001.safetensors").unlink()
    assert copied(run, tmp_path / "out").is_new
    assert content(tmp_path / "out" / STEP) == content(run / STEP)
    assert [name[:5] for name in sorted(os.listdir(tmp_path / "out"))] == [".bad-", "step-"]


def test_an_interrupted_copy_goes_on_where_it_stopped(run: Path, tmp_path: Path, hook: Any) -> None:
    hook("copy-piece", stop_after(5))
    with pytest.raises(errors.CollectiveError, match="StoppedError"):
        copied(run, tmp_path / "out")
    assert discovery.step_numbers(tmp_path / "out") == []
    failpoints.install_hook(None)
    again = copied(run, tmp_path / "out")
    there = pieces_of(discovery.read_manifest(run / STEP).files, 1 << 16)[:5]
    assert again.nbytes - again.written_nbytes == sum(piece.nbytes for piece in there)
    assert content(tmp_path / "out" / STEP) == content(run / STEP)


def test_what_an_interrupted_copy_left_is_believed_only_where_it_is_equal(run: Path, tmp_path: Path, hook: Any) -> None:
    hook("copy-verified", stop_after(1))
    with pytest.raises(errors.CollectiveError, match="StoppedError"):
        copied(run, tmp_path / "out")
    (left,) = (tmp_path / "out").glob(".step-*.tmp-*")
    with (left / "data" / "rank-00000.safetensors").open("r+b") as file:
        file.seek(100_000)
        file.write(b"other bytes")
    with (left / "data" / "rank-00001.safetensors").open("ab") as file:
        file.write(b"too long")
    (left / "manifest.json").write_text("of an attempt that was killed", encoding="utf-8")
    (left / "data" / "stray").write_text("", encoding="utf-8")
    failpoints.install_hook(None)
    assert copied(run, tmp_path / "out").written_nbytes == 1 << 16
    assert content(tmp_path / "out" / STEP) == content(run / STEP)


@pytest.mark.parametrize("phase", [*copy.PHASES, "4-check", "4-manifest", "4-durable"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_copy_that_fails_anywhere_shows_nothing_and_can_be_repeated(
    run: Path, tmp_path: Path, hook: Any, phase: str, n_ranks: int
) -> None:
    out = tmp_path / "out"
    hook(phase, stop_after(1))
    with pytest.raises(errors.CollectiveError, match="StoppedError"):
        run_ranks(n_ranks, lambda comm: copy_step(comm, run / STEP, out))
    assert (discovery.step_numbers(out), (out / layout.LOCK).exists()) == ([], False)
    failpoints.install_hook(None)
    run_ranks(n_ranks, lambda comm: copy_step(comm, run / STEP, out))
    assert content(out / STEP) == content(run / STEP)


def test_damage_of_the_source_is_told_as_such_and_nothing_is_published(run: Path, tmp_path: Path) -> None:
    with (run / STEP / "data" / "rank-00000.safetensors").open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(errors.CorruptError, match=r"tensor 'w'.*use another"):
        copied(run, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_what_the_destination_does_not_give_back_is_not_published(run: Path, tmp_path: Path, hook: Any) -> None:
    def damage() -> None:
        (path,) = (tmp_path / "out").glob(".step-*/data/rank-00000*")
        with path.open("r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"x")

    hook("copy-synced", damage)
    with pytest.raises(errors.StorageError, match="does not give back"):
        copied(run, tmp_path / "out")
    assert discovery.step_numbers(tmp_path / "out") == []


def test_links_planted_on_either_side_are_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("untouched", encoding="utf-8")
    staged = tmp_path / "out" / copy.staging_of(tmp_path, discovery.read_manifest(run / STEP)).name
    (staged / "data").mkdir(parents=True)
    (staged / "data" / "rank-00000.safetensors").symlink_to(secret)
    with pytest.raises(errors.StorageError):
        copied(run, tmp_path / "out")
    shutil.rmtree(staged)
    os.link(secret, _made(staged / "data") / "rank-00000.safetensors")
    with pytest.raises(errors.StorageError, match="one name"):
        copied(run, tmp_path / "out")
    assert secret.read_text(encoding="utf-8") == "untouched"
    shutil.rmtree(staged)
    file = run / STEP / "data" / "rank-00000.safetensors"
    file.rename(secret)
    file.symlink_to(secret)
    with pytest.raises(errors.CorruptError):
        copied(run, tmp_path / "out")


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_a_directory_that_a_job_writes_in_is_busy(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with RunLock.take(tmp_path / "out", system=OperatingSystem(POSIX)), pytest.raises(errors.LockedError):
        copied(run, tmp_path / "out")


def test_a_step_is_not_copied_onto_itself(run: Path) -> None:
    with pytest.raises(errors.OptionError, match="already"):
        copied(run, run)


def test_a_step_is_copied_where_the_lock_has_the_last_thread_there_may_be(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse_others(thread: threading.Thread) -> None:
        if thread.name != "hpcckpt-heartbeat":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_others)
    copied(run, tmp_path / "out")
    assert np.array_equal(hc.load(tmp_path / "out")["w"], np.arange(60_000.0))


def test_linked_files_of_incremental_steps_become_plain_files(run: Path, tmp_path: Path) -> None:
    file = run / STEP / "data" / "rank-00000.safetensors"
    os.link(file, tmp_path / "other-name")
    copied(run, tmp_path / "out")
    assert (tmp_path / "out" / STEP / "data" / file.name).stat().st_nlink == 1


def test_no_room_is_told_before_anything_is_written(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _path: _Full(found.f_blocks, 1000, found.f_frsize))
    with pytest.raises(errors.NoSpaceError):
        copied(run, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".step-*/data/*"))


class _Full:
    def __init__(self, blocks: int, available: int, size: int) -> None:
        self.f_blocks, self.f_bavail, self.f_frsize = blocks, 0 * available, size
