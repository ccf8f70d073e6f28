"""Storage that does what it is asked to and reports a failure, as NFS may when its server restarts."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hpcckpt as hc
from hpcckpt.cli.app import tool
from hpcckpt.collective.connect import as_communicator
from hpcckpt.core import failpoints, files
from hpcckpt.core.options import Options
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


# -- the answer is lost, and for a while nothing else works ---------------------------------------------


class Outage:
    """Storage that carries out one rename, loses the answer, and then refuses some requests."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.target, self.n_refused, self.refused = str(run_dir), "", 0.0, set(REQUESTS)
        self.has_begun = False

    def at(self, target: str, n_refused: float = float("inf"), refused: tuple[str, ...] = ()) -> None:
        """Begin when a directory is renamed to a name with this text in it."""
        self.target, self.n_refused, self.has_begun = target, n_refused, False
        self.refused = set(refused or REQUESTS)

    def end(self) -> None:
        """Answer everything from now on."""
        assert self.has_begun
        self.target, self.has_begun = "", False

    def refuse(self, name: str, path: Any) -> None:
        """Refuse a request, if it is one to refuse."""
        if self.has_begun and self.n_refused > 0 and name in self.refused and str(path).startswith(self.run_dir):
            self.n_refused -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


REQUESTS = ("rename", "listdir", "open", "lstat", "unlink")


@pytest.fixture
def outage(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """The storage of the run directory."""
    storage = Outage(run_dir)

    def refusing(name: str) -> None:
        really = getattr(os, name)

        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            storage.refuse(name, path)
            done = really(path, *args, **options)
            if name == "rename" and storage.target and storage.target in str(args[0]):
                storage.has_begun, storage.target = True, ""
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return done

        monkeypatch.setattr(os, name, call)

    for name in REQUESTS:
        refusing(name)
    yield storage
    failpoints.install_hook(None)


def fail_to_save(ckpt: hc.Checkpointer, step: int, **options: Any) -> None:
    with pytest.raises(hc.errors.StorageError):
        ckpt.save(step, state(-step), **options).result()


def found(run_dir: Path) -> dict[str, float]:
    """Return the value of every directory that is a step, or was one."""
    names = sorted(name for name in os.listdir(run_dir) if "step-" in name)
    return {name: float(hc.load(run_dir / name)["w"][0]) for name in names}


def steps(*numbers: int) -> dict[str, float]:
    return {layout.step_dirname(number): float(number) for number in numbers}


@pytest.mark.parametrize("n_refused", [1, 2, 3, 5, 8, float("inf")])
def test_after_a_commit_whose_answer_was_lost_the_job_saves_again(run_dir, outage, n_refused, debris):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2), n_refused)
        fail_to_save(ckpt, 2)
        outage.end()
        ckpt.save(3, state(3)).result()
        assert found(run_dir) == steps(1, 3)
        assert debris(ckpt) == []


def test_the_same_step_can_be_saved_after_a_commit_whose_answer_was_lost(run_dir, outage):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2)
        outage.end()
        ckpt.save(2, state(2)).result()
    assert found(run_dir) == steps(1, 2)


def test_a_step_that_is_neither_durable_nor_renamed_back_does_not_stop_the_job(run_dir, outage, monkeypatch):
    """Step 6 of the commit fails, and so does every rename for a while."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()

        def refuse(phase: str, _rank: int) -> None:
            if phase == "5-published":
                outage.at("", refused=("rename",))
                outage.has_begun = True
                raise OSError(errno.EIO, "not synced")

        failpoints.install_hook(refuse)
        fail_to_save(ckpt, 2)
        failpoints.install_hook(None)
        outage.end()
        ckpt.save(3, state(3)).result()
    assert found(run_dir) == steps(1, 3)


@pytest.mark.parametrize(
    ("target", "n_refused"),
    [
        (".aside-step-0000000003", 1),
        (".aside-step-0000000003", float("inf")),
        (".aside-step-0000000002", 2),
        ("/step-0000000002", 1),
        ("/step-0000000002", float("inf")),
    ],
)
def test_steps_of_a_failed_save_that_goes_back_get_their_names_back(run_dir, outage, target, n_refused):
    save(run_dir, 1, 2, 3)
    with hc.Checkpointer(run_dir, on_newer="aside") as ckpt:
        ckpt.restore(state(0), step=1)
        outage.at(target, n_refused)
        fail_to_save(ckpt, 2)
        outage.end()
    assert found(run_dir) == steps(1, 2, 3)


def test_a_damaged_step_gets_its_name_back_if_its_successor_fails(run_dir, outage, damage):
    save(run_dir, 1, 2)
    damage.cut(damage.first_file(run_dir / layout.step_dirname(2)))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state(0))
        outage.at("/.bad-")
        fail_to_save(ckpt, 2)
        outage.end()
    assert discovery.step_numbers(run_dir) == [1, 2]


@pytest.mark.parametrize(
    ("target", "n_refused"),
    [
        ("/.replaced-", 1),
        ("/.replaced-", float("inf")),
        ("/step-0000000001", 1),
        ("/step-0000000001", float("inf")),
        ("/.next-", 2),
        ("/.next-", float("inf")),
    ],
)
def test_a_replaced_step_gets_its_name_back_after_each_rename(run_dir, outage, target, n_refused, monkeypatch):
    save(run_dir, 1)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state(0))
        monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_options: object())  # names cannot be exchanged

        def begin(phase: str, _rank: int) -> None:
            if phase == "4-durable":
                outage.at(target, n_refused)

        failpoints.install_hook(begin)
        fail_to_save(ckpt, 1, overwrite=True)
        failpoints.install_hook(None)
        outage.end()
        ckpt.save(2, state(2)).result()
        assert found(run_dir) == steps(1, 2)


@pytest.mark.parametrize("listing", ["latest_step", "all_steps", "best_step"])
def test_no_step_of_a_failed_save_is_listed(run_dir, outage, listing):
    with hc.Checkpointer(run_dir, keep_best="loss") as ckpt:
        ckpt.save(1, state(1), metrics={"loss": 2.0}).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2, metrics={"loss": 1.0})
        outage.end()
        assert getattr(ckpt, listing)() in (1, [1])


def test_a_run_whose_only_save_failed_has_no_steps(run_dir, outage):
    with hc.Checkpointer(run_dir) as ckpt:
        outage.at(layout.step_dirname(1))
        fail_to_save(ckpt, 1)
        outage.end()
        assert discovery.step_numbers(run_dir) == [1]
        assert not ckpt.has_steps()


@pytest.mark.parametrize("step", [None, 2])
def test_no_step_of_a_failed_save_is_restored(run_dir, outage, step):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2)
        outage.end()
        assert discovery.step_numbers(run_dir) == [1, 2]
        if step is None:
            assert ckpt.restore(state(0)).step == 1
        else:
            with pytest.raises(hc.errors.StepNotFoundError):
                ckpt.restore(state(0), step=step)


def test_a_step_that_the_run_resumed_from_meanwhile_keeps_its_name(run_dir, outage):
    """The storage can be read, and not be written for a while."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2)
        outage.refused = {"rename"}
        assert ckpt.restore(state(0)).step == 2
        outage.end()
        ckpt.save(3, state(3)).result()
    assert found(run_dir) == {**steps(1, 3), layout.step_dirname(2): -2.0}


@pytest.mark.parametrize("is_read", [True, False], ids=["by a reader", "by a user"])
def test_a_step_that_was_pinned_meanwhile_keeps_its_name_and_the_job_saves(run_dir, outage, caplog, is_read):
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2)
        outage.end()
        pins.pin(run_dir, 2, f"reader-elsewhere-{os.getpid()}" if is_read else "")
        ckpt.save(3, state(3)).result()
        ckpt.save(4, state(4)).result()
    assert found(run_dir) == {**steps(1, 3, 4), layout.step_dirname(2): -2.0}
    assert "step-0000000002: the save failed, but its step keeps its name" in caplog.text


@pytest.mark.parametrize("is_tried_at_once", [True, False])
def test_after_the_lock_was_lost_no_name_is_given_back(run_dir, outage, is_tried_at_once):
    """Another job may have resumed from the step."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2)
        outage.end()
        theirs = replace(lock.this_holder(), host="elsewhere")
        (run_dir / layout.LOCK).write_text(json.dumps(asdict(theirs)), encoding="utf-8")
        if is_tried_at_once:
            ckpt._session.rundir.workspace.restore_names()
        with pytest.raises(hc.errors.LockLostError):
            ckpt.save(3, state(3)).result()
        (run_dir / layout.LOCK).unlink()
        with pytest.raises(hc.errors.NewerStepError):
            ckpt.save(1, state(3)).result()
    assert found(run_dir) == {**steps(1), layout.step_dirname(2): -2.0}


def test_no_step_is_retired_for_one_of_a_failed_save(run_dir, outage):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1)).result()
        outage.at(layout.step_dirname(2))
        fail_to_save(ckpt, 2)
        outage.end()
        rundir = ckpt._session.rundir
        assert rundir.workspace.retain(rundir.lock, Options(max_to_keep=1)).removed == ()
    assert found(run_dir) == steps(1)


@pytest.mark.parametrize("target", [".aside-step-0000000003", ".aside-step-0000000002"])
def test_steps_of_a_failed_save_on_scratch_get_their_names_back(run_dir, outage, tmp_path, target):
    save(run_dir, 1, 2, 3)
    with hc.Checkpointer(run_dir, scratch=tmp_path / "scratch", on_newer="aside") as ckpt:
        ckpt.restore(state(0), step=1)
        outage.at(target)
        fail_to_save(ckpt, 2)
        outage.end()
    assert found(run_dir) == steps(1, 2, 3)
