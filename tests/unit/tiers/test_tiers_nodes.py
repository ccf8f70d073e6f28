"""Scratch of several nodes: a step counts when every place has its part, and a lost place costs no drained step."""

from __future__ import annotations

import dataclasses
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
from hpcckpt import errors, tiers
from hpcckpt.collective.planner import SavePlan
from hpcckpt.core.plan import FileRecord
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.native.posix_files import REAL, PosixFileSystem
from hpcckpt.rundir import discovery, lock
from hpcckpt.rundir.run_directory import NodeMap
from hpcckpt.tiers.scratch_steps import PartialStep, joined_steps, newest_of_each
from tests.support.two_tiers import Nodes, Trap, are_whole, kill, raising, restored, save_steps, state, two_to_a_node

pytestmark = pytest.mark.counts(3)
AT_ALL_SIZES = pytest.mark.counts(2, 3, 5)
CLOSING = ("4-check", "4-manifest", "4-durable", "5-published", "6-parent-synced")


@pytest.fixture
def nodes(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    where = Path(ranks.on_root(lambda: tmp_path_factory.mktemp("nodes")))
    (where / "kept").mkdir(exist_ok=True)
    return Nodes(where / "run", where / "disks", where / "kept")


def left_undrained(nodes: Nodes, ranks: Any, holding: Trap, step: int = 2) -> None:
    """Leave all places as a kill does right after a step was committed; step 1 is in the run directory."""

    def body(comm: Any) -> None:
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            holding.hold_drains()
            comm.barrier()
            ckpt.save(step, state(step, comm.rank)).result()
            comm.barrier()
            if comm.is_root:
                nodes.keep()
            comm.barrier()
            holding.let_drains_go()

    ranks(body)
    ranks.on_root(nodes.bring_back)


# -- what is where ----------------------------------------------------------------------------------


@AT_ALL_SIZES
def test_each_node_keeps_what_its_ranks_wrote_and_the_run_directory_gets_all(ranks, nodes, holding):
    def body(comm):
        with nodes.open(comm) as ckpt:
            comm.barrier()
            holding.hold_drains()
            comm.barrier()
            pending = ckpt.save(1, state(1, comm.rank))
            saved = pending.result()
            before = ckpt.latest_step(), ckpt.all_steps(), ckpt.is_draining, discovery.step_numbers(nodes.home)
            comm.barrier()
            holding.let_drains_go()
            durable = pending.durable()
        return saved.tier, saved.path.parent, saved.files, before, durable.tier, durable.path.parent, durable.kept

    places = nodes.places(ranks.size)
    expected = ("scratch", places[0], ranks.size, (1, [1], True, []), "run", nodes.home, 1)
    assert ranks(body) == [expected] * ranks.size
    name = layout.step_dirname(1)
    for number, place in enumerate(places):
        here = [f"rank-{r:05d}.safetensors" for r in range(ranks.size) if two_to_a_node(r, ranks.size) == number]
        assert sorted(os.listdir(place / name / "data")) == here
        assert discovery.read_manifest(place / name) == discovery.read_manifest(nodes.home / name)
    assert are_whole(nodes, [1])
    assert nodes.is_clean(ranks.size)


@AT_ALL_SIZES
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "hdf5", "backend_options": {"driver": "per-rank"}},
        {"incremental": True},
        {"async_save": False},
        {"max_in_flight": 2},
    ],
    ids=["rankfile", "hdf5", "incremental", "at once", "two in flight"],
)
def test_whatever_writes_its_own_files_is_drained_whole(ranks, nodes, options):
    pytest.importorskip("h5py")
    save_steps(nodes, ranks, 1, 2, 3, **options)
    assert are_whole(nodes, [1, 2, 3])
    assert nodes.is_clean(ranks.size)
    assert restored(nodes, ranks) == (3, nodes.home, ())
    ranks.on_root(lambda: shutil.rmtree(nodes.disks))
    assert restored(nodes, ranks, 2) == (2, nodes.home, ())


def test_each_place_retires_its_part_of_what_is_drained(ranks, nodes):
    def body(comm):
        with nodes.open(comm, max_to_keep=2) as ckpt:
            for step in range(1, 7):
                ckpt.save(step, state(step, comm.rank)).durable()
            return ckpt.all_steps()

    assert ranks(body) == [[5, 6]] * ranks.size
    assert discovery.step_numbers(nodes.home) == [5, 6]
    for place in nodes.places(ranks.size):
        there = discovery.step_numbers(place)
        assert there[-1] == 6
        assert len(there) <= 2
        assert not (place / layout.PINS).exists()


def test_a_state_that_changes_is_planned_anew_at_all_places(ranks, nodes):
    def body(comm):
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank))
            ckpt.save(2, {**state(2, comm.rank), "more": np.ones(5)}).durable()

    ranks(body)
    assert hc.load(nodes.home)["more"].tolist() == [1.0] * 5
    assert are_whole(nodes, [1, 2])


def test_a_step_is_replaced_at_all_places(ranks, nodes):
    def body(comm):
        with nodes.open(comm) as ckpt:
            ckpt.save(2, state(1, comm.rank))
            ckpt.save(2, state(2, comm.rank), overwrite=True).durable()
            comm.barrier()
            near = ckpt._session.rundir
            left = near.workspace.leftovers() if near.is_leading else []
            comm.barrier()
            with pytest.raises(errors.StepExistsError):
                ckpt.save(2, state(3, comm.rank)).result()
        return left

    assert ranks(body) == [[]] * ranks.size
    assert restored(nodes, ranks) == (2, nodes.home, ())
    assert are_whole(nodes, [2])
    assert nodes.is_clean(ranks.size)


def test_a_run_that_goes_back_moves_the_newer_steps_aside_at_all_places(ranks, nodes):
    save_steps(nodes, ranks, 1, 2, 3)

    def body(comm):
        with nodes.open(comm, on_newer="aside") as ckpt:
            ckpt.restore(state(0, comm.rank), 1)
            ckpt.save(2, state(2, comm.rank))

    ranks(body)
    assert are_whole(nodes, [1, 2])
    assert [discovery.step_numbers(place)[-1] for place in nodes.places(ranks.size)] == [2] * len(
        nodes.places(ranks.size)
    )
    assert restored(nodes, ranks) == (2, nodes.home, ())


@pytest.mark.parametrize(("phase", "step"), [("4-sealed", 3), ("5-published", 2), ("6-parent-synced", 2)])
def test_a_run_that_went_back_and_is_killed_at_its_first_commit_resumes_from_it(ranks, nodes, trap, phase, step):
    save_steps(nodes, ranks, 1, 3, max_to_keep=None)

    def body(comm):
        with nodes.open(comm, on_newer="aside", max_to_keep=None) as ckpt:
            ckpt.restore(state(0, comm.rank), 1)
            comm.barrier()
            if comm.is_root:
                trap.set(phase, nodes.keep)
            comm.barrier()
            ckpt.save(2, state(2, comm.rank))

    ranks(body)
    assert trap.has_sprung
    nodes.bring_back()
    assert restored(nodes, ranks)[0] == step


# -- requeued ---------------------------------------------------------------------------------------


@AT_ALL_SIZES
def test_a_job_restarted_on_the_same_nodes_drains_what_was_left_and_restores_it(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    assert discovery.step_numbers(nodes.home) == [1]
    assert restored(nodes, ranks) == (2, nodes.home, ())
    assert are_whole(nodes, [1, 2])


def test_what_a_job_that_lives_has_on_scratch_is_left_to_it(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    other = dataclasses.replace(lock.this_holder(), pid=1, started=REAL.processes.started(1))
    held = nodes.home / layout.LOCK
    ranks.on_root(lambda: held.write_text(json.dumps(dataclasses.asdict(other)), encoding="utf-8"))
    step, place, warnings = restored(nodes, ranks)
    assert (step, place) == (1, nodes.home)
    assert "step 2 on scratch was skipped" in warnings[0]
    assert "is in use by process 1" in warnings[0]
    ranks.on_root(held.unlink)
    assert restored(nodes, ranks) == (2, nodes.home, ())


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_step_on_scratch_that_cannot_be_read_is_skipped_and_stays(ranks, nodes, holding, monkeypatch, number):
    left_undrained(nodes, ranks, holding)
    read_blocks = PosixFileSystem.read_blocks

    def failing(files: PosixFileSystem, fd: int, blocks: Any, *, path: str) -> Any:
        if layout.step_dirname(2) in path and path.startswith(str(nodes.disks)):
            raise OSError(number, os.strerror(number), path)
        return read_blocks(files, fd, blocks, path=path)

    monkeypatch.setattr(PosixFileSystem, "read_blocks", failing)
    step, place, warnings = restored(nodes, ranks)
    assert (step, place) == (1, nodes.home)
    assert "step 2 on scratch was skipped" in warnings[0]
    assert os.strerror(number) in warnings[0]
    monkeypatch.undo()
    assert restored(nodes, ranks) == (2, nodes.home, ())


@AT_ALL_SIZES
def test_ranks_that_come_back_on_each_others_nodes_find_all_parts(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    last = two_to_a_node(ranks.size - 1, ranks.size)
    turned = nodes.placed(lambda rank, size: last - two_to_a_node(rank, size))
    assert restored(turned, ranks) == (2, nodes.home, ())
    save_steps(turned, ranks, 3)
    assert are_whole(nodes, [1, 2, 3])


@AT_ALL_SIZES
def test_root_may_be_on_a_node_that_has_nothing_of_it(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    last = two_to_a_node(ranks.size - 1, ranks.size)
    moved = nodes.placed(lambda rank, _size: last + 1 if rank == 0 else min(rank - 1, last))
    are_all_there = ranks.size > 2
    assert restored(moved, ranks)[:2] == (2 if are_all_there else 1, nodes.home)
    _goes_on(moved, ranks, 2 if are_all_there else 1)


def test_on_other_nodes_the_last_drained_step_is_restored_and_the_run_resumes(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding, step=9)
    elsewhere = nodes.elsewhere()

    def go_on(comm):
        with elsewhere.open(comm) as ckpt:
            assert ckpt.restore(state(0, comm.rank)).step == 1
            ckpt.save(5, state(5, comm.rank))

    ranks(go_on)
    assert restored(nodes, ranks) == (5, nodes.home, ())

    def come_back(comm):
        with nodes.open(comm) as ckpt:
            ckpt.restore(state(0, comm.rank))
            ckpt.save(6, state(6, comm.rank))

    ranks(come_back)
    assert are_whole(nodes, [1, 5, 6])
    assert [discovery.step_numbers(place) for place in nodes.places(ranks.size)] == [[6]] * len(
        nodes.places(ranks.size)
    )


@pytest.mark.parametrize("which", [0, -1], ids=["root's", "the last"])
def test_a_place_that_is_lost_costs_what_was_not_drained_and_no_more(ranks, nodes, holding, which):
    left_undrained(nodes, ranks, holding)
    ranks.on_root(lambda: shutil.rmtree(nodes.places(ranks.size)[which]))
    step, place, warnings = restored(nodes, ranks)
    assert (step, place) == (1, nodes.home)
    assert "step 2" in warnings[0]
    assert "on no node of this job" in warnings[0]

    def go_on(comm):
        with nodes.open(comm) as ckpt:
            ckpt.restore(state(0, comm.rank))
            ckpt.save(2, state(2, comm.rank))

    ranks(go_on)
    assert are_whole(nodes, [1, 2])
    assert nodes.is_clean(ranks.size)


def test_a_file_that_is_lost_or_cut_short_at_one_place_keeps_the_step_from_counting(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    file = nodes.places(ranks.size)[-1] / layout.step_dirname(2) / f"data/rank-{ranks.size - 1:05d}.safetensors"
    ranks.on_root(lambda: os.truncate(file, file.stat().st_size - 1))
    step, _, warnings = restored(nodes, ranks)
    assert (step, file.name in warnings[0]) == (1, True)


def test_a_part_whose_bytes_are_damaged_is_passed_over_and_the_run_goes_on(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    file = nodes.places(ranks.size)[-1] / layout.step_dirname(2) / f"data/rank-{ranks.size - 1:05d}.safetensors"

    def damage():
        with file.open("r+b") as opened:
            opened.seek(-8, os.SEEK_END)
            opened.write(b"\xff" * 8)

    ranks.on_root(damage)

    def go_on(comm):
        with nodes.open(comm) as ckpt:
            found = ckpt.restore(state(0, comm.rank))
            ckpt.save(2, state(2, comm.rank))
        return found.step, found.warnings

    results = ranks(go_on)
    assert results == [results[0]] * ranks.size
    assert (results[0][0], file.name in results[0][1][0]) == (1, True)
    assert are_whole(nodes, [1, 2])


def test_a_job_on_one_node_passes_over_what_two_nodes_left(ranks, nodes, holding):
    left_undrained(nodes, ranks, holding)
    alone = nodes.placed(lambda _rank, _size: 0)

    def go_on(comm):
        with alone.open(comm) as ckpt:
            found = ckpt.restore(state(0, comm.rank))
            ckpt.save(2, state(2, comm.rank))
            ckpt.save(3, state(3, comm.rank))
        return found.step

    assert ranks(go_on) == [1] * ranks.size
    assert are_whole(nodes, [1, 2, 3])
    assert restored(nodes, ranks) == (3, nodes.home, ())


def test_what_a_job_on_one_node_left_is_drained_by_one_on_several(ranks, nodes, holding):
    left_undrained(nodes.placed(lambda _rank, _size: 0), ranks, holding)
    assert restored(nodes, ranks) == (2, nodes.home, ())
    save_steps(nodes, ranks, 3)
    assert are_whole(nodes, [1, 2, 3])


def test_what_a_deleted_run_left_at_the_places_is_not_taken_for_the_new_one(ranks, nodes):
    save_steps(nodes, ranks, 1, 2)
    ranks.on_root(lambda: shutil.rmtree(nodes.home))
    with pytest.raises(errors.StepNotFoundError):
        restored(nodes, ranks)
    save_steps(nodes, ranks, 1)
    assert restored(nodes, ranks) == (1, nodes.home, ())
    assert [discovery.step_numbers(place) for place in nodes.places(ranks.size)] == [[1]] * len(
        nodes.places(ranks.size)
    )


def test_a_step_that_is_asked_for_is_drained_if_it_is_on_scratch_alone(ranks, nodes, trap):
    left_undrained(nodes, ranks, trap)
    assert restored(nodes, ranks, 1) == (1, nodes.home, ())
    assert discovery.step_numbers(nodes.home) == [1]
    assert restored(nodes, ranks, 2) == (2, nodes.home, ())
    with pytest.raises(errors.StepNotFoundError):
        restored(nodes, ranks, 7)


# -- kills ------------------------------------------------------------------------------------------


def _goes_on(nodes: Nodes, ranks: Any, newest: int) -> None:
    """Check that a job that comes back restores the newest step that counts, and that all is well afterwards."""

    def body(comm: Any) -> Any:
        with nodes.open(comm) as ckpt:
            steps = ckpt.all_steps()
            found = ckpt.restore(state(0, comm.rank))
            for step in range(newest + 1, 4):
                ckpt.save(step, state(step, comm.rank))
        return steps, found.step

    assert ranks(body) == [(list(range(1, newest + 1)), newest)] * ranks.size
    assert are_whole(nodes, [1, 2, 3])
    assert nodes.is_clean(ranks.size)


@pytest.mark.counts(2, 5)
@pytest.mark.parametrize("phase", ["2-written", "3-report", *CLOSING, "7-outcome"])
def test_a_leader_killed_anywhere_leaves_no_half_step(ranks, nodes, trap, phase):
    kill(nodes, ranks, trap, phase, nodes.last_leader(ranks.size))
    assert restored(nodes.elsewhere(), ranks) == (1, nodes.home, ())
    _goes_on(nodes, ranks, 2 if phase == "7-outcome" else 1)


@pytest.mark.counts(2, 5)
@pytest.mark.parametrize("phase", ["4-sealed", *CLOSING])
def test_root_killed_anywhere_leaves_no_half_step(ranks, nodes, trap, phase):
    kill(nodes, ranks, trap, phase, 0)
    assert restored(nodes.elsewhere(), ranks) == (1, nodes.home, ())
    _goes_on(nodes, ranks, 2 if phase in CLOSING[3:] else 1)


@pytest.mark.parametrize("phase", tiers.PHASES)
def test_a_drain_killed_anywhere_leaves_no_half_copy_and_is_made_good(ranks, nodes, trap, phase):
    kill(nodes, ranks, trap, phase, 0)
    there = 2 if phase == "drain-published" else 1
    assert are_whole(nodes, range(1, there + 1))
    assert restored(nodes.elsewhere(), ranks) == (there, nodes.home, ())
    _goes_on(nodes, ranks, 2)


# -- failures ---------------------------------------------------------------------------------------

FAILURES = {
    "full": (OSError(errno.ENOSPC, "No space left on device", "/a/file"), errors.NoSpaceError),
    "disk": (OSError(errno.EIO, "Input/output error", "/a/file"), errors.StorageError),
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("phase", CLOSING)
@pytest.mark.parametrize("who", ["a leader", "root"])
def test_a_failing_node_is_the_same_error_on_all_ranks_and_keeps_the_last_step(ranks, nodes, trap, who, phase, name):
    error, cls = FAILURES[name]
    rank = nodes.last_leader(ranks.size) if who == "a leader" else 0

    def body(comm):
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            if comm.is_root:
                trap.set(phase, raising(error), rank)
            comm.barrier()
            with pytest.raises(cls, match="save step 2: commit") as caught:
                ckpt.save(2, state(2, comm.rank)).result()
            comm.barrier()
            left = ckpt.all_steps(), [discovery.step_numbers(place) for place in nodes.places(comm.size)]
            assert ckpt.restore(state(0, comm.rank)).step == 1
            ckpt.save(2, state(2, comm.rank))
        return str(caught.value), sorted(caught.value.failures), left

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert results[0][1:] == ([rank], ([1], [[1]] * len(nodes.places(ranks.size))))
    assert are_whole(nodes, [1, 2])
    assert nodes.is_clean(ranks.size)


@pytest.mark.parametrize("which", [0, -1], ids=["root's", "the last"])
def test_a_file_that_is_lost_before_it_is_published_is_missed(ranks, nodes, trap, which):
    place = nodes.places(ranks.size)[which]

    def lose() -> None:
        next(place.glob(".next-*/data/*")).unlink()

    def body(comm):
        with nodes.open(comm) as ckpt:
            comm.barrier()
            trap.set("4-sealed", lose)
            comm.barrier()
            with pytest.raises(errors.StorageError, match="is not as it was written"):
                ckpt.save(1, state(1, comm.rank)).result()
            ckpt.save(1, state(1, comm.rank))

    ranks(body)
    assert are_whole(nodes, [1])
    assert nodes.is_clean(ranks.size)


@pytest.mark.parametrize("who", ["a leader", "root"])
def test_a_replaced_step_comes_back_at_all_places_if_one_fails(ranks, nodes, trap, who):
    rank = nodes.last_leader(ranks.size) if who == "a leader" else 0

    def body(comm):
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            if comm.is_root:
                trap.set("6-parent-synced", raising(FAILURES["disk"][0]), rank)
            comm.barrier()
            with pytest.raises(errors.StorageError):
                ckpt.save(1, state(7, comm.rank), overwrite=True).result()
            comm.barrier()
            found = {discovery.read_manifest(p / layout.step_dirname(1)).save_id for p in nodes.places(comm.size)}
            comm.barrier()
        return found == {discovery.read_manifest(nodes.home / layout.step_dirname(1)).save_id}

    assert ranks(body) == [True] * ranks.size
    assert restored(nodes, ranks) == (1, nodes.home, ())
    assert nodes.is_clean(ranks.size)


@pytest.mark.parametrize("phase", ["copy-piece", "copy-synced", "copy-verified"])
def test_a_failed_drain_is_the_same_error_on_all_ranks_and_repeated_at_the_end(ranks, nodes, trap, phase):
    def body(comm):
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            if comm.is_root:
                trap.set(phase, raising(FAILURES["disk"][0]))
            comm.barrier()
            pending = ckpt.save(2, state(2, comm.rank))
            pending.result()
            with pytest.raises(errors.StorageError, match=r"drain step 2.*Input/output") as caught:
                pending.durable()
            steps = ckpt.all_steps()
        return str(caught.value), steps

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert results[0][1] == [1, 2]
    assert are_whole(nodes, [1, 2])


@pytest.mark.parametrize("phase", ["drain-begun", "copy-piece", "copy-synced"])
@pytest.mark.parametrize("which", [0, -1], ids=["root's", "the last"])
def test_a_place_deleted_amid_a_drain_costs_at_most_what_was_not_drained(ranks, nodes, trap, phase, which):
    lost = nodes.places(ranks.size)[which]

    def body(comm):
        ckpt = nodes.open(comm)
        ckpt.save(1, state(1, comm.rank)).durable()
        comm.barrier()
        if comm.is_root:
            trap.set(phase, lambda: shutil.rmtree(lost))
        comm.barrier()
        ckpt.save(2, state(2, comm.rank))
        try:
            ckpt.close()
        except errors.CollectiveError as error:
            return str(error)
        return ""

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    newest = 2 if results[0] == "" else 1
    assert newest == 2 or "drain step 2" in results[0]
    assert are_whole(nodes, range(1, newest + 1))
    assert restored(nodes, ranks)[:2] == (newest, nodes.home)


def test_a_file_that_no_place_has_any_more_keeps_the_step_from_being_published(ranks, nodes, holding):
    def body(comm):
        with nodes.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            holding.hold_drains()
            comm.barrier()
            pending = ckpt.save(2, state(2, comm.rank))
            pending.result()
            comm.barrier()
            if comm.is_root:
                next((nodes.places(comm.size)[-1] / layout.step_dirname(2) / "data").iterdir()).unlink()
            comm.barrier()
            holding.let_drains_go()
            with pytest.raises(errors.StorageError, match="on no node any more") as caught:
                pending.durable()
            with pytest.raises(errors.StorageError, match="on no node any more"):
                ckpt.close()
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert are_whole(nodes, [1])


def test_a_full_run_directory_does_not_let_a_restore_pass_over_a_whole_step(ranks, nodes, trap):
    left_undrained(nodes, ranks, trap)
    trap.set("copy-piece", raising(FAILURES["full"][0]))

    def body(comm):
        with nodes.open(comm) as ckpt:
            with pytest.raises(errors.NoSpaceError, match="drain step 2") as caught:
                ckpt.restore(state(0, comm.rank))
            return str(caught.value), ckpt.restore(state(0, comm.rank)).step

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert results[0][1] == 2


@AT_ALL_SIZES
def test_an_overwrite_that_fails_leaves_the_step_that_is_not_drained_its_pins(ranks, nodes, trap):
    def refuse(comm: Any, *phases: str) -> None:
        comm.barrier()
        if comm.is_root:
            trap.refused = {(phase, 0) for phase in phases}
        comm.barrier()

    def body(comm):
        with nodes.open(comm, max_to_keep=None) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            refuse(comm, "drain-begun")
            with pytest.raises(errors.NoSpaceError):
                ckpt.save(2, state(2, comm.rank)).durable()
            refuse(comm, "drain-begun", "5-published")
            with pytest.raises(errors.NoSpaceError, match="save step 2"):
                ckpt.save(2, state(22, comm.rank), overwrite=True).result()
            refuse(comm, "drain-begun")
            ckpt.save(3, state(3, comm.rank)).result()
            with pytest.raises(errors.NoSpaceError):
                ckpt.wait(durable=True)
            refuse(comm)
            ckpt.wait(durable=True)

    ranks(body)
    assert are_whole(nodes, [1, 2, 3])


def test_a_step_is_drained_though_no_node_can_unpin_it(ranks, nodes, monkeypatch):
    def refuse(*_args: Any, **_options: Any) -> None:
        raise errors.NoSpaceError("unpin: No space left on device")

    monkeypatch.setattr("hpcckpt.rundir.pins.unpin", refuse)

    def body(comm):
        with nodes.open(comm) as ckpt:
            return [ckpt.save(step, state(step, comm.rank)).durable().step for step in (1, 2)]

    assert ranks(body) == [[1, 2]] * ranks.size
    assert are_whole(nodes, [1, 2])


def test_each_place_needs_room_for_its_own_part_only(ranks, nodes):
    def body(comm):
        near = nodes.open(comm)._session.rundir
        near.path.mkdir(parents=True, exist_ok=True)
        plan = SavePlan((), (), comm.size << 60, (1 << 60,) * comm.size)
        with pytest.raises(errors.NoSpaceError) as caught:
            near.check_space(plan)
        comm.barrier()
        return round(int(re.search(r"needs (\d+) bytes", str(caught.value))[1]) / (1 << 60))

    at = [two_to_a_node(rank, ranks.size) for rank in range(ranks.size)]
    assert ranks(body) == [at.count(place) for place in at]


# -- what counts ------------------------------------------------------------------------------------


def _part(save_id: str, *files: str, step: int = 2, created: str = "") -> PartialStep:
    records = tuple(FileRecord(path, 1, 0) for path in ("data/a", "data/b"))
    manifest = Manifest(save_id, "r", None, step, 2, created, "rankfile", 1, (), records)
    return PartialStep(step, save_id, frozenset(f"data/{name}" for name in files), manifest)


@pytest.mark.parametrize(
    ("places", "whole"),
    [
        ([[_part("x", "a")], [_part("x", "b")]], ["x"]),
        ([[_part("x", "a")], [_part("y", "b")]], []),
        ([[_part("x", "a")], []], []),
        ([[_part("x", "a", "b")], [_part("x", "b")]], ["x"]),
        ([[_part("x", "a")], [_part("x", "b")._replace(manifest=None)]], ["x"]),
        ([[_part("x", "a", "b", created="2")], [_part("y", "a", "b", created="1")]], ["x"]),
    ],
    ids=["two parts", "two saves", "one part", "a part twice", "root knows the manifest", "two whole ones"],
)
def test_what_is_whole_with_the_parts_of_all_places(places, whole):
    found = newest_of_each(info for info in joined_steps(places, Path("x")) if info.is_restorable)
    assert [info.manifest.save_id for info in found] == whole


# -- who sees what ----------------------------------------------------------------------------------


@AT_ALL_SIZES
def test_places_are_found_by_what_ranks_see_and_leave_no_marks(ranks, tmp_path_factory):
    where = Path(ranks.on_root(lambda: tmp_path_factory.mktemp("marks")))
    ranks.on_root(lambda: [(where / f"node-{number}").mkdir() for number in range(3)])

    def link(comm):
        alias = where / f"alias-{comm.rank}"
        alias.symlink_to(where / f"node-{two_to_a_node(comm.rank, comm.size)}")  # its own name for each rank
        comm.barrier()
        return tiers.find_nodes(comm, alias)

    found = ranks(link)
    leaders = {2: (0, 1), 3: (0, 0, 2), 5: (0, 0, 2, 2, 4)}.get(ranks.size)
    assert found == [found[0]] * ranks.size
    assert leaders is None or found[0].leaders == leaders
    assert ranks(lambda comm: tiers.find_nodes(comm, where)) == [NodeMap(ranks.size)] * ranks.size
    assert not [
        name for path in (where, *where.glob("node-*")) for name in os.listdir(path) if name.startswith(".seen")
    ]


@AT_ALL_SIZES
def test_a_rank_whose_scratch_cannot_be_made_is_named_on_every_rank(ranks, nodes):
    last = two_to_a_node(ranks.size - 1, ranks.size)

    def block():
        nodes.disks.mkdir()
        (nodes.disks / f"node-{last}").write_text("in the way", encoding="utf-8")

    ranks.on_root(block)

    def body(comm):
        with pytest.raises(errors.StorageError) as caught:
            nodes.open(comm)
        return str(caught.value), sorted(caught.value.failures)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    named = [rank for rank in range(ranks.size) if two_to_a_node(rank, ranks.size) == last]
    assert results[0][1] == named
    assert not list(nodes.disks.glob("node-*/.seen*"))


@AT_ALL_SIZES
def test_scratch_on_some_ranks_alone_is_refused_and_they_are_named(ranks, nodes):
    def body(comm):
        with pytest.raises(errors.OptionError, match=r"options.scratch: rank 0 has a scratch") as caught:
            nodes.open(comm, **({"scratch": None} if comm.rank == comm.size - 1 else {}))
        return sorted(caught.value.failures)

    assert ranks(body) == [[ranks.size - 1]] * ranks.size


@pytest.mark.parametrize("driver", ["direct", "auto"])
def test_backends_whose_ranks_share_files_are_refused(ranks, nodes, driver):
    pytest.importorskip("h5py")

    def body(comm):
        with pytest.raises(errors.OptionError, match="driver='per-rank'") as caught:
            nodes.open(comm, backend="hdf5", backend_options={"driver": driver})
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
