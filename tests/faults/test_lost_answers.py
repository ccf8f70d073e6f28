"""Storage that does what it is asked to and reports a failure, as NFS may when its server restarts."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hpcckpt as hc
from hpcckpt.cli.app import tool
from hpcckpt.collective.connect import as_communicator
from hpcckpt.core import files
from hpcckpt.format import layout
from hpcckpt.preemption.halt import remove_halt
from hpcckpt.rundir import discovery, journal, lock, pins
from hpcckpt.tiers.copy import copy_step

CODES = (errno.ENOENT, errno.EIO, errno.ESTALE)
CALLS = ("rename", "replace", "link", "unlink", "rmdir")


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(50, float(value))}


def values(path: Path) -> set[float]:
    return set(hc.load(path)["w"].tolist())


@pytest.fixture(params=CODES, ids=errno.errorcode.get)
def losing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Have every rename, link and removal be done and reported as failed; return what was called."""
    calls: list[str] = []

    def lose(name: str) -> None:
        really = getattr(os, name)

        def call(*args: Any, **options: Any) -> None:
            really(*args, **options)
            is_ours = "dir_fd" in options or str(args[0]).startswith(str(tmp_path))
            if is_ours:
                calls.append(name)
                raise OSError(request.param, os.strerror(request.param), str(args[0]))

        monkeypatch.setattr(os, name, call)

    for name in CALLS:
        lose(name)
    return calls


def save(run_dir: Path, *steps: int, **options: Any) -> None:
    how = {"overwrite": options.pop("overwrite", False)}
    with hc.Checkpointer(run_dir, **options) as ckpt:
        if discovery.step_numbers(run_dir) and not options.get("on_newer"):
            ckpt.restore(state(0))
        for step in steps:
            saved = ckpt.save(step, state(step + 0.5 * how["overwrite"]), **how).result()
            assert saved.warnings == ()
            assert ckpt.all_steps()[-1] == step


@pytest.mark.parametrize("recycle", [True, False])
def test_saves_and_retention(run_dir, losing, recycle):
    save(run_dir, 1, 2, 3, 4, max_to_keep=1, recycle=recycle)
    assert sorted(os.listdir(run_dir)) == ["journal.jsonl", layout.step_dirname(4)]
    assert values(run_dir) == {4.0}
    assert {"rename", "link", "unlink"} <= set(losing)


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_step_that_is_replaced(run_dir, losing, has_exchange, monkeypatch):
    if not has_exchange:
        monkeypatch.setattr(files, "_NO_EXCHANGE", set(range(1, 200)))
        monkeypatch.setattr(files, "RENAME_EXCHANGE", 1 << 20)  # no such flag
    save(run_dir, 1)
    save(run_dir, 1, overwrite=True)
    assert values(run_dir) == {1.5}
    assert sorted(os.listdir(run_dir)) == ["journal.jsonl", layout.step_dirname(1)]


def test_steps_that_are_moved_aside(run_dir, losing, damage):
    save(run_dir, 1, 2, 3, max_to_keep=None)
    save(run_dir, 2, on_newer="aside", overwrite=True)
    damage.cut(damage.first_file(run_dir / layout.step_dirname(2)))
    save(run_dir, 2, on_newer="aside")
    assert values(run_dir) == {2.0}
    assert sum(name.startswith(".aside-step-0000000003-") for name in os.listdir(run_dir)) == 1
    assert sum(name.startswith(".bad-") for name in os.listdir(run_dir)) == 1


@pytest.mark.usefixtures("losing")
def test_a_lock_that_is_taken_over(run_dir, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)  # two beats of it are watched
    run_dir.mkdir()
    (run_dir / layout.LOCK).write_text("{}", encoding="utf-8")
    os.utime(run_dir / layout.LOCK, (0, 0))
    save(run_dir, 1)
    assert not (run_dir / layout.LOCK).exists()


@pytest.mark.usefixtures("losing")
def test_pins_and_halt(run_dir):
    save(run_dir, 1)
    pins.pin(run_dir, 1)
    pins.unpin(run_dir, 1)
    assert pins.pins(run_dir) == set()
    (run_dir / layout.HALT).touch()
    remove_halt(run_dir)
    assert not (run_dir / layout.HALT).exists()


@pytest.mark.usefixtures("losing")
def test_two_tiers_and_copies(run_dir, tmp_path):
    with hc.Checkpointer(run_dir, scratch=tmp_path / "scratch", max_to_keep=2) as ckpt:
        for step in (1, 2, 3):
            assert ckpt.save(step, state(step)).durable().warnings == ()
    assert discovery.step_numbers(run_dir) == [2, 3]
    copy_step(as_communicator(None), run_dir / layout.step_dirname(3), tmp_path / "copy")
    assert values(tmp_path / "copy") == {3.0}


@pytest.mark.usefixtures("losing")
def test_a_journal_that_is_shortened(run_dir, monkeypatch):
    monkeypatch.setattr(journal, "MAX_NBYTES", 1000)
    save(run_dir, *range(1, 9))
    assert values(run_dir) == {8.0}


@pytest.mark.usefixtures("losing")
@pytest.mark.parametrize("words", [["prune", "--keep-last", "1", "--yes"], ["restore", "--out", "OUT.npz"]])
def test_commands(run_dir, tmp_path, words):
    save(run_dir, 1, 2)
    given = [words[0], str(run_dir), *(str(tmp_path / word) if word.startswith("OUT") else word for word in words[1:])]
    done = CliRunner().invoke(tool, given)
    assert done.exit_code == 0, done.output
    assert values(run_dir) == {2.0}


def test_a_step_that_is_another_save_is_not_taken_for_this_one(run_dir, monkeypatch):
    """The rename failed, and another job has taken both directories away and made the target."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        rename = os.rename

        def lose(source: Any, target: Any) -> None:
            if Path(target).name == layout.step_dirname(2):
                rename(source, run_dir / "elsewhere")
                rename(run_dir / layout.step_dirname(1), target)
                raise OSError(errno.ENOENT, "No such file or directory", str(source))
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", lose)
            with pytest.raises(hc.errors.StorageError):
                ckpt.save(2, state(2)).result()
    assert not discovery.inspect_step(run_dir, 2).is_restorable
