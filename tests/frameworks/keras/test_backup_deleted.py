"""``BackupAndRestore(delete_checkpoint=True)``: when the training has ended, no backup is left anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.format import layout
from hpcckpt.keras import BackupAndRestore
from hpcckpt.keras.callbacks.backup_and_restore import _delete_scratch
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.pins import pin
from hpcckpt.testing.ranks import run_ranks
from tests.support.keras.models import rows, small
from tests.support.two_tiers import Nodes

Fit = Callable[..., Any]


def test_nothing_is_left_on_scratch_or_in_the_run_directory(tmp_path: Path, fit: Fit) -> None:
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    fit(small(), rows(), 2, BackupAndRestore(run, scratch=scratch, verbose=0))
    assert not run.exists()
    assert os.listdir(scratch) == []


def test_an_empty_directory_that_the_program_has_made_is_left_there_empty(tmp_path: Path, fit: Fit) -> None:
    fit(small(), rows(), 1, BackupAndRestore(tmp_path, verbose=0))
    assert os.listdir(tmp_path) == []


def test_a_training_that_fails_keeps_its_backups_on_scratch(tmp_path: Path, fit: Fit) -> None:
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    fit(small(), rows(), 1, BackupAndRestore(run, scratch=scratch, verbose=0, delete_checkpoint=False))
    assert step_numbers(tiers.scratch_directory(run, scratch)) == step_numbers(run) == [10]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_on_several_nodes_each_clears_its_own(tmp_path: Path, n_ranks: int) -> None:
    nodes = Nodes(tmp_path / "run", tmp_path / "disks", tmp_path / "kept")

    def body(comm: Any) -> None:
        with nodes.open(comm) as ckpt:
            ckpt.save(1, {"w": np.ones(100), "n": hc.PerRank(np.ones(3))})
        comm.barrier()
        scratch = nodes.disks / f"node-{nodes.node_of(comm.rank, comm.size)}"
        _delete_scratch(comm, nodes.home, scratch)

    run_ranks(n_ranks, body)
    assert [place.exists() for place in nodes.places(n_ranks)] == [False] * len(nodes.places(n_ranks))
    assert step_numbers(nodes.home) == [1]


def test_what_somebody_has_pinned_stays_and_what_a_link_leads_to(tmp_path: Path, fit: Fit) -> None:
    run, archive = tmp_path / "run", tmp_path / "archive"
    fit(small(), rows(), 1, BackupAndRestore(archive, verbose=0, delete_checkpoint=False))
    fit(small(), rows(), 1, BackupAndRestore(run, verbose=0, delete_checkpoint=False))
    pin(run, 10)
    (run / layout.step_dirname(5)).symlink_to(archive / layout.step_dirname(10))
    fit(small(), rows(), 2, BackupAndRestore(run, verbose=0))
    assert step_numbers(run) == [10]
    with RunLock.take(archive):
        assert hc.latest_checkpoint(archive) == archive / layout.step_dirname(10)
