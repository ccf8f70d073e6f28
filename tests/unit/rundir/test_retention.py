"""What is kept, what goes, and that nothing goes before its successor is durable."""

from __future__ import annotations

import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.core import files
from hpcckpt.core.system import SystemClock
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery, pins as run_pins
from hpcckpt.testing.faults import Fault, armed
from tests.support.listing import listed


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(50, float(value))}


def save_all(ranks: Any, run_dir: Path, losses: dict[int, float | None], **options: Any) -> list[Any]:
    """Save steps with their losses; return each rank's idea of what is left, and the counts of `kept`."""

    def body(comm: Any) -> Any:
        with hc.Checkpointer(run_dir, comm=comm, **options) as ckpt:
            kept = [
                ckpt.save(step, state(step), metrics=None if loss is None else {"loss": loss}).result().kept
                for step, loss in losses.items()
            ]
            return ckpt.all_steps(), kept

    return ranks(body)


def saved(*steps: int) -> dict[int, float | None]:
    return dict.fromkeys(steps)


def test_the_newest_steps_are_kept(ranks, run_dir):
    results = save_all(ranks, run_dir, saved(1, 2, 3, 4, 5), max_to_keep=2)
    assert results == [([4, 5], [1, 2, 2, 2, 2])] * ranks.size
    assert listed(run_dir) == [layout.step_dirname(4), layout.step_dirname(5)]


def test_a_save_parses_no_manifest_of_an_earlier_step_whether_it_is_pinned_or_not(run_dir, monkeypatch):
    read, parsed = discovery.read_manifest, []
    with hc.Checkpointer(run_dir, max_to_keep=2) as ckpt:
        for step in range(1, 5):
            ckpt.save(step, state(step)).result()
            ckpt.pin(step)
        monkeypatch.setattr(discovery, "read_manifest", lambda *args: parsed.append(Path(args[0]).name) or read(*args))
        monkeypatch.setattr(run_pins, "read_manifest", discovery.read_manifest)
        for step in (5, 6):
            ckpt.save(step, state(step)).result()
    assert parsed == [layout.step_dirname(step) for step in (5, 6)]


def test_without_a_limit_all_are_kept(ranks, run_dir):
    assert save_all(ranks, run_dir, saved(1, 2, 3, 4), max_to_keep=None)[0] == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_the_best_step_is_kept_besides(ranks, run_dir):
    losses = {1: 0.5, 2: 0.1, 3: 0.4, 4: 0.3}
    assert save_all(ranks, run_dir, losses, max_to_keep=1, keep_best="loss")[0][0] == [2, 4]


def test_the_largest_metric_is_best_when_asked(ranks, run_dir):
    losses = {1: 0.5, 2: 0.1, 3: 0.4, 4: 0.3}
    assert save_all(ranks, run_dir, losses, max_to_keep=1, keep_best="max:loss")[0][0] == [1, 4]


def test_several_best_steps_are_kept_when_asked(ranks, run_dir):
    losses = {1: 0.5, 2: 0.1, 3: 0.4, 4: 0.9, 5: 0.8}
    assert save_all(ranks, run_dir, losses, max_to_keep=1, keep_best=hc.Best("loss", "min", 2))[0][0] == [2, 3, 5]


@pytest.mark.parametrize("never_best", [math.nan, math.inf, -math.inf, None])
def test_a_step_without_a_finite_metric_is_never_best(ranks, run_dir, never_best):
    losses = {1: 0.5, 2: never_best, 3: 0.4, 4: 0.9}
    assert save_all(ranks, run_dir, losses, max_to_keep=1, keep_best="loss")[0][0] == [3, 4]


@pytest.mark.parametrize("name", ["loss", "val_loss"])
def test_a_metric_that_no_step_has_is_reported_once_a_step_is_removed(run_dir, caplog, name):
    save_all(lambda body: body(None), run_dir, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, max_to_keep=1, keep_best=name)
    logged = [record.getMessage() for record in caplog.records if "keep_best" in record.getMessage()]
    problem = f"keep_best keeps nothing in {run_dir}: no restorable step has a finite 'val_loss'; metrics there: loss"
    assert logged == ([] if name == "loss" else [f"hpcckpt: {problem}"])


@pytest.mark.counts(1, 2, 5)
def test_every_rank_is_told_the_same_best_step(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, keep_best="min:loss") as ckpt:
            before = ckpt.best_step()
            for step, loss in {1: math.nan, 2: 0.2, 3: 0.3}.items():
                ckpt.save(step, state(step), metrics={"loss": loss})
            return before, ckpt.best_step()

    assert ranks(body) == [(None, 2)] * ranks.size


def test_periodic_steps_are_kept_for_ever(ranks, run_dir):
    assert save_all(ranks, run_dir, saved(*range(8)), max_to_keep=1, keep_period=3)[0][0] == [0, 3, 6, 7]


def test_a_pinned_step_is_kept_until_it_is_unpinned(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            ckpt.save(1, state(1)).result()
            ckpt.pin(1)
            ckpt.save(2, state(2))
            ckpt.save(3, state(3)).result()
            while_pinned = ckpt.all_steps()
            there_was = ckpt.unpin(1), ckpt.unpin(1)
            ckpt.save(4, state(4)).result()
            return while_pinned, there_was, ckpt.all_steps()

    assert ranks(body) == [([1, 3], (True, False), [4])] * ranks.size


def test_only_a_step_that_is_there_can_be_pinned(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StepNotFoundError, match="step 7"):
            ckpt.pin(7)

    ranks(body)


def test_a_damaged_step_is_never_removed_and_counts_for_nothing(ranks, run_dir, damage):
    save_all(ranks, run_dir, saved(1, 2, 3), max_to_keep=None)
    ranks.on_root(lambda: damage.cut(damage.first_file(run_dir / layout.step_dirname(2))))
    assert save_all(ranks, run_dir, saved(4), max_to_keep=2)[0][0] == [3, 4]
    assert listed(run_dir) == [layout.step_dirname(step) for step in (2, 3, 4)]


def test_a_step_without_a_manifest_is_never_removed(ranks, run_dir):
    save_all(ranks, run_dir, saved(1, 2), max_to_keep=None)
    ranks.on_root((run_dir / layout.step_dirname(1) / layout.MANIFEST).unlink)
    save_all(ranks, run_dir, saved(3), max_to_keep=1)
    assert listed(run_dir) == [layout.step_dirname(1), layout.step_dirname(3)]


def test_foreign_files_in_the_run_directory_are_left_alone(ranks, run_dir):
    def put():
        run_dir.mkdir()
        (run_dir / "notes.txt").write_text("mine", encoding="utf-8")
        (run_dir / "step-7").mkdir()
        (run_dir / "step-0000000009.bak").mkdir()

    ranks.on_root(put)
    save_all(ranks, run_dir, saved(1, 2, 3), max_to_keep=1)
    assert listed(run_dir) == ["notes.txt", "step-0000000003", "step-0000000009.bak", "step-7"]


@pytest.mark.parametrize("phase", ["2-write", "4-durable", "6-parent-synced"])
def test_a_failed_save_removes_nothing(ranks, run_dir, phase):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            ckpt.save(1, state(1))
            with pytest.raises(errors.CollectiveError):
                ckpt.save(2, state(2)).result()
            comm.barrier()
            return ckpt.all_steps()

    with armed(Fault(phase, "raise", 0, 2)):
        assert ranks(body) == [[1]] * ranks.size


@pytest.mark.parametrize("phase", ["1-begin", "2-write", "4-manifest", "4-durable"])
def test_the_old_step_is_there_until_the_new_one_is(run_dir, faults, phase):
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, state(1)).result()
        seen = []
        with faults.calling(phase, lambda: seen.append(hc.latest_checkpoint(run_dir))):
            ckpt.save(2, state(2)).result()
        assert seen == [run_dir / layout.step_dirname(1)]
        assert ckpt.all_steps() == [2]


# -- readers -------------------------------------------------------------------------------------


def test_a_step_that_is_retired_while_being_read_is_called_retired_not_corrupt(run_dir):
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, state(1)).result()
        reader = open_step(run_dir)
        ckpt.save(2, state(2)).result()
        with pytest.raises(errors.RetiredError, match="retired while being read"):
            reader.load("w")


def test_a_step_that_is_retired_while_being_opened_is_called_retired(run_dir, monkeypatch):
    """Between the look at the manifest and the opening of the first file."""
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, state(1)).result()
        check = discovery.check_files

        def check_then_retire(path, manifest, *files):
            check(path, manifest, *files)
            monkeypatch.undo()
            ckpt.save(2, state(2)).result()

        monkeypatch.setattr(discovery, "check_files", check_then_retire)
        with pytest.raises(errors.RetiredError, match="retired while being read"):
            open_step(run_dir / layout.step_dirname(1))


def test_a_step_is_not_retired_while_ranks_restore_it(ranks, run_dir, faults):
    """Root pins what it opens; another job's retention goes by that."""
    save_all(ranks, run_dir, saved(1, 2), max_to_keep=None)
    pins = []

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(state(0))
            comm.barrier()
            return run_pins.pins(run_dir)

    with faults.calling("9-restore", lambda: pins.append(run_pins.pins(run_dir)), rank=ranks.size - 1):
        assert ranks(body) == [set()] * ranks.size
    assert pins in ([{2}], [])  # under MPI only the last rank looks


def test_a_reader_that_died_pins_nothing_for_ever(ranks, run_dir):
    save_all(ranks, run_dir, saved(1), max_to_keep=None)

    def pin():
        run_pins.pin(run_dir, 1, "reader-elsewhere-1")
        path = run_dir / layout.PINS / f"{layout.step_dirname(1)}.reader-elsewhere-1"
        os.utime(path, (0, 0))

    ranks.on_root(pin)
    assert save_all(ranks, run_dir, saved(2), max_to_keep=1)[0][0] == [2]


def test_a_living_reader_keeps_its_step(ranks, run_dir):
    save_all(ranks, run_dir, saved(1), max_to_keep=None)
    ranks.on_root(lambda: run_pins.pin(run_dir, 1, "reader-elsewhere-1"))
    assert save_all(ranks, run_dir, saved(2, 3), max_to_keep=1)[0][0] == [1, 3]


@pytest.mark.parametrize("set_forward_s", [7 * 3600, 400 * 86400])
def test_a_clock_that_is_set_forward_ends_no_reader(run_dir, monkeypatch, set_forward_s):
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, state(1)).result()
        run_pins.pin(run_dir, 1, "reader-elsewhere-1")
        monkeypatch.setattr(SystemClock, "time", staticmethod(lambda: time.time() + set_forward_s))
        for step in (2, 3):
            ckpt.save(step, state(step)).result()
        assert discovery.step_numbers(run_dir) == [1, 3]


@pytest.mark.parametrize("is_here", [True, False])
def test_a_reader_on_this_node_counts_for_as_long_as_its_process_exists(run_dir, is_here):
    with subprocess.Popen(["sleep", "1000"]) as reader:
        try:
            with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
                ckpt.save(1, state(1)).result()
                name = f"reader-{os.uname().nodename}-{reader.pid}"
                run_pins.pin(run_dir, 1, name)
                os.utime(run_dir / layout.PINS / f"{layout.step_dirname(1)}.{name}", (0, 0))
                if not is_here:
                    reader.kill()
                    reader.wait()
                ckpt.save(2, state(2)).result()
        finally:
            reader.kill()
    assert discovery.step_numbers(run_dir) == ([1, 2] if is_here else [2])


def test_a_leftover_that_cannot_be_removed_stops_nothing(run_dir, monkeypatch):
    """On NFS a file that somebody has open keeps its directory from going."""
    (run_dir / ".retired-0123456789ab" / "stuck").mkdir(parents=True)
    (run_dir / ".retired-ffffffffffff").mkdir()
    remove_tree = files.remove_tree

    def busy(path):
        if (Path(path) / "stuck").exists():
            raise OSError(39, "Directory not empty", str(path))
        remove_tree(path)

    monkeypatch.setattr(files, "remove_tree", busy)
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, state(1))
        (warning,) = ckpt.save(2, state(2)).result().warnings
        assert "Directory not empty" in warning
        assert ckpt.all_steps() == [2]
    left, step = listed(run_dir)
    assert layout.is_retired(left)
    assert step == layout.step_dirname(2)
