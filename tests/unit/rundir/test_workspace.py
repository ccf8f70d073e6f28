"""Several users of one directory in one process, and a job that lost its lock, remove nothing that is in use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.collective.connect import as_communicator
from hpcckpt.collective.thread_tasks import Task
from hpcckpt.core import failpoints, files
from hpcckpt.core.options import Options
from hpcckpt.core.system import Flag
from hpcckpt.format import layout
from hpcckpt.rundir import commit, discovery, lock
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.tiers import copy
from hpcckpt.tools.prune import carry_out, plan_prune

pytestmark = pytest.mark.one_case

LIMIT_S = 60.0
MIB = 1 << 20


def state(value: float, n: int = 50) -> dict[str, Any]:
    return {"w": np.full(n, float(value))}


def values(run_dir: Path, step: int) -> set[float]:
    return set(hc.load(run_dir, step=step)["w"].tolist())


@pytest.fixture
def during_a_sweep(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Have a function called once, in the next sweep after a commit, before leftovers are listed."""
    armed: list[Callable[[], Any]] = []
    is_due = threading.Event()
    listdir = os.listdir

    def listing(path: Any = ".") -> list[str]:
        if is_due.is_set() and armed and str(path) == str(run_dir / layout.PINS):  # stale pins are looked for first
            armed.pop()()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listing)
    failpoints.install_hook(lambda phase, _rank: is_due.set() if phase == "8-retention" and armed else None)
    yield armed.append
    failpoints.install_hook(None)
    assert not armed, "no sweep came"


def test_what_another_checkpointer_prepares_during_a_sweep_is_spared(run_dir, during_a_sweep):
    prepared = []
    with (
        hc.Checkpointer(run_dir, max_to_keep=None, on_newer="aside") as one,
        hc.Checkpointer(run_dir, max_to_keep=None, on_newer="aside") as other,
    ):
        one.save(1, state(1)).result()
        other.save(101, state(101)).result()
        session = other._session
        during_a_sweep(lambda: prepared.append(session.rundir.prepare_slot(session.queue.planned.file_layout)))
        one.save(2, state(2)).result()
        assert (run_dir / prepared[0].name).is_dir()
        other.save(102, state(102)).result()
        assert values(run_dir, 102) == {102.0}


def test_a_job_that_lost_its_lock_removes_nothing_of_the_new_holder(run_dir, during_a_sweep):
    """The lock is taken over in the middle of a sweep, as from a job that was stopped there."""
    theirs = run_dir / ".next-feedfeedfeed"

    def take_over() -> None:
        holder = replace(lock.this_holder(), host="elsewhere")
        (run_dir / layout.LOCK).write_text(json.dumps(asdict(holder)), encoding="utf-8")
        theirs.mkdir()
        (theirs / "half").write_text("written", encoding="utf-8")

    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.save(1, state(1)).result()
        during_a_sweep(take_over)
        (warning,) = ckpt.save(2, state(2)).result().warnings
    assert "is now held by" in warning
    assert (theirs / "half").read_text(encoding="utf-8") == "written"
    assert discovery.step_numbers(run_dir) == [1, 2]


def test_what_is_removed_has_a_name_of_our_own_by_then(run_dir, monkeypatch):
    """A directory that was published meanwhile has lost its name, and cannot be removed under the old one."""
    for name in (".next-0123456789ab", ".retired-0123456789ab", ".step-0000000002.tmp-0123456789ab"):
        (run_dir / name / layout.DATA).mkdir(parents=True)
    removed: list[str] = []
    rmtree = shutil.rmtree

    def noting(path: Any, *args: Any, **options: Any) -> None:
        removed.append(Path(path).name)
        rmtree(path, *args, **options)

    monkeypatch.setattr(shutil, "rmtree", noting)
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle=False) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).result()
    assert len(removed) >= 4
    assert all(layout.is_retired(name) for name in removed)
    assert ".retired-0123456789ab" not in removed
    assert [name for name in os.listdir(run_dir) if name.startswith(".")] == []


def test_a_copy_into_a_directory_survives_the_sweeps_of_a_checkpointer_there(run_dir, tmp_path):
    with hc.Checkpointer(tmp_path / "other") as ckpt:
        ckpt.save(7, state(7)).result()
    source = tmp_path / "other" / layout.step_dirname(7)
    with hc.Checkpointer(run_dir, max_to_keep=None, on_newer="aside") as ckpt:
        ckpt.save(1, state(1)).result()
        failpoints.install_hook(lambda phase, _: ckpt.save(2, state(2)).result() if phase == "copy-begun" else None)
        try:
            copy.copy_step(as_communicator(None), source, run_dir)
        finally:
            failpoints.install_hook(None)
        assert values(run_dir, 7) == {7.0}
        assert values(run_dir, 2) == {2.0}


def test_prune_in_the_process_of_a_checkpointer_removes_nothing_that_it_uses(run_dir):
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).result()
        with RunLock.take(run_dir):
            plan = plan_prune(run_dir, Options(max_to_keep=1))
            assert [removal.step for removal in plan.removals] == [1]
            assert carry_out(run_dir, plan, {removal.path for removal in plan.removals}) == {}
        ckpt.save(3, state(3)).result()
        assert ckpt.all_steps() == [2, 3]


# -- the files of retired steps, which are removed on a thread ---------------------------------------


class Removals:
    """Holds removals of directories back until they are let through, and notes what is there when one ends."""

    def __init__(self, run_dir: Path) -> None:
        self.may_end, self.has_ended = threading.Event(), threading.Event()
        self.run_dir, self.has_lock = run_dir, []
        self._rmtree = shutil.rmtree

    def __call__(self, path: Any, *args: Any, **options: Any) -> None:
        if not self.may_end.wait(LIMIT_S):
            raise AssertionError("nothing else ran while a retired step was being removed")
        self._rmtree(path, *args, **options)
        self.has_lock.append((self.run_dir / layout.LOCK).exists())
        self.has_ended.set()


@pytest.fixture
def removals(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Removals:
    made = Removals(run_dir)
    monkeypatch.setattr(shutil, "rmtree", made)
    return made


@pytest.mark.parametrize("is_async", [True, False])
def test_a_save_returns_before_the_files_of_a_retired_step_are_removed(run_dir, removals, is_async):
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle=False, async_save=is_async) as ckpt:
        for step in (1, 2):
            saved = ckpt.save(step, state(step)).result()
        assert removals.has_lock == []
        assert saved.warnings == ()
        assert ckpt.all_steps() == [2]
        removals.may_end.set()
    assert set(removals.has_lock) == {True}, "the lock is held until they are removed"
    assert sorted(os.listdir(run_dir)) == ["journal.jsonl", layout.step_dirname(2)]


def test_a_retired_step_is_removed_without_another_call(run_dir, removals):
    removals.may_end.set()
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle=False) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).result()
        assert removals.has_ended.wait(LIMIT_S)


def test_a_close_that_is_interrupted_while_a_step_is_removed_can_be_repeated(run_dir, removals, monkeypatch):
    ckpt = hc.Checkpointer(run_dir, max_to_keep=1, recycle=False)
    for step in (1, 2):
        ckpt.save(step, state(step)).result()
    removal, join = Workspace.at(run_dir)._removal, Task.join
    interrupts = [KeyboardInterrupt]

    def interrupted(task: Task, *args: Any) -> None:
        if task is removal and interrupts:
            raise interrupts.pop()
        join(task, *args)

    monkeypatch.setattr(Task, "join", interrupted)
    removals.may_end.set()
    with pytest.raises(KeyboardInterrupt):
        ckpt.close()
    assert (run_dir / layout.LOCK).exists()
    ckpt.close()
    assert set(removals.has_lock) == {True}
    assert not interrupts
    assert sorted(os.listdir(run_dir)) == ["journal.jsonl", layout.step_dirname(2)]


def test_a_retired_step_is_removed_before_the_next_retirement(run_dir, removals):
    seen = []

    def hook(phase: str, _rank: int) -> None:
        if phase == "8-retention" and (run_dir / layout.step_dirname(3)).exists():
            removals.may_end.set()
        if phase == "8-retired":
            seen.append(len(removals.has_lock))

    failpoints.install_hook(hook)
    try:
        with hc.Checkpointer(run_dir, max_to_keep=1, recycle=False) as ckpt:
            for step in (1, 2, 3):
                ckpt.save(step, state(step)).result()
    finally:
        failpoints.install_hook(None)
    assert seen == [0, 1]


def test_a_retired_step_that_cannot_be_removed_is_reported_by_the_next_save(run_dir, monkeypatch):
    rmtree = shutil.rmtree

    def fail(path: Any, *args: Any, **options: Any) -> None:
        raise OSError(39, "Directory not empty", str(path))

    with hc.Checkpointer(run_dir, max_to_keep=1, recycle=False) as ckpt:
        ckpt.save(1, state(1)).result()
        monkeypatch.setattr(shutil, "rmtree", fail)
        ckpt.save(2, state(2)).result()
        (warning,) = ckpt.save(3, state(3)).result().warnings
        assert "retention after step 3 failed" in warning
        assert "Directory not empty" in warning
        monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert [name for name in os.listdir(run_dir) if name.startswith(".")] == []


def test_a_save_waits_for_the_space_of_a_step_that_is_being_removed(run_dir, removals, monkeypatch):
    check_space = commit.check_space

    def small(directory: Path, *args: Any) -> None:
        if any(layout.is_retired(name) for name in os.listdir(directory)):
            removals.may_end.set()
            raise errors.NoSpaceError("full")
        check_space(directory, *args)

    monkeypatch.setattr(commit, "check_space", small)
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle=False) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state(step)).result()
        assert ckpt.all_steps() == [3]


def test_free_space_is_checked_again_if_another_thread_ends_the_removal(run_dir, monkeypatch):
    removals, free = [Task(lambda: None, Flag())], [False, True]

    def check_space(*_: Any) -> None:
        if not free.pop(0):
            raise errors.NoSpaceError("full")

    monkeypatch.setattr(commit, "check_space", check_space)
    once = property(lambda _self: removals.pop() if removals else None)
    workspace = Workspace(run_dir)
    monkeypatch.setattr(Workspace, "_removal", once, raising=False)
    workspace.check_space(None, 1)
    assert free == []


def test_a_sweep_removes_the_rest_though_a_name_cannot_be_given_back(run_dir, monkeypatch):
    run_dir.mkdir()
    good, waiting = run_dir / layout.staging_dirname(layout.new_nonce()), layout.step_dirname(3)
    kept = run_dir / layout.replaced_dirname(waiting, layout.new_nonce())
    good.mkdir()
    kept.mkdir()
    rename = files.rename

    def refuse(source: Any, target: Any, *args: Any) -> None:
        if source == kept:
            raise PermissionError(13, "Permission denied", str(source))
        rename(source, target, *args)

    monkeypatch.setattr(files, "rename", refuse)
    with RunLock.take(run_dir) as held, pytest.raises(PermissionError):
        Workspace.at(run_dir).sweep(held)
    assert os.listdir(run_dir) == [kept.name]


KILLED = """
import os, shutil, signal, sys, numpy as np, hpcckpt as hc
shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
with hc.Checkpointer(sys.argv[1], max_to_keep=1, recycle=False) as ckpt:
    for step in (1, 2):
        ckpt.save(step, {"w": np.full(50, float(step))}).result()
"""


def test_a_job_killed_while_a_retired_step_is_removed_leaves_it_to_the_next_sweep(run_dir):
    done = subprocess.run([sys.executable, "-c", KILLED, str(run_dir)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(run_dir) if layout.is_retired(name)]
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        assert ckpt.all_steps() == [2]
        ckpt.save(3, state(3)).result()
    assert [name for name in os.listdir(run_dir) if name.startswith(".")] == []
    assert values(run_dir, 3) == {3.0}
