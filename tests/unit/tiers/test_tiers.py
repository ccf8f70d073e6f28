"""Two tiers: steps commit on scratch, are drained to the run directory, and no half copy is ever taken for a step."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt import errors, tiers
from hpcckpt.checkpointer import shutdown
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import discovery
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.retention import leftovers
from hpcckpt.tiers.drain import Drain
from hpcckpt.tools.inspect import check_step
from tests.support.programs import environment
from tests.support.two_tiers import Trap, are_whole, kill, raising, restored, save_steps, state

pytestmark = pytest.mark.counts(1, 2, 3)
PUBLISHING = ("4-check", "4-manifest", "4-durable", "5-published", "6-parent-synced")
UNPUBLISHED = {*tiers.PHASES[:-1], *PUBLISHING[:3]}
INSTANTS = ("drain-begun", "copy-piece", "copy-synced", "4-manifest", "4-durable", "5-published", "drain-published")
assert {*INSTANTS, "copy-verified", "4-check", "6-parent-synced"} == {
    *tiers.PHASES,
    *PUBLISHING,
}  # the rest say no more


@pytest.fixture
def gate(trap: Trap) -> Trap:
    """Holds drains at their beginning until it lets them go."""
    trap.hold_drains()
    return trap


def arrival_of_a_drain(phase: str) -> int:
    return 2 if phase in PUBLISHING else 1  # a step is published on scratch first


# -- what is where ----------------------------------------------------------------------------------


def test_a_step_commits_on_scratch_and_is_the_same_save_in_the_run_directory(ranks, places, gate):
    def body(comm):
        with places.open(comm) as ckpt:
            pending = ckpt.save(1, state(1, comm.rank))
            saved = pending.result()
            comm.barrier()
            before = discovery.step_numbers(places.home), ckpt.latest_step(), ckpt.all_steps(), ckpt.is_draining
            comm.barrier()
            gate.let_drains_go()
            durable = pending.durable()
        return saved.tier, saved.path.parent, before, durable.tier, durable.path.parent, durable.kept

    expected = ("scratch", places.near, ([], 1, [1], True), "run", places.home, 1)
    assert ranks(body) == [expected] * ranks.size
    name = layout.step_dirname(1)
    assert discovery.read_manifest(places.near / name) == discovery.read_manifest(places.home / name)
    assert check_step(places.home / name).is_whole


@pytest.mark.counts(1, 2)
@pytest.mark.parametrize("options", [{"backend": "hdf5"}, {"incremental": True}, {"async_save": False}])
def test_whatever_writes_a_step_it_is_drained_whole(ranks, places, options):
    pytest.importorskip("h5py")
    save_steps(places, ranks, 1, 2, 3, **options)
    ranks.on_root(lambda: shutil.rmtree(places.disks))
    assert restored(places, ranks)[:2] == (3, places.home)
    assert are_whole(places, [1, 2, 3])


def test_when_the_job_ends_nothing_is_on_scratch_alone(ranks, places):
    save_steps(places, ranks, 1, 2, 3, 4, max_to_keep=2)
    assert discovery.step_numbers(places.home) == [3, 4]
    assert leftovers(places.home) == []
    assert restored(places, ranks)[:2] == (4, places.near)
    ranks.on_root(lambda: shutil.rmtree(places.disks))
    assert restored(places, ranks)[:2] == (4, places.home)


def test_the_program_ends_without_a_word_and_everything_is_drained(tmp_path):
    text = (
        "import numpy as np, hpcckpt as hc\n"
        f"run, scratch = {str(tmp_path / 'run')!r}, {str(tmp_path / 'scratch')!r}\n"
        "ckpt = hc.Checkpointer(run, scratch=scratch, scratch_bandwidth=1e6)\n"
        "ckpt.save(1, {'w': np.ones(1_000_000)}).result()\n"
        "assert ckpt.is_draining\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert hc.load(tmp_path / "run")["w"].tolist() == [1.0] * 1_000_000
    assert os.path.lexists(tmp_path / "run" / layout.LOCK) is False


def test_the_program_ends_with_a_step_that_cannot_be_drained_and_leaves_no_lock(tmp_path):
    text = (
        "import numpy as np, hpcckpt as hc\n"
        "from hpcckpt.core import failpoints\n"
        "def refuse(phase, rank):\n"
        "    if phase == 'drain-begun':\n"
        "        raise OSError(122, 'Disk quota exceeded')\n"
        "failpoints.install_hook(refuse)\n"
        f"run, scratch = {str(tmp_path / 'run')!r}, {str(tmp_path / 'scratch')!r}\n"
        "hc.Checkpointer(run, scratch=scratch).save(1, {'w': np.ones(10)}).result()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, "drain step 1" in done.stderr) == (0, True)
    assert not list(tmp_path.glob(f"run/{layout.LOCK}")) + list(tmp_path.glob(f"scratch/*/{layout.LOCK}"))


def test_scratch_keeps_the_newest_and_what_is_not_drained(ranks, places, gate):
    def body(comm):
        with places.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).result()
            ckpt.save(2, state(2, comm.rank)).result()
            comm.barrier()
            held = discovery.step_numbers(places.near)
            comm.barrier()
            gate.let_drains_go()
            ckpt.wait(durable=True)
            ckpt.save(3, state(3, comm.rank)).durable()
            ckpt.save(4, state(4, comm.rank)).durable()
        return held, discovery.step_numbers(places.near)[-1]

    assert ranks(body) == [([1, 2], 4)] * ranks.size
    assert discovery.step_numbers(places.near) == [4]
    assert discovery.step_numbers(places.home) == [2, 3, 4]


def test_scratch_keeps_what_is_not_drained_though_it_cannot_be_pinned(ranks, places, gate, monkeypatch):
    def refuse(*_args: Any, **_options: Any) -> None:
        raise errors.NoSpaceError("pin: No space left on device")

    monkeypatch.setattr("hpcckpt.rundir.pins.pin", refuse)

    def body(comm):
        with places.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).result()
            ckpt.save(2, state(2, comm.rank)).result()
            comm.barrier()
            held = discovery.step_numbers(places.near)
            comm.barrier()
            gate.let_drains_go()
            ckpt.wait(durable=True)
            ckpt.save(3, state(3, comm.rank)).durable()
        return held

    assert ranks(body) == [[1, 2]] * ranks.size
    assert discovery.step_numbers(places.near) == [3]
    assert discovery.step_numbers(places.home) == [1, 2, 3]


def test_a_save_waits_for_the_drain_before_the_last_so_scratch_is_bounded(ranks, places, gate):
    def body(comm):
        with places.open(comm) as ckpt:
            for step in (1, 2):
                ckpt.save(step, state(step, comm.rank)).result()
            was_held = gate.is_holding
            comm.barrier()
            if comm.is_root:
                threading.Timer(0.3, gate.let_drains_go).start()
            ckpt.save(3, state(3, comm.rank))
            is_held = gate.is_holding
            comm.barrier()
            return was_held, is_held, 1 in discovery.step_numbers(places.home)

    assert ranks(body) == [(True, False, True)] * ranks.size


def test_the_pace_is_kept_while_training_goes_on_and_not_when_the_job_ends(ranks, places):
    def body(comm):
        with places.open(comm, scratch_bandwidth=1e5) as ckpt:
            began = time.monotonic()
            ckpt.save(1, state(1, comm.rank)).result()
            while ckpt.is_draining:
                ckpt.poll()
                time.sleep(0.01)
            paced = time.monotonic() - began
        ckpt = places.open(comm, scratch_bandwidth=1.0)
        ckpt.restore(state(0, comm.rank))
        ckpt.save(2, state(2, comm.rank)).result()
        began = time.monotonic()
        ckpt.close()
        return paced > 0.2, time.monotonic() - began < 120

    assert ranks(body) == [(True, True)] * ranks.size
    assert discovery.step_numbers(places.home) == [1, 2]


# -- which copy is taken ----------------------------------------------------------------------------


def test_a_damaged_copy_on_scratch_is_passed_over_for_the_one_in_the_run_directory(ranks, places):
    save_steps(places, ranks, 1, 2)
    for file in (places.near / layout.step_dirname(2) / "data").iterdir():
        with file.open("r+b") as opened:
            opened.seek(-20, os.SEEK_END)
            opened.write(b"\xff\xff\xff")
    step, place, warnings = restored(places, ranks)
    assert (step, place) == (2, places.home)
    assert "step 2 was skipped" in warnings[0]
    assert restored(places, ranks, 2)[:2] == (2, places.home)


def test_a_step_that_is_asked_for_is_found_in_either_place(ranks, places):
    save_steps(places, ranks, 1, 2, 3)
    assert restored(places, ranks, 1)[:2] == (1, places.home)
    assert restored(places, ranks, 3)[:2] == (3, places.near)
    with pytest.raises(errors.StepNotFoundError):
        restored(places, ranks, 7)


def test_a_step_on_scratch_that_the_run_went_on_without_does_not_count(ranks, places, trap):
    kill(places, ranks, trap, "drain-begun")
    elsewhere = places.elsewhere()

    def body(comm):
        with elsewhere.open(comm) as ckpt:
            held = state(0, comm.rank)
            assert ckpt.restore(held).step == 1
            ckpt.save(5, state(5, comm.rank))

    ranks(body)
    assert 2 in discovery.step_numbers(places.near)
    assert restored(places, ranks)[:2] == (5, places.home)

    def go_on(comm):
        with places.open(comm) as ckpt:
            ckpt.restore(state(0, comm.rank))
            ckpt.save(6, state(6, comm.rank))

    ranks(go_on)
    assert discovery.step_numbers(places.home) == [1, 5, 6]
    assert discovery.step_numbers(places.near) == [6]


def test_what_a_deleted_run_left_on_scratch_is_not_taken_for_the_new_one(ranks, places):
    save_steps(places, ranks, 1, 2)
    ranks.on_root(lambda: shutil.rmtree(places.home))
    with pytest.raises(errors.StepNotFoundError):
        restored(places, ranks)
    save_steps(places, ranks, 1)
    assert restored(places, ranks)[:2] == (1, places.near)
    assert discovery.step_numbers(places.near) == [1]


def _info(step: int, save_id: str, parent: str | None) -> StepInfo:
    manifest = Manifest(save_id, "r", parent, step, 1, "", "rankfile", 1, (), ())
    return StepInfo(step, Path("x"), manifest)


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        ([(3, "c", "b")], [], [3]),
        ([(3, "c", "b")], [(3, "c", "b")], [3]),
        ([(3, "c", "b"), (2, "b", "a")], [(1, "a", None)], [3, 2]),
        ([(3, "c", "b")], [(1, "a", None)], []),
        ([(3, "c", "a")], [(1, "a", None), (2, "z", "a")], []),
        ([(3, "c", "a")], [(3, "z", "a"), (1, "a", None)], []),
        ([(3, "c", "d"), (4, "d", "c")], [(1, "a", None)], []),
    ],
    ids=["home is empty", "the same save", "a chain", "no chain", "another branch", "another save", "a ring"],
)
def test_what_counts_on_scratch(near, far, expected):
    found = tiers.valid_steps([_info(*each) for each in near], [_info(*each) for each in far])
    assert [info.step for info in found] == expected


# -- kills and losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", INSTANTS)
def test_a_drain_killed_anywhere_leaves_no_half_copy_and_the_run_goes_on(ranks, places, trap, phase):
    kill(places, ranks, trap, phase, arrival=arrival_of_a_drain(phase))
    newest = 1 if phase in UNPUBLISHED else 2
    assert are_whole(places, range(1, newest + 1))
    elsewhere = places.elsewhere()
    assert restored(elsewhere, ranks)[:2] == (newest, places.home)

    def go_on(comm):
        with places.open(comm) as ckpt:
            found = ckpt.restore(state(0, comm.rank))
            ckpt.save(3, state(3, comm.rank))
        return found.step, found.path.parent

    assert ranks(go_on) == [(2, places.near)] * ranks.size
    assert are_whole(places, [1, 2, 3])
    assert leftovers(places.home) == []


@pytest.mark.parametrize("phase", INSTANTS)
def test_scratch_deleted_at_any_instant_costs_at_most_what_was_not_drained(ranks, places, trap, phase):
    def body(comm):
        ckpt = places.open(comm)
        ckpt.save(1, state(1, comm.rank)).durable()
        comm.barrier()
        if comm.is_root:
            trap.set(phase, lambda: shutil.rmtree(places.disks), arrival=arrival_of_a_drain(phase))
        comm.barrier()
        ckpt.save(2, state(2, comm.rank))
        try:
            ckpt.close()
        except errors.CollectiveError as error:
            return str(error)
        return ""

    results = ranks(body)
    assert trap.has_sprung
    assert results == [results[0]] * ranks.size
    newest = discovery.step_numbers(places.home)[-1]
    assert (newest == 2) == (results[0] == "")
    assert newest == 2 or "drain step 2" in results[0]
    assert restored(places, ranks)[:2] == (newest, places.home)
    assert check_step(places.home / layout.step_dirname(newest)).is_whole


@pytest.mark.parametrize("phase", ["copy-piece", "4-manifest", "5-published"])
def test_a_failed_drain_is_the_same_error_on_all_ranks_and_repeated_at_the_end(ranks, places, trap, phase):
    fail = raising(OSError(errno.EIO, "Input/output error", "/a/file"))

    def body(comm):
        with places.open(comm) as ckpt:
            ckpt.save(1, state(1, comm.rank)).durable()
            comm.barrier()
            if comm.is_root:
                trap.set(phase, fail, arrival=arrival_of_a_drain(phase))
            comm.barrier()
            pending = ckpt.save(2, state(2, comm.rank))
            pending.result()
            with pytest.raises(errors.StorageError, match=r"drain step 2.*Input/output") as caught:
                pending.durable()
            comm.barrier()
            steps, left = ckpt.all_steps(), leftovers(places.home)
            comm.barrier()
        return str(caught.value), steps, left

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert results[0][1:] == ([1, 2], [])
    assert discovery.step_numbers(places.home) == [1, 2]


def refuse(comm: Any, trap: Trap, *refused: tuple[str, int]) -> None:
    """Let ranks find no room at these phases from now on."""
    comm.barrier()
    if comm.is_root:
        trap.refused = set(refused)
    comm.barrier()


def test_a_step_that_cannot_be_drained_again_is_an_error_each_time(ranks, places, trap):
    def body(comm):
        ckpt = places.open(comm)
        ckpt.save(1, state(1, comm.rank)).durable()
        refuse(comm, trap, ("drain-begun", 0))
        texts = []
        for call in (ckpt.save(2, state(2, comm.rank)).durable, lambda: ckpt.wait(durable=True), ckpt.close):
            with pytest.raises(errors.NoSpaceError) as caught:
                call()
            texts.append(str(caught.value))
        return texts

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert all("drain step 2" in text for text in results[0])


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_run_that_went_back_goes_on_whatever_becomes_of_the_drains_that_failed(ranks, places, trap, is_waiting):
    def body(comm):
        with places.open(comm, on_newer="aside", max_to_keep=None) as ckpt:
            for step in (1, 2):
                ckpt.save(step, state(step, comm.rank)).durable()
            refuse(comm, trap, ("drain-begun", 0))
            for step in (3, 4):
                with pytest.raises(errors.NoSpaceError):
                    ckpt.save(step, state(step, comm.rank)).durable()
            ckpt.restore(state(0, comm.rank), step=2)
            refuse(comm, trap)
            if is_waiting:  # nothing that was saved is lost until the run goes on
                ckpt.wait(durable=True)
            comm.barrier()
            steps = discovery.step_numbers(places.home)
            comm.barrier()
            for step in (3, 4):
                ckpt.save(step, state(10 * step, comm.rank)).durable()
                ckpt.wait(durable=True)
            return steps

    assert ranks(body) == [[1, 2, 3, 4] if is_waiting else [1, 2]] * ranks.size
    assert discovery.step_numbers(places.home) == [1, 2, 3, 4]
    assert [hc.load(places.home, step=step)["w"][0] for step in (3, 4)] == [30, 40]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_drain_that_failed_is_repeated_though_an_exception_ends_the_run(ranks, places, trap, is_last):
    def body(comm):
        ckpt = places.open(comm)
        ckpt.save(1, state(1, comm.rank)).durable()
        refuse(comm, trap, ("drain-begun", 0))
        with pytest.raises(errors.NoSpaceError):
            ckpt.save(2, state(2, comm.rank)).durable()
        refuse(comm, trap)
        if is_last or comm.is_root:
            ckpt.__exit__(ValueError, ValueError("own"), None)
        comm.barrier()
        if not ckpt._session.is_closed:  # as at the end of the program
            shutdown._finish(ckpt._session)

    ranks(body)
    assert discovery.step_numbers(places.home) == [1, 2]


def test_a_forgotten_run_keeps_its_lock_until_its_steps_are_drained(places, trap):
    """Other ranks may be draining them again, and the copies would be swept."""
    ckpt = places.open(SerialCommunicator())
    trap.refused = {("drain-begun", 0)}
    with pytest.raises(errors.NoSpaceError):
        ckpt.save(1, state(1)).durable()
    del ckpt
    gc.collect()
    shutdown._forgotten.release()
    hc.Checkpointer(places.home.with_name("elsewhere")).close()
    assert (places.home / layout.LOCK).exists()
    trap.refused = set()
    with places.open(SerialCommunicator()) as ckpt:
        assert discovery.step_numbers(places.home) == [1]
        assert ckpt.restore(state(0)).step == 1
    assert not (places.home / layout.LOCK).exists()


def test_an_error_of_a_restore_names_the_run_directory(ranks, places):
    def body(comm):
        with places.open(comm) as ckpt, pytest.raises(errors.NoRestorableStepError) as caught:
            ckpt.restore(state(0, comm.rank))
        return str(caught.value)

    with hc.Checkpointer(places.home) as ckpt:
        ckpt.save(1, state(1)).result()
    os.truncate(places.home / layout.step_dirname(1) / "data" / "rank-00000.safetensors", 5)
    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert f"no restorable step in {places.home}, " in results[0]


def test_what_the_run_directory_does_not_give_back_is_not_published(ranks, places, trap):
    def damage():
        for path in places.home.glob(".step-*/data/*"):
            with path.open("r+b") as file:
                file.seek(-20, os.SEEK_END)
                file.write(b"\xff\xff\xff")

    def body(comm):
        with places.open(comm) as ckpt:
            if comm.is_root:
                trap.set("copy-synced", damage, arrival=comm.size)  # until then files are not there, or not whole
            comm.barrier()
            pending = ckpt.save(1, state(1, comm.rank))
            with pytest.raises(errors.StorageError, match="does not give back"):
                pending.durable()
            comm.barrier()
            there = discovery.step_numbers(places.home)
            comm.barrier()
        return there

    assert ranks(body) == [[]] * ranks.size
    assert check_step(places.home / layout.step_dirname(1)).is_whole


def test_what_a_killed_job_had_not_drained_is_drained_by_the_next_one(ranks, places, trap):
    kill(places, ranks, trap, "copy-piece")

    def go_on(comm):
        with places.open(comm) as ckpt:
            assert ckpt.restore(state(0, comm.rank)).step == 2
            ckpt.save(3, state(3, comm.rank))

    ranks(go_on)
    ranks.on_root(lambda: shutil.rmtree(places.disks))
    assert restored(places, ranks, 2)[:2] == (2, places.home)


def test_a_run_that_went_back_and_is_killed_before_its_first_drain_goes_on_there(ranks, places, trap):
    save_steps(places, ranks, 2, 4, 6, max_to_keep=None)

    def go_back(comm):
        with places.open(comm, on_newer="aside", max_to_keep=None) as ckpt:
            assert ckpt.restore(state(0, comm.rank), 2).step == 2
            if comm.is_root:
                trap.set("drain-begun", places.keep)
            comm.barrier()
            ckpt.save(3, state(3, comm.rank))

    ranks(go_back)
    places.bring_back()
    assert discovery.step_numbers(places.home) == [2]
    assert len([name for name in os.listdir(places.home) if name.startswith(".aside-")]) == 2
    assert restored(places, ranks)[:2] == (3, places.near)


def go_back(places, ranks, act):
    """Save step 3 after a restore of step 2 of 2, 4 and 6; `act` is called as root, on each rank, before the save."""

    def body(comm):
        with places.open(comm, on_newer="aside", max_to_keep=None) as ckpt:
            assert ckpt.restore(state(0, comm.rank), 2).step == 2
            comm.barrier()
            if comm.is_root:
                act()
            comm.barrier()
            ckpt.save(3, state(3, comm.rank)).result()

    ranks(body)


@pytest.mark.parametrize(
    ("phase", "steps"),
    [
        ("4-sealed", {6}),
        ("4-durable", {2, 6}),  # 6 if scratch has 4 and 6: nothing was saved after 2 yet
        ("5-published", {3}),
        ("6-parent-synced", {3}),
        ("8-retention", {3}),
    ],
)
def test_a_run_that_went_back_and_is_killed_at_its_first_commit_forgets_no_commit(ranks, places, trap, phase, steps):
    save_steps(places, ranks, 2, 4, 6, max_to_keep=None)
    go_back(places, ranks, lambda: trap.set(phase, places.keep))
    assert trap.has_sprung
    places.bring_back()
    assert restored(places, ranks)[0] in steps
    n_aside = len([name for name in os.listdir(places.home) if name.startswith(".aside-")])
    assert n_aside == (0 if phase == "4-sealed" else 2)


def test_a_first_commit_that_fails_leaves_the_newer_steps_where_they_are(ranks, places, trap):
    save_steps(places, ranks, 2, 4, 6, max_to_keep=None)
    with pytest.raises(errors.StorageError, match="step 3"):
        go_back(places, ranks, lambda: trap.set("4-durable", raising(OSError(errno.EIO, "Input/output error"))))
    assert discovery.step_numbers(places.home) == [2, 4, 6]
    assert restored(places, ranks)[0] == 6


# -- a long run -------------------------------------------------------------------------------------


@pytest.mark.counts(1, 2)
def test_a_drain_that_is_over_is_forgotten_except_by_who_asks_for_its_step(ranks, places):
    def body(comm):
        with places.open(comm, max_to_keep=2) as ckpt:
            first = ckpt.save(0, state(0, comm.rank))
            for step in range(1, 12):
                ckpt.save(step, state(step, comm.rank))
            ckpt.save(12, state(12, comm.rank)).durable()
            comm.barrier()
            gc.collect()
            drains = [each for each in gc.get_objects() if isinstance(each, Drain)]
            n_known = sum(places.disks in each.saved.path.parents for each in drains)  # not those of other tests
            del drains
            comm.barrier()
            return n_known, first.durable().step, first.durable().tier

    bound = 4 * ranks.size  # the first, what a save may not overtake, and the newest
    for n_known, step, tier in ranks(body):
        assert 0 < n_known <= bound
        assert (step, tier) == (0, "run")


# -- refusals ---------------------------------------------------------------------------------------


def test_a_step_that_only_the_run_directory_has_still_is_not_saved_twice(ranks, places):
    save_steps(places, ranks, 1, 2)
    ranks.on_root(lambda: shutil.rmtree(places.disks))

    def body(comm):
        with places.open(comm) as ckpt:
            ckpt.restore(state(0, comm.rank))
            with pytest.raises(errors.StepExistsError):
                ckpt.save(2, state(2, comm.rank)).result()
            ckpt.save(2, state(7, comm.rank), overwrite=True).result()
            ckpt.save(2, state(8, comm.rank), overwrite=True)

    ranks(body)
    assert hc.load(places.home / layout.step_dirname(2))["w"].tolist() == [8.0] * 4_000
    assert discovery.step_numbers(places.home) == [1, 2]
    assert leftovers(places.home) == []


@pytest.mark.parametrize(
    ("name", "value"), [("scratch", ""), ("scratch_bandwidth", 0), ("scratch_bandwidth", "fast"), ("scratch_keep", 0)]
)
def test_wrong_options_are_named(tmp_path, name, value):
    with pytest.raises(errors.OptionError, match=f"options.{name}"):
        hc.Checkpointer(tmp_path / "run", **{"scratch": tmp_path / "scratch", name: value})
