"""Drains that follow each other closely."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core import failpoints
from hpcckpt.rundir import discovery
from hpcckpt.rundir.run_directory import RunDirectory
from hpcckpt.tiers import copy

LIMIT_S = 60.0


class WatchedLock:
    """A lock that sets a flag when a thread has to wait for it."""

    def __init__(self, lock: Any, is_contended: threading.Event) -> None:
        self._lock, self._is_contended = lock, is_contended

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._is_contended.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def no_hook() -> Iterator[None]:
    yield
    failpoints.install_hook(None)


@pytest.mark.usefixtures("no_hook")
def test_a_drain_that_begins_while_the_one_before_is_published_succeeds(tmp_path: Path, monkeypatch: Any):
    """The drain of step 3 begins between the rename of step 2 and the moment when that is the lineage."""
    run, is_renamed, may_end = tmp_path / "run", threading.Event(), threading.Event()
    commit_staged, look_ahead, begun = copy.commit_staged, RunDirectory.check_conflicts, []

    def slow_commit(staged: Any, *args: Any) -> Path:
        path = commit_staged(staged, *args)
        if staged.job.step == 2:
            is_renamed.set()
            may_end.wait(LIMIT_S)
        return path

    def watched_look_ahead(of: Any, step: int, **how: Any) -> Any:
        try:
            return look_ahead(of, step, **how)
        finally:
            if of.path == run and is_renamed.is_set():
                may_end.set()

    def hook(phase: str, _rank: int) -> None:
        if phase == "drain-begun":
            begun.append(phase)
            if len(begun) == 3:
                is_renamed.wait(LIMIT_S)

    monkeypatch.setattr(copy, "commit_staged", slow_commit)
    monkeypatch.setattr(RunDirectory, "check_conflicts", watched_look_ahead)
    failpoints.install_hook(hook)
    with hc.Checkpointer(run, scratch=tmp_path / "scratch", scratch_keep=3) as ckpt:
        ckpt.save(1, {"w": np.ones(4)}).durable()
        workspace = ckpt._session.scratch_tier.persistent.workspace
        workspace.commit_mutex = WatchedLock(workspace.commit_mutex, may_end)
        saves = [ckpt.save(step, {"w": np.full(4, step)}) for step in (2, 3)]
        saves[1].result()
        assert [pending.durable().step for pending in saves] == [2, 3]
        assert may_end.is_set()
    assert discovery.step_numbers(run) == [1, 2, 3]


@pytest.mark.usefixtures("no_hook")
def test_a_drain_is_tried_again_while_the_one_after_it_is_published(tmp_path: Path, monkeypatch: Any):
    """Step 3 is in the run directory, and no rank knows it yet, when the drain of step 2 begins for the second time."""
    run, is_published, may_end = tmp_path / "run", threading.Event(), threading.Event()
    look_ahead, begun = RunDirectory.check_conflicts, []

    def watched_look_ahead(of: Any, step: int, **how: Any) -> Any:
        try:
            return look_ahead(of, step, **how)
        finally:
            if step == 2 and of.path == run and is_published.is_set():
                may_end.set()

    def hook(phase: str, _rank: int) -> None:
        if phase == "drain-begun":
            begun.append(phase)
            if len(begun) == 2:
                raise OSError(errno.EIO, "Input/output error")
            if len(begun) == 4:
                is_published.wait(LIMIT_S)
        if phase == "drain-published" and discovery.step_numbers(run) == [1, 3]:
            is_published.set()
            may_end.wait(LIMIT_S)

    monkeypatch.setattr(RunDirectory, "check_conflicts", watched_look_ahead)
    failpoints.install_hook(hook)
    with hc.Checkpointer(run, scratch=tmp_path / "scratch", scratch_keep=3, max_to_keep=None) as ckpt:
        ckpt.save(1, {"w": np.ones(4)}).durable()
        for step in (2, 3):
            ckpt.save(step, {"w": np.full(4, step)}).result()
        ckpt.wait(durable=True)
        assert may_end.is_set()
    assert discovery.step_numbers(run) == [1, 2, 3]
