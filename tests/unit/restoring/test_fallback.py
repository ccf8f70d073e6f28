"""Where the newest step cannot be read, the newest good one is: on every rank, in full, and nothing is deleted."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.backends.rankfile.backend import RankfileBackend
from hpcckpt.format import layout
from hpcckpt.restoring import restore

LENGTH = 6000


def state(value: float) -> dict[str, Any]:
    return {"w": np.arange(LENGTH) + float(value), "b": np.full(3, float(value)), "step": int(value)}


def save(ranks: Any, run_dir: Path, *steps: int, **options: Any) -> dict[int, Path]:
    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, **{"max_to_keep": None, **options}) as ckpt:
            for step in steps:
                ckpt.save(step, state(step)).result()

    ranks(body)
    return {step: run_dir / layout.step_dirname(step) for step in steps}


def flip(damage: Any, step: Path) -> None:
    damage.flip(damage.first_file(step), -1)


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def same(held: dict[str, Any], step: int) -> bool:
    good = state(step)
    return all(np.array_equal(held[name], good[name]) for name in good)


class Reads:
    """Reads of steps that fail on some ranks, whatever lies on the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[int, dict[int, Any]] = {}
        self._real = RankfileBackend.read
        monkeypatch.setattr(RankfileBackend, "read", self._read_of())
        monkeypatch.setattr(restore._Reading, "__call__", self._call_of(restore._Reading.__call__))

    def _call_of(self, real: Any) -> Any:
        """Let the backend know which rank reads: each does so on a separate thread."""

        def call(reading: Any) -> Any:
            self._ranks.rank = reading._rank
            return real(reading)

        return call

    def _read_of(self) -> Any:
        self._ranks = threading.local()
        reads = self

        def read(backend: Any, path: Path, manifest: Any, requests: Any) -> Any:
            fault = reads.failing.get(manifest.step, {}).get(reads._ranks.rank)
            found = reads._real(backend, path, manifest, requests)  # what could be read is in the state
            if fault is not None:
                raise fault
            return found

        return read


@pytest.fixture
def reads(monkeypatch):
    """Let reads fail: ``reads.failing = {step: {rank: error}}``."""
    return Reads(monkeypatch)


def restored(ranks: Any, run_dir: Path, **options: Any) -> list[tuple[int, tuple[str, ...]]]:
    def body(comm: Any) -> Any:
        held = state(-1)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            found = ckpt.restore(held, **options)
        assert same(held, found.step)
        return found.step, found.warnings

    return ranks(body)


def disk_error(path: str = "data/rank-00000.safetensors") -> OSError:
    return OSError(errno.EIO, "Input/output error", path)


def damaged_block() -> errors.CorruptError:
    return errors.CorruptError("tensor 'w': checksum mismatch")


def retired() -> errors.RetiredError:
    return errors.RetiredError("it was retired while being read")


# -- every rank hears of it ----------------------------------------------------------------------------


def test_a_disk_that_cannot_read_the_newest_step_costs_that_step_alone(ranks, run_dir, reads):
    save(ranks, run_dir, 10, 20, 30)
    reads.failing = {30: {ranks.size - 1: disk_error()}}
    results = restored(ranks, run_dir)
    assert results == [results[0]] * ranks.size
    step, (warning,) = results[0]
    assert step == 20
    assert "step 30 was skipped" in warning
    assert "Input/output error" in warning


def test_a_header_that_the_disk_cannot_read_costs_that_step_alone(ranks, run_dir, monkeypatch):
    save(ranks, run_dir, 10, 20)
    real = os.pread

    def pread(fd: int, *args: Any) -> bytes:
        if "step-0000000020" in os.readlink(f"/proc/self/fd/{fd}"):
            raise disk_error()
        return real(fd, *args)

    monkeypatch.setattr(os, "pread", pread)
    assert {step for step, _ in restored(ranks, run_dir)} == {10}


def test_a_file_that_grows_shorter_while_it_is_read_costs_that_step_alone(ranks, run_dir, faults, damage):
    steps = save(ranks, run_dir, 10, 20)
    with faults.calling("9-restore", lambda: os.truncate(damage.first_file(steps[20]), 5000)):
        results = restored(ranks, run_dir)
    assert results == [results[0]] * ranks.size
    assert results[0][0] == 10


MIXES = {
    "corrupt and EIO": {0: damaged_block(), 1: disk_error()},
    "corrupt and retired": {0: damaged_block(), 1: retired()},
    "EIO and retired": {1: disk_error(), 2: retired()},
    "all three": {0: retired(), 1: disk_error(), 2: damaged_block()},
}


@pytest.mark.counts(3, 5)
@pytest.mark.parametrize("mix", MIXES)
def test_ranks_that_fail_in_different_ways_fall_back_together(ranks, run_dir, reads, mix):
    if ranks.size < 3:
        pytest.skip("needs 3 ranks")
    save(ranks, run_dir, 10, 20)
    reads.failing = {20: MIXES[mix]}
    results = restored(ranks, run_dir)
    assert results == [results[0]] * ranks.size
    step, (warning,) = results[0]
    assert step == 10
    assert all(f"rank {rank}" in warning for rank in MIXES[mix])


@pytest.mark.counts(1, 3)
def test_what_is_not_the_step_s_fault_is_not_fallen_back_from(ranks, run_dir, reads):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.CollectiveError, match="no memory"):
            ckpt.restore(state(0))

    save(ranks, run_dir, 10, 20)
    reads.failing = {20: {0: MemoryError("no memory"), 1: damaged_block()}}
    ranks(body)


def test_it_is_logged_once_and_says_which_step_was_taken(ranks, run_dir, damage, caplog):
    steps = save(ranks, run_dir, 10, 20, 30)
    ranks.on_root(lambda: [flip(damage, steps[step]) for step in (20, 30)])
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        restored(ranks, run_dir)
    told = [record.getMessage() for record in caplog.records if "was skipped" in record.getMessage()]
    assert len(told) in ({1} if not hasattr(ranks, "_world") else {0, 1})
    assert all("restored step 10" in text and "step 20" in text and "step 30" in text for text in told)


def test_warnings_are_the_same_on_all_ranks_even_where_states_differ(group, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(1)).result()
            held = state(0) | {f"extra{comm.rank}": np.zeros(2)}
            return ckpt.restore(held, strict=False).warnings

    first, second = group(2, body)
    assert first == second
    assert any("extra0" in text for text in first)
    assert any("extra1" in text for text in first)


def test_a_step_that_is_replaced_while_it_is_read_is_read_again(run_dir, faults):
    """It is not damaged, and no older step is taken for it."""
    with hc.Checkpointer(run_dir) as ckpt, hc.Checkpointer(run_dir) as other:
        ckpt.save(10, state(10)).result()
        ckpt.save(20, state(20)).result()
        other.restore(state(0))
        held = state(0)
        with faults.calling("9-restore", lambda: other.save(20, state(99), overwrite=True).result()):
            found = ckpt.restore(held)
    assert found.step == 20
    assert held["b"].tolist() == [99.0] * 3
    assert "replaced while being read" in found.warnings[0]


# -- the state is whole afterwards ---------------------------------------------------------------------


@pytest.mark.counts(1, 2, 5)
def test_what_a_damaged_step_had_overwritten_is_overwritten_in_full(ranks, run_dir, damage):
    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: flip(damage, steps[20]))
    results = restored(ranks, run_dir)  # compares every value
    assert {step for step, _ in results} == {10}


def test_without_a_good_step_the_error_says_that_the_state_may_be_half_overwritten(ranks, run_dir, damage):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.NoRestorableStepError) as caught:
            ckpt.restore(state(0))
        return str(caught.value)

    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: [flip(damage, path) for path in steps.values()])
    for text in ranks(body):
        assert "; the state may be partly overwritten; check its steps with 'hpcckpt verify " in text


def test_without_any_step_it_is_not_said(run_dir):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(errors.StepNotFoundError) as caught:
        ckpt.restore(state(0))
    assert "overwritten" not in str(caught.value)


def test_a_damaged_step_that_was_asked_for_says_so_too(ranks, run_dir, damage):
    def body(comm):
        with (
            hc.Checkpointer(run_dir, comm=comm) as ckpt,
            pytest.raises(errors.CorruptError, match="partly overwritten"),
        ):
            ckpt.restore(state(0), 20)

    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: flip(damage, steps[20]))
    ranks(body)


def test_a_good_step_that_lacks_what_was_half_overwritten_is_not_taken(run_dir, damage):
    """It would leave damaged bytes in the state without a word."""
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.save(5, {"w": np.ones(9), "late": np.ones(9)}).result()
        ckpt.save(10, {"w": np.ones(9)}).result()
        ckpt.save(20, {"w": np.ones(9), "late": np.ones(9)}).result()
        flip(damage, run_dir / layout.step_dirname(20))
        held = {"w": np.zeros(9), "late": np.zeros(9)}
        found = ckpt.restore(held, strict=False)
    assert found.step == 5
    assert held["late"].sum() == 9
    assert any("lacks late" in text for text in found.warnings)


def test_a_mismatch_after_a_damaged_step_does_not_claim_that_nothing_was_changed(run_dir, damage):
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.save(10, {"w": np.ones(9)}).result()
        ckpt.save(20, {"w": np.ones(9), "late": np.ones(9)}).result()
        flip(damage, run_dir / layout.step_dirname(20))
        with pytest.raises(errors.StateMismatchError, match="may be partly overwritten"):
            ckpt.restore({"w": np.zeros(9), "late": np.zeros(9)})


# -- evidence ------------------------------------------------------------------------------------------


def go_on(ranks: Any, run_dir: Path, *steps: int, **options: Any) -> list[Any]:
    """Restore what can be, then save steps, in one job; return the step that was restored and the last outcome."""

    def body(comm: Any) -> Any:
        with hc.Checkpointer(run_dir, comm=comm, **options) as ckpt:
            held = state(0)
            found = ckpt.restore(held)
            saved = [ckpt.save(step, state(step)).result() for step in steps]
        return found.step, [each.kept for each in saved], [each.warnings for each in saved]

    return ranks(body)


@pytest.mark.parametrize("recycle", [True, False])
def test_a_damaged_newest_step_does_not_make_retention_delete_the_last_good_one(ranks, run_dir, damage, recycle):
    """Its manifest and its size are fine: retention alone would count it."""
    steps = save(ranks, run_dir, 10, 20, 30)
    ranks.on_root(lambda: flip(damage, steps[30]))
    before = ranks.on_root(lambda: contents(steps[30]))
    results = go_on(ranks, run_dir, 40, max_to_keep=2, recycle=recycle)
    assert results == [(20, [2], [()])] * ranks.size
    assert {path.name for path in (steps[20], steps[30])} < set(os.listdir(run_dir))
    assert not steps[10].exists()
    assert contents(steps[30]) == before


@pytest.mark.parametrize("recycle", [True, False])
def test_a_damaged_step_outlives_any_number_of_saves(ranks, run_dir, damage, recycle):
    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: flip(damage, steps[20]))
    before = ranks.on_root(lambda: contents(steps[20]))
    go_on(ranks, run_dir, 30, 40, 50, 60, max_to_keep=1, recycle=recycle)
    assert contents(steps[20]) == before
    assert hc.latest_checkpoint(run_dir) == run_dir / layout.step_dirname(60)


@pytest.mark.parametrize("overwrite", [True, False])
def test_saving_the_number_of_a_damaged_step_moves_it_aside(ranks, run_dir, damage, overwrite):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(state(0))
            for step in (20, 30):
                ckpt.save(step, state(step), overwrite=overwrite).result()

    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: flip(damage, steps[20]))
    before = ranks.on_root(lambda: contents(steps[20]))
    ranks(body)
    (evidence,) = run_dir.glob(".bad-*")
    assert contents(evidence) == before
    assert hc.load(steps[20])["b"][0] == 20


def test_saving_below_a_damaged_newest_step_goes_on(ranks, run_dir, damage):
    """What cannot be restored need not be restored first."""
    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: flip(damage, steps[20]))
    assert go_on(ranks, run_dir, 15)[0][0] == 10
    assert hc.load(run_dir / layout.step_dirname(15))["b"][0] == 15


def test_a_job_that_only_reads_moves_nothing(ranks, run_dir, damage):
    steps = save(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: flip(damage, steps[20]))
    before = ranks.on_root(lambda: contents(run_dir))
    restored(ranks, run_dir)
    after = {name: text for name, text in contents(run_dir).items() if not name.startswith(layout.DAMAGED)}
    assert after == before  # beside the record of what was found damaged


def test_a_step_the_disk_could_not_read_is_kept_and_read_when_it_can(ranks, run_dir, reads):
    save(ranks, run_dir, 10, 20)
    reads.failing = {20: {0: disk_error()}}

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            first = ckpt.restore(state(0)).step
            ckpt.save(30, state(30)).result()
            comm.barrier()
            reads.failing = {30: {0: disk_error()}}
            comm.barrier()
            return first, ckpt.restore(state(0)).step

    assert ranks(body) == [(10, 20)] * ranks.size


def test_a_step_that_could_be_read_later_counts_as_good_again(ranks, run_dir, reads):
    save(ranks, run_dir, 10, 20)
    reads.failing = {20: {0: disk_error()}}

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None) as ckpt:
            first = ckpt.restore(state(0)).step
            comm.barrier()
            reads.failing = {}
            comm.barrier()
            second = ckpt.restore(state(0)).step
            with pytest.raises(errors.StepExistsError):
                ckpt.save(20, state(20)).result()
        return first, second

    assert ranks(body) == [(10, 20)] * ranks.size
