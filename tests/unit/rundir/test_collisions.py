"""Steps that are in the way: nothing good is replaced unasked, nothing is ever lost."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.rundir.discovery import read_manifest
from hpcckpt.rundir.renames import Renames
from hpcckpt.rundir.run_directory import RunDirectory
from hpcckpt.testing.faults import Fault, armed


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(50, float(value))}


def value_of(run_dir: Path, step: int | None = None) -> float:
    path = run_dir if step is None else run_dir / layout.step_dirname(step)
    (value,) = set(hc.load(path)["w"].tolist())
    return value


def save_steps(ranks: Any, run_dir: Path, *steps: int, **options: Any) -> None:
    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, **options) as ckpt:
            for step in steps:
                ckpt.save(step, state(step))

    ranks(body)


def names(run_dir: Path, prefix: str) -> list[str]:
    return sorted(name for name in os.listdir(run_dir) if name.startswith(prefix))


def test_a_good_step_is_not_replaced_unasked(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StepExistsError, match="overwrite=True"):
            ckpt.save(10, state(99))

    save_steps(ranks, run_dir, 10)
    ranks(body)
    assert value_of(run_dir, 10) == 10


@pytest.mark.counts(1, 2, 5)
def test_overwrite_replaces_a_good_step(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(10, state(99), overwrite=True)

    save_steps(ranks, run_dir, 5, 10)
    ranks(body)
    assert value_of(run_dir, 10) == 99
    assert value_of(run_dir, 5) == 5
    assert names(run_dir, ".") == []


def test_overwrite_of_a_step_that_is_absent_saves_it(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(10, state(10), overwrite=True).result().step

    assert ranks(body) == [10] * ranks.size


@pytest.fixture
def no_exchange(monkeypatch):
    """A file system that cannot exchange two names atomically."""

    class Libc:
        def renameat2(self, *_args):
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_options: Libc())


def test_overwrite_replaces_a_good_step_where_names_cannot_be_exchanged(ranks, run_dir, no_exchange):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(10, state(99), overwrite=True)

    save_steps(ranks, run_dir, 10)
    ranks(body)
    assert value_of(run_dir, 10) == 99
    assert names(run_dir, ".") == []


@pytest.mark.parametrize("n_renames", [1, 2])
def test_a_job_killed_while_it_replaces_a_step_leaves_the_old_or_the_new_one(
    run_dir, no_exchange, monkeypatch, n_renames
):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": np.zeros(4)})

    class Killed(BaseException):
        pass

    rename, done = os.rename, []

    def until_killed(source, target):
        if len(done) == n_renames:
            raise Killed
        rename(source, target)
        done.append(target)

    ckpt = hc.Checkpointer(run_dir)
    monkeypatch.setattr(os, "rename", until_killed)
    monkeypatch.setattr(RunDirectory, "abort", lambda _self, _staged: None)  # a killed job tidies nothing up
    monkeypatch.setattr(Renames, "undo", lambda _self: None)
    with pytest.raises(errors.CollectiveError, match="Killed"):
        ckpt.save(1, {"x": np.ones(4)}, overwrite=True).result()
    monkeypatch.setattr(os, "rename", rename)
    ckpt.close()

    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(2, {"x": np.full(4, 2.0)}).result()
        assert ckpt.all_steps() == [1, 2]
        state = {"x": np.full(4, -1.0)}
        ckpt.restore(state, step=1)
    assert state["x"].tolist() == [n_renames - 1.0] * 4
    assert not [path.name for path in run_dir.iterdir() if path.name.startswith(".")]


def test_a_step_that_is_listed_while_an_overwrite_fails_is_the_old_one_afterwards(run_dir, tmp_path, monkeypatch):
    for where in (run_dir, tmp_path / "other"):
        with hc.Checkpointer(where) as ckpt:
            ckpt.save(1, state(1))
    step = run_dir / layout.step_dirname(1)
    other, away = tmp_path / "other" / step.name, tmp_path / "away"
    own, manifests = read_manifest(step), discovery.Manifests()

    def read_after_exchange(path, files):
        step.rename(away)
        other.rename(step)
        return read_manifest(path, files)

    with monkeypatch.context() as patched:
        patched.setattr(discovery, "read_manifest", read_after_exchange)
        assert manifests.read(step).save_id != own.save_id
    step.rename(other)
    away.rename(step)
    assert manifests.read(step) == own


def test_overwrite_that_fails_half_way_through_gives_the_name_back(run_dir, no_exchange, monkeypatch):
    rename = os.rename

    def fail_once(source, target):
        if layout.is_temporary(Path(source).name) and Path(target).name == layout.step_dirname(10):
            raise OSError(errno.EIO, "broken", str(target))
        rename(source, target)

    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(10, state(10)).result()
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fail_once)
            with pytest.raises(errors.StorageError):
                ckpt.save(10, state(99), overwrite=True).result()
    assert value_of(run_dir, 10) == 10
    assert names(run_dir, ".") == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_damaged_step_is_moved_aside_as_evidence(ranks, run_dir, damage, overwrite):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(10, state(99), overwrite=overwrite)

    save_steps(ranks, run_dir, 10)
    data = damage.first_file(run_dir / layout.step_dirname(10))
    ranks.on_root(lambda: damage.cut(data))
    ranks(body)
    assert value_of(run_dir, 10) == 99
    (bad,) = names(run_dir, ".bad-")
    assert (run_dir / bad / "data" / data.name).exists()


def test_a_failed_save_leaves_a_damaged_step_where_it_was(ranks, run_dir, damage):
    """It may be all there is to reconstruct from."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.NoSpaceError):
            ckpt.save(10, state(99)).result()

    save_steps(ranks, run_dir, 10)
    ranks.on_root(lambda: damage.cut(damage.first_file(run_dir / layout.step_dirname(10))))
    with armed(Fault("2-write", "raise", 0, error=OSError(errno.ENOSPC, "full"))):
        ranks(body)
    assert names(run_dir, "step-") == [layout.step_dirname(10)]
    assert names(run_dir, ".bad-") == []


# -- going back ----------------------------------------------------------------------------------


def go_back(ranks: Any, run_dir: Path, restored: int, saved: int, **options: Any) -> list[Any]:
    """Restore an older step and save after it; return the error's name, or the restorable steps."""

    def body(comm: Any) -> Any:
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, **options) as ckpt:
            ckpt.restore(state(0), step=restored)
            try:
                ckpt.save(saved, state(saved + 0.5)).result()
            except errors.HpcckptError as error:
                return type(error).__name__, str(error)
            return ckpt.all_steps()

    return ranks(body)


@pytest.mark.parametrize("saved", [15, 20, 25, 40])
def test_after_going_back_no_step_is_saved_while_a_newer_one_stands(ranks, run_dir, saved):
    save_steps(ranks, run_dir, 10, 20, 30)
    for name, text in go_back(ranks, run_dir, 10, saved):
        assert name == "NewerStepError"
        assert "step 30" in text
        assert 'on_newer="aside"' in text
    assert [value_of(run_dir, step) for step in (10, 20, 30)] == [10, 20, 30]


@pytest.mark.parametrize("saved", [15, 20, 25, 40])
def test_newer_steps_go_aside_when_asked_and_are_kept(ranks, run_dir, saved):
    save_steps(ranks, run_dir, 10, 20, 30)
    assert go_back(ranks, run_dir, 10, saved, on_newer="aside") == [[10, saved]] * ranks.size
    assert value_of(run_dir) == saved + 0.5
    aside = names(run_dir, ".aside-")
    assert [name.rpartition("-")[0] for name in aside] == [f".aside-{layout.step_dirname(step)}" for step in (20, 30)]
    assert [read_manifest(run_dir / name).step for name in aside] == [20, 30]


def test_a_failed_save_moves_nothing_aside(ranks, run_dir):
    save_steps(ranks, run_dir, 10, 20, 30)
    with armed(Fault("2-write", "raise", 0, error=OSError(errno.ENOSPC, "full"))):
        assert go_back(ranks, run_dir, 10, 15, on_newer="aside")[0][0] == "NoSpaceError"
    assert names(run_dir, ".aside-") == []
    assert [value_of(run_dir, step) for step in (10, 20, 30)] == [10, 20, 30]


def test_a_refused_save_moves_nothing_aside(ranks, run_dir):
    save_steps(ranks, run_dir, 10, 20)
    assert go_back(ranks, run_dir, 10, 10, on_newer="aside")[0][0] == "StepExistsError"
    assert names(run_dir, ".aside-") == []
    assert value_of(run_dir) == 20


def test_a_run_that_goes_on_from_the_newest_step_meets_nothing(ranks, run_dir):
    save_steps(ranks, run_dir, 10, 20, 30)
    assert go_back(ranks, run_dir, 30, 40) == [[10, 20, 30, 40]] * ranks.size


def test_a_fresh_run_does_not_save_below_what_stands(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.NewerStepError, match="step 20"):
            ckpt.save(15, state(15))

    save_steps(ranks, run_dir, 10, 20)
    ranks(body)


def test_a_run_does_not_save_below_its_own_newest_step(ranks, run_dir):
    """Else `latest` would not be what it saved last, and its next save would be refused."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(20, state(20))
            with pytest.raises(errors.NewerStepError, match="step 20"):
                ckpt.save(10, state(10)).result()
            ckpt.save(30, state(30)).result()
            return ckpt.latest_step()

    assert ranks(body) == [30] * ranks.size


def test_a_damaged_newer_step_is_not_in_the_way(ranks, run_dir, damage):
    save_steps(ranks, run_dir, 10, 20)
    ranks.on_root(lambda: damage.cut(damage.first_file(run_dir / layout.step_dirname(20))))
    assert go_back(ranks, run_dir, 10, 15) == [[10, 15]] * ranks.size


# -- lineage -------------------------------------------------------------------------------------


def test_each_step_names_its_parent_and_its_run(ranks, run_dir):
    save_steps(ranks, run_dir, 10, 20)
    go_back(ranks, run_dir, 20, 30)
    ten, twenty, thirty = (read_manifest(run_dir / layout.step_dirname(step)) for step in (10, 20, 30))
    assert ten.parent is None
    assert (twenty.parent, thirty.parent) == (ten.save_id, twenty.save_id)
    assert len({ten.save_id, twenty.save_id, thirty.save_id}) == 3
    assert ten.run_id == twenty.run_id == thirty.run_id == ten.save_id


def test_a_branch_names_the_step_it_left_from(ranks, run_dir):
    save_steps(ranks, run_dir, 10, 20)
    go_back(ranks, run_dir, 10, 15, on_newer="aside")
    assert (
        read_manifest(run_dir / layout.step_dirname(15)).parent
        == read_manifest(run_dir / layout.step_dirname(10)).save_id
    )


def test_a_failed_save_is_nobodys_parent(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(1))
            with pytest.raises(errors.StorageError):
                ckpt.save(2, state(2)).result()
            ckpt.save(3, state(3))

    with armed(Fault("3-report", "raise", 0, 2, error=OSError(errno.EIO, "broken"))):
        ranks(body)
    one, three = (read_manifest(run_dir / layout.step_dirname(step)) for step in (1, 3))
    assert three.parent == one.save_id


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 7, 10**10 - 1, 10**10, 10**18])
def test_any_step_number_up_to_the_largest_can_be_saved(ranks, run_dir, step):
    save_steps(ranks, run_dir, step)
    assert hc.latest_checkpoint(run_dir) == run_dir / f"step-{step:010d}"
    assert value_of(run_dir) == step


@pytest.mark.parametrize("step", [-1, 10**18 + 1])
def test_a_step_number_out_of_range_is_refused(ranks, run_dir, step):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StateError, match="between 0 and"):
            ckpt.save(step, state(0))

    ranks(body)
    assert not list(run_dir.glob("*step-*"))


def test_an_older_step_than_one_that_exists_is_refused_in_plain_words(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(2, state(0)).result()
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(errors.NewerStepError) as caught:
        ckpt.save(1, state(0)).result()
    assert f"step 1 is older than step 2 in {run_dir}, and this run did not resume from step 2: " in str(caught.value)


@pytest.mark.counts(1, 2, 5)
def test_ranks_that_name_different_steps_are_told(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            try:
                ckpt.save(10 + comm.rank, state(0)).result()
            except errors.TreeMismatchError as error:
                return str(error).count("10") > 0
            return ckpt.all_steps()

    assert ranks(body) == ([[10]] if ranks.size == 1 else [True] * ranks.size)


def test_the_manifest_says_what_was_saved(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(3, {**state(1), "epoch": 2}, metrics={"loss": 0.5}, objects={"lr": 0.1})

    ranks(body)
    document = json.loads((run_dir / layout.step_dirname(3) / layout.MANIFEST).read_bytes())
    assert document["step"] == 3
    assert document["ranks"] == ranks.size
    assert document["metrics"] == {"loss": 0.5}
    assert document["objects"] == {"state": {"epoch": 2}, "user": {"lr": 0.1}}
    assert document["tensors"] == [{"name": "w", "dtype": "float64", "shape": [50], "kind": "replicated"}]
    assert [file["path"] for file in document["files"]] == [f"data/rank-{r:05d}.safetensors" for r in range(ranks.size)]
    assert {"hpcckpt", "python", "numpy"} <= document["environment"].keys()
