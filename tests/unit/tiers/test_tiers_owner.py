"""Scratch that all users share: our directory there is this user's alone, and nothing that others put there is used."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, tiers
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.tiers import scratch_dir
from tests.support.two_tiers import Nodes, are_whole, on_one_node, restored, save_steps, state

pytestmark = pytest.mark.counts(1, 2)
OTHER_UID = 65534


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(nodes: Nodes, ranks: Any) -> str:
    """Try to restore and to save as a new job would; return why it is refused, the same on all ranks."""

    def body(comm: Any) -> str:
        with pytest.raises(errors.UnsafeDirectoryError) as caught, nodes.open(comm) as ckpt:
            ckpt.restore(state(0, comm.rank))
        assert isinstance(caught.value, errors.CollectiveError)
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    return results[0]


def test_our_directory_on_scratch_is_for_its_owner_alone(ranks, nodes):
    save_steps(nodes, ranks, 1)
    assert {mode_of(path) for path in nodes.places(ranks.size)} == {0o700}


def test_what_earlier_versions_made_is_closed_to_others_and_used(ranks, places):
    save_steps(places, ranks, 1, 2)
    ranks.on_root(lambda: places.near.chmod(0o755))
    assert restored(places, ranks)[:2] == (2, places.near)
    assert mode_of(places.near) == 0o700


def test_scratch_that_others_can_write_is_refused_by_all_ranks_and_left_alone(ranks, nodes):
    save_steps(nodes, ranks, 1, 2)
    last = nodes.places(ranks.size)[-1]
    before = sorted(os.listdir(last))
    ranks.on_root(lambda: last.chmod(0o777))
    text = refused(nodes, ranks)
    assert f"{last} can be written by other users (mode 0777)" in text
    assert "Remove it, or choose another directory" in text
    assert sorted(os.listdir(last)) == before


@pytest.mark.counts(1)
def test_scratch_of_another_owner_is_refused_by_name(ranks, places, monkeypatch):
    save_steps(places, ranks, 1, 2)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)
    owner = places.near.stat().st_uid
    assert f"{owner}) (mode 0700), not to user" in refused(places, ranks)
    assert tiers.whole_on(places.disks / "node-0", places.home) == ()


def test_an_owner_file_that_is_none_is_replaced_by_the_one_of_the_other_tier(ranks, places):
    save_steps(places, ranks, 1, 2)
    file = places.home / tiers.OWNER_FILE
    ranks.on_root(lambda: file.write_text("x" * 65))

    def body(comm: Any) -> None:
        advice = f"{file}: 65 bytes, at most 64 are accepted; .* copy the good one over this one"
        with pytest.raises(errors.StorageError, match=advice), places.open(comm) as ckpt:
            ckpt.restore(state(0, comm.rank))

    ranks(body)
    ranks.on_root(lambda: shutil.copy(places.near / tiers.OWNER_FILE, file))
    assert restored(places, ranks)[:2] == (2, places.near)


def as_other_user(act: Any) -> None:
    """Do something as another user, in a child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OTHER_UID)
            os.setuid(OTHER_UID)
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: only root can become one")
@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_step_that_another_user_planted_on_scratch_is_not_restored(mode):
    """The name of our directory can be predicted: another user makes it before the first job does."""
    base = Path(f"/dev/shm/hpcckpt-test-{layout.new_nonce()}")
    run, evil, scratch = base / "run", base / "evil", base / "scratch"
    near = tiers.scratch_directory(run, scratch)
    base.mkdir()
    scratch.mkdir()
    for shared in (base, scratch):
        shared.chmod(0o1777)
    try:
        for directory, value in ((run, 1.0), (evil, 666.0)):
            with hc.Checkpointer(directory) as ckpt:
                ckpt.save(1, {"w": np.full(4, value)})
        scratch_dir.write_owner_id(run)

        def plant() -> None:
            shutil.copytree(evil, near)
            shutil.copy(run / tiers.OWNER_FILE, near)
            near.chmod(mode)

        as_other_user(plant)
        held = {"w": np.zeros(4)}
        with pytest.raises(errors.UnsafeDirectoryError, match=rf"belongs to user .*{OTHER_UID}\)? \(mode {mode:04o}\)"):
            hc.Checkpointer(run, scratch=scratch).restore(held)
        assert held["w"].tolist() == [0.0] * 4
        assert tiers.whole_on(scratch, run) == ()
        assert discovery.step_numbers(near) == [1]
    finally:
        shutil.rmtree(base)


@pytest.mark.counts(2)
def test_a_mark_that_another_user_prepared_is_neither_followed_nor_counted(ranks, nodes, monkeypatch, tmp_path):
    """The names of the marks of further ranks follow from that of the first, which all users can see."""
    if ranks.size == 1:
        pytest.skip("needs two nodes")
    target = tmp_path / "thesis.tex"
    leave_mark, taken = scratch_dir._leave_mark, []

    def planted(path: Path, files: Any) -> Path:
        if path.name.endswith("-1") and not taken:
            taken.append(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        return leave_mark(path, files)

    monkeypatch.setattr(scratch_dir, "_leave_mark", planted)

    def body(comm: Any) -> bool:
        with pytest.raises(errors.CollectiveError, match="File exists"):
            nodes.open(comm)
        return target.exists()

    assert ranks(body) == [False] * ranks.size


def test_a_planted_directory_does_not_keep_other_runs_from_scratch(ranks, places):
    """The scratch directory itself may be shared and sticky."""
    save_steps(places, ranks, 1)
    other = Nodes(places.home.with_name("other"), places.disks, places.kept, on_one_node)

    def plant() -> None:
        (places.disks / "node-0").chmod(0o1777)
        other.near.mkdir()
        other.near.chmod(0o777)

    ranks.on_root(plant)
    refused(other, ranks)
    save_steps(places, ranks, 2, on_newer="aside")
    assert are_whole(places, [1, 2])


def test_an_owner_file_on_scratch_that_cannot_be_read_is_a_typed_error(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(errors.UnsafeDirectoryError, match="is a symbolic link"):
        scratch_dir.owner_id_on_scratch(tmp_path / "link")
    with pytest.raises(errors.StorageError, match="read the owner of scratch"):
        scratch_dir.owner_id_of(tmp_path / ("x" * 5000))
