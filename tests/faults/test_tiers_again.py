"""What becomes of scratch when something fails for a while: nothing newer gives way, and no only copy is taken away."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcckpt import errors, tiers
from hpcckpt.core import files
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import discovery, lock
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.journal import read_journal
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.tiers import copy
from tests.support.two_tiers import Nodes, Trap, are_whole, kill, on_one_node, raising, restored, save_steps, state

pytestmark = pytest.mark.counts(1, 2)
FAILURE = OSError(errno.EIO, "Input/output error", "/a/file")


def fail_to_drain(ckpt: Any, comm: Any, trap: Trap, step: int) -> None:
    """Save a step whose drain fails; all ranks are told. Collective."""
    comm.barrier()
    if comm.is_root:
        trap.set("copy-synced", raising(FAILURE))
    comm.barrier()
    with pytest.raises(errors.StorageError, match=f"drain step {step}"):
        ckpt.save(step, state(step, comm.rank)).durable()


# -- a drain that failed -----------------------------------------------------------------------------


@pytest.mark.parametrize("on_newer", ["error", "aside"])
def test_a_step_drained_after_its_successor_moves_nothing_and_blocks_nothing(ranks, places, trap, on_newer):
    def body(comm):
        with places.open(comm, max_to_keep=None, on_newer=on_newer) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            fail_to_drain(ckpt, comm, trap, 2)
            ckpt.save(3, state(3, comm.rank)).durable()
            comm.barrier()
            before = discovery.step_numbers(places.home)
            comm.barrier()
            ckpt.wait(durable=True)
            ckpt.save(4, state(4, comm.rank))
        return before

    assert ranks(body) == [[1, 3]] * ranks.size
    assert are_whole(places, [1, 2, 3, 4])
    assert not list(places.home.glob(".aside-*"))
    assert restored(places, ranks)[0] == 4


def test_how_long_a_failed_drain_lay_there_is_not_taken_for_the_time_a_drain_takes(ranks, places, trap):
    def body(comm):
        heard = []
        with places.open(comm) as ckpt:
            ckpt.on_drained(heard.append)
            fail_to_drain(ckpt, comm, trap, 1)
            again = time.monotonic()
            comm.barrier()
            ckpt.wait(durable=True)
            limit = time.monotonic() - again
        return [saved.seconds <= limit for saved in heard]

    assert ranks(body) == [[True]] * ranks.size


def test_retention_that_fails_at_home_holds_nothing_back_on_scratch(ranks, places, tmp_path):
    def body(comm):
        with places.open(comm, max_to_keep=1) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            if comm.is_root:
                (places.home / layout.PINS).symlink_to(tmp_path)
            comm.barrier()
            warnings = ckpt.save(2, state(2, comm.rank)).durable().warnings
            ckpt.save(3, state(3, comm.rank)).durable()
            ckpt.save(4, state(4, comm.rank)).durable()
        return warnings

    assert "retention after step 2 failed" in ranks(body)[0][0]
    assert 2 not in discovery.step_numbers(places.near)
    assert are_whole(places, [1, 2, 3, 4])


def test_what_is_left_of_a_replaced_step_fails_no_drain(ranks, places, monkeypatch):
    """As on NFS, where a file that somebody reads keeps its directory from going."""

    def body(comm):
        with places.open(comm, max_to_keep=None) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            monkeypatch.setattr(files, "remove_tree", lambda _: raising(OSError(errno.ENOTEMPTY, "in use"))())
            comm.barrier()
            ckpt.save(1, state(7, comm.rank), overwrite=True).durable()
            ckpt.save(2, state(2, comm.rank)).durable()

    ranks(body)
    assert are_whole(places, [1, 2])
    assert restored(places, ranks)[0] == 2


@pytest.mark.counts(1)
def test_a_drain_that_another_job_may_have_swept_meanwhile_is_not_published(ranks, places, trap):
    is_verified, may_publish = threading.Event(), threading.Event()

    def hold() -> None:
        is_verified.set()
        may_publish.wait(120)

    def another_job() -> None:
        """Take the run directory, sweep a part of what it finds, and die."""
        here = lock.this_holder()
        dead = dataclasses.replace(here, pid=2**22 + 1, started="1", nonce="another")
        (places.home / layout.LOCK).write_text(json.dumps(dataclasses.asdict(dead)), encoding="utf-8")
        next(places.home.glob(".step-*/data/*")).unlink()

    def body(comm):
        with places.open(comm) as ckpt:
            trap.set("copy-verified", hold)
            first = ckpt.save(1, state(1))
            first.result()
            limit = time.monotonic() + 120
            while not is_verified.is_set():
                assert time.monotonic() < limit
                ckpt.poll()
            another_job()
            try:
                ckpt.save(2, state(2)).result()  # takes the run directory again
            finally:
                may_publish.set()
            with pytest.raises(errors.LockLostError, match="drain step 1"):
                first.durable()
            return discovery.step_numbers(places.home)

    assert ranks(body)[0] in ([], [2])
    assert are_whole(places, [1, 2])


def test_a_link_in_place_of_our_directory_on_scratch_is_not_followed(ranks, places):
    def body(comm):
        with pytest.raises(errors.UnsafeDirectoryError, match="is a symbolic link"):
            places.open(comm)

    other = Nodes(places.home.with_name("other"), places.disks, places.kept, on_one_node)
    save_steps(other, ranks, 1)
    ranks.on_root(lambda: (places.near.symlink_to(other.home), os.mkdir(places.home)))
    ranks(body)
    assert are_whole(other, [1])


def test_the_journal_tells_of_no_step_as_removed_that_only_scratch_has_given_up(ranks, places):
    save_steps(places, ranks, 1, 2, 3, 4, max_to_keep=None)
    assert 1 not in discovery.step_numbers(places.near)
    assert "removed" not in {entry["event"] for entry in read_journal(places.home)}


def test_a_job_that_cannot_bring_its_last_step_home_ends_in_the_journal_all_the_same(ranks, places):
    def body(comm):
        ckpt = places.open(comm)
        ckpt.save(1, state(1, comm.rank)).durable()
        ckpt.save(2, state(2, comm.rank)).result()
        comm.barrier()
        if comm.is_root:
            shutil.rmtree(places.disks)
        comm.barrier()
        ckpt.save(3, state(3, comm.rank))
        with pytest.raises(errors.CollectiveError):
            ckpt.close()

    ranks(body)
    last = read_journal(places.home)[-1]
    assert last["event"] == "end"
    assert last["error"]


# -- scratch that cannot be told -----------------------------------------------------------------------


def go_on(nodes: Nodes, ranks: Any) -> list[tuple[int, str]]:
    """Restore and save as a new job would; return from which step on, and what kept it from saving."""

    def body(comm: Any) -> tuple[int, str]:
        with nodes.open(comm, on_newer="aside") as ckpt:
            found = ckpt.restore(state(0, comm.rank))
            try:
                ckpt.save(3, state(3, comm.rank))
            except errors.CollectiveError as error:
                return found.step, str(error)
        return found.step, ""

    return list(ranks(body))


def test_a_mark_that_cannot_be_read_in_the_run_directory_costs_no_step_on_scratch(ranks, places, trap):
    kill(places, ranks, trap, "drain-begun")
    mark = places.home / tiers.OWNER_FILE
    mark.rename(places.kept / "mark")
    mark.mkdir()
    with pytest.raises(errors.CollectiveError, match="not an ordinary file"):
        go_on(places, ranks)
    assert discovery.step_numbers(places.near)[-1] == 2
    mark.rmdir()
    (places.kept / "mark").rename(mark)
    assert go_on(places, ranks) == [(2, "")] * ranks.size
    assert are_whole(places, [1, 2, 3])


def test_scratch_with_an_unreadable_mark_is_neither_restored_from_nor_removed(ranks, places, trap):
    kill(places, ranks, trap, "drain-begun")
    mark = places.near / tiers.OWNER_FILE
    mark.rename(places.kept / "mark")
    mark.mkdir()
    results = go_on(places, ranks)
    assert results == [results[0]] * ranks.size
    assert results[0][0] == 1
    assert "not an ordinary file" in results[0][1]
    assert discovery.step_numbers(places.near)[-1] == 2
    mark.rmdir()
    (places.kept / "mark").rename(mark)
    assert restored(places, ranks)[:2] == (2, places.near)


@pytest.mark.counts(2)
@pytest.mark.parametrize("run", ["places", "nodes"])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_an_owner_that_cannot_be_read_once_removes_nothing_from_scratch(
    ranks, trap, monkeypatch, request, run, failing
):
    where = request.getfixturevalue(run)
    kill(where, ranks, trap, "drain-begun")
    read, left = files.read_bounded, [failing]

    def refuse(path: str, limit: int) -> bytes:
        if path == str(where.near / tiers.OWNER_FILE):
            left[0] -= 1
            if left[0] == 0:
                raise FAILURE
        return read(path, limit)

    monkeypatch.setattr(files, "read_bounded", refuse)

    def body(comm: Any) -> None:
        with where.open(comm) as ckpt, contextlib.suppress(errors.CollectiveError):
            ckpt.restore(state(0, comm.rank))
            ckpt._session.scratch_tier.open()

    ranks(body)
    assert left[0] <= 0
    assert 2 in {*discovery.step_numbers(where.home), *discovery.step_numbers(where.near)}


@pytest.mark.counts(2)
def test_a_part_that_cannot_be_read_just_now_is_not_taken_for_gone(ranks, nodes, trap, monkeypatch):
    kill(nodes, ranks, trap, "drain-begun")
    other = nodes.places(2)[1]
    read = discovery.read_manifest

    def refuse(path: Any, *files: Any) -> Manifest:
        if Path(path).parent == other:
            raise errors.StorageError(f"read manifest {path}: Input/output error")
        return read(path, *files)

    monkeypatch.setattr(discovery, "read_manifest", refuse)
    results = go_on(nodes, ranks)
    assert results == [results[0]] * ranks.size
    assert results[0][0] == 1
    assert "Input/output error" in results[0][1]
    monkeypatch.undo()
    assert [discovery.step_numbers(place)[-1] for place in nodes.places(2)] == [2, 2]
    assert restored(nodes, ranks)[0] == 2


@pytest.mark.counts(2)
@pytest.mark.parametrize("run", ["places", "nodes"])
def test_steps_of_a_deleted_run_that_cannot_be_removed_are_not_taken_for_the_new_one(ranks, request, monkeypatch, run):
    where = request.getfixturevalue(run)
    save_steps(where, ranks, 1, 2)
    ranks.on_root(lambda: shutil.rmtree(where.home))
    monkeypatch.setattr(Workspace, "retire", lambda *_: raising(FAILURE)())
    with pytest.raises(errors.StorageError, match="Input/output error"):
        save_steps(where, ranks, 3)
    monkeypatch.undo()
    with pytest.raises(errors.StepNotFoundError):
        restored(where, ranks)


@pytest.mark.counts(2)
@pytest.mark.threads
@pytest.mark.parametrize("run", ["places", "nodes"])
def test_each_piece_of_a_step_is_copied_by_one_rank(ranks, request, monkeypatch, run):
    where, pieces, copy_pieces = request.getfixturevalue(run), [], copy.copy_pieces

    def counted(source: Path, target: Path, mine: Any, *how: Any, **named: Any) -> int:
        pieces.extend(mine)
        return copy_pieces(source, target, mine, *how, **named)

    monkeypatch.setattr(copy, "copy_pieces", counted)
    save_steps(where, ranks, 1)
    manifest = discovery.read_manifest(where.home / layout.step_dirname(1))
    assert sorted(pieces) == sorted(copy.pieces_of(manifest.files))


# -- damage of the run directory -------------------------------------------------------------------------


def _info(step: int, save_id: str, parent: str | None) -> StepInfo:
    manifest = Manifest(save_id, "r", parent, step, 1, "", "rankfile", 1, (), ())
    return StepInfo(step, Path("x"), manifest if save_id else None, "" if save_id else "damaged")


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        ([(3, "c", "b")], [(1, "a", None), (2, "", None), (3, "", None)], [3]),
        ([(3, "c", "b")], [(1, "a", None), (2, "", None)], [3]),
        ([(3, "c", "b")], [(1, "", None), (2, "z", None)], []),
        ([(2, "c", "b")], [(2, "z", None), (3, "", None)], []),
    ],
    ids=["the last two are damaged", "its parent is", "an old one is", "it is not beyond the newest"],
)
def test_what_counts_on_scratch_where_the_run_directory_is_damaged(near, far, expected):
    found = tiers.valid_steps([_info(*each) for each in near], [_info(*each) for each in far])
    assert [info.step for info in found] == expected


def test_a_good_step_on_scratch_is_kept_if_the_last_two_drained_are_damaged(ranks, places):
    save_steps(places, ranks, 1, 2, 3, max_to_keep=None)

    def damage() -> None:
        for step in (2, 3):
            os.truncate(next((places.home / layout.step_dirname(step) / "data").iterdir()), 10)

    ranks.on_root(damage)
    assert restored(places, ranks)[:2] == (3, places.near)

    def body(comm):
        with places.open(comm, max_to_keep=None) as ckpt:
            ckpt.restore(state(0, comm.rank))
            ckpt.save(4, state(4, comm.rank))

    ranks(body)
    ranks.on_root(lambda: shutil.rmtree(places.disks))
    assert restored(places, ranks, 3)[:2] == (3, places.home)
    assert restored(places, ranks)[0] == 4
    assert list(places.home.glob(".bad-*"))
