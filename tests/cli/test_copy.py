"""``hpcckpt copy``."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.cli.copy import BandwidthType
from hpcckpt.core.system import OperatingSystem
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX, PosixFileSystem
from hpcckpt.rundir import discovery
from hpcckpt.rundir.journal import NAME, read_journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools.report.read_history import read_run_history
from hpcckpt.tools.report.watch_view import frame_of, lines_of, news
from tests.support.mpi import launch as mpi_launch

Cli = Callable[..., Any]


def save(run: Path, *steps: int, n_ranks: int = 2) -> Path:
    def body(comm: Any) -> None:
        with hc.Checkpointer(run, comm=comm, max_to_keep=None) as ckpt:
            for step in steps:
                metrics = {"val_loss": abs(step - 2.0)}
                ckpt.save(step, {"w": np.full(5000, float(step)), "n": hc.PerRank(comm.rank)}, metrics=metrics).result()

    run_ranks(n_ranks, body)
    return run


def damage(run: Path, step: int) -> None:
    with (run / layout.step_dirname(step) / "data" / "rank-00001.safetensors").open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"xx")


def ids(run: Path) -> dict[int, str]:
    return {info.step: info.manifest.save_id for info in discovery.scan(run) if info.manifest}


def test_the_newest_step_is_copied_as_the_same_save(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2, 3), tmp_path / "out"
    result = cli("copy", run, out)
    assert result.code == 0
    assert result.out.startswith(f"copied step 3 to {out / 'step-0000000003'}")
    assert ids(out) == {3: ids(run)[3]}
    assert cli("verify", out).code == 0
    assert os.listdir(out) == ["step-0000000003"]


@pytest.mark.parametrize(("step", "expected"), [("1", [1]), ("best", [2]), ("latest", [3]), ("all", [1, 2, 3])])
def test_steps_are_chosen_as_elsewhere_and_all_of_them(
    cli: Cli, tmp_path: Path, step: str, expected: list[int]
) -> None:
    run, out = save(tmp_path / "run", 1, 2, 3), tmp_path / "out"
    result = cli("copy", run, out, step, "--json")
    assert [line["step"] for line in result.json["steps"]] == expected == discovery.step_numbers(out)
    assert {line["state"] for line in result.json["steps"]} == {"copied"}


def test_the_directory_of_a_step_will_do_too(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2), tmp_path / "out"
    assert cli("copy", run / layout.step_dirname(1), out).code == 0
    assert discovery.step_numbers(out) == [1]


def test_what_is_there_is_left_alone_and_said(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2), tmp_path / "out"
    cli("copy", run, out)
    result = cli("copy", run, out, "all")
    assert (result.code, result.err) == (0, f"step 2 is in {out} already\n")
    assert result.out.startswith("copied step 1 ")


def test_a_dry_run_says_what_would_be_done_and_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2), tmp_path / "out"
    result = cli("copy", run, out, "all", "--dry-run")
    assert [line.split(" (")[0] for line in result.out.splitlines()] == [
        f"would copy step {n} to {out / layout.step_dirname(n)}" for n in (1, 2)
    ]
    assert not out.exists()


def test_another_save_of_the_number_is_refused_unless_it_is_to_be_replaced(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1), save(tmp_path / "out", 1)
    before = ids(out)
    for dry in ([], ["--dry-run"]):
        result = cli("copy", run, out, *dry)
        assert (result.code, "--overwrite" in result.err) == (1, True)
    assert ids(out) == before
    assert cli("copy", run, out, "--overwrite").code == 0
    assert ids(out) == ids(run) != before


def test_damage_of_the_source_ends_with_3_and_of_some_of_all_with_6(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2, 3), tmp_path / "out"
    damage(run, 2)
    result = cli("copy", run, out, "2")
    assert result.code == 3
    assert "nothing was committed" in result.err
    assert "[rank" not in result.err
    result = cli("copy", run, out, "all", "--json")
    assert (result.code, [line["state"] for line in result.json["steps"]]) == (6, ["copied", "failed", "copied"])
    assert discovery.step_numbers(out) == [1, 3]
    damage(run, 1)
    damage(run, 3)
    assert cli("copy", run, tmp_path / "other", "all").code == 3


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["absent", "out"], 4, "does not exist"),
        (["empty", "out", "all"], 4, "no step"),
        (["run", "out", "9"], 4, "no step 9"),
        (["run", "run"], 2, "already"),
        (["run", "out", "--bandwidth", "fast"], 2, "is no rate"),
        (["run", "out", "--bandwidth", "0"], 2, "is no rate"),
        (["run", "out", "--jobs", "0"], 2, "jobs"),
        (["run"], 2, "DESTINATION"),
    ],
)
def test_what_cannot_be_is_told_with_its_code(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, text: str
) -> None:
    save(tmp_path / "run", 1)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    result = cli("copy", *words)
    assert (result.code, text in result.err) == (code, True)
    assert not (tmp_path / "out").exists()


def test_a_directory_that_a_job_writes_in_is_busy(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1), tmp_path / "out"
    out.mkdir()
    with RunLock.take(out, system=OperatingSystem(POSIX)):
        assert cli("copy", run, out).code == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100", 100), ("2k", 2048), ("200M", 200 << 20), ("1.5GiB/s", 1.5 * (1 << 30)), ("3 MB", 3e6), ("2kB/s", 2000)],
)
def test_rates_are_read_as_their_units_are_written(text: str, expected: float) -> None:
    assert BandwidthType().convert(text, None, None) == expected


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_under_mpirun_the_ranks_share_the_work_and_speak_once(
    tmp_path: Path, environment: Callable[..., dict[str, str]]
) -> None:
    pytest.importorskip("mpi4py")
    run, out = save(tmp_path / "run", 1, 2, n_ranks=3), tmp_path / "out"
    launched = {**mpi_launch.clean_environment(), **environment()}

    def copy(*words: str, to: Path = out) -> subprocess.CompletedProcess[str]:
        command = ["mpirun", "-n", "3", sys.executable, "-m", "hpcckpt", "copy", str(run), str(to), *words]
        return subprocess.run(command, env=launched, capture_output=True, text=True, timeout=240, check=False)

    done = copy("all")
    assert done.returncode == 0, done.stderr
    assert [line.split(" to ")[0] for line in done.stdout.splitlines()] == ["copied step 1", "copied step 2"]
    assert ids(out) == ids(run)
    damage(run, 2)
    other = save(tmp_path / "other", 2)
    before = ids(other)
    done = copy("2", "--overwrite", to=other)
    assert done.returncode == 3
    assert done.stderr.count("hpcckpt: error:") == 1
    assert ids(other) == before


# -- the journal -----------------------------------------------------------------------------------


def test_the_journal_of_a_copy_has_the_source_and_watch_and_report_show_it(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2, 3), save(tmp_path / "out", 1)
    before = read_run_history(out)
    cli("copy", run, out, "3")
    (entry,) = [entry for entry in read_journal(out) if entry["event"] == "copied"]
    expected = {"step": 3, "save_id": ids(run)[3], "from": str(run / layout.step_dirname(3)), "by": "copy"}
    assert {name: entry[name] for name in expected} == expected
    after = read_run_history(out)
    assert [job.last for job in after.jobs] == [job.last for job in before.jobs], "nobody heard of the job again"
    (line,) = [line for line in news(before, after) if "copied" in line]
    assert line.endswith(f"copied step 3 from {run / layout.step_dirname(3)} (hpcckpt copy)")
    assert "copied step 3" in dict(lines_of(frame_of(after, time.time())))["by hand"]
    assert "copied step 3" in cli("report", out, "-o", "-").out
    assert not [entry for entry in read_journal(run) if "by" in entry], "where it came from nothing changed"


def test_a_step_that_was_removed_and_is_brought_back_stands_again(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1, 2), tmp_path / "out"
    cli("copy", run, out, "1")
    cli("prune", run, "--keep-last", 1, "--yes")
    cli("copy", out, run, "1")
    assert [(save.step, save.state) for save in read_run_history(run).saves] == [(1, "kept"), (2, "kept")]
    assert [change.verb for change in read_run_history(run).changes] == ["prune", "copy"]


def test_an_existing_step_is_not_logged_again_and_a_new_directory_gets_no_journal(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1), tmp_path / "out"
    cli("copy", run, out)
    assert NAME not in os.listdir(out)
    save(out, 2)
    before = (out / NAME).read_bytes()
    cli("copy", run, out)
    assert (out / NAME).read_bytes() == before


def test_a_journal_that_cannot_be_written_fails_no_copy(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1), tmp_path / "out"
    (out / NAME).mkdir(parents=True)
    assert cli("copy", run, out).code == 0
    assert ids(out) == ids(run)


def test_a_step_that_may_not_be_read_keeps_no_other_from_being_copied(
    cli: Cli, unreadable: Path, tmp_path: Path
) -> None:
    result = cli("copy", unreadable, tmp_path / "out", "all", "--json")
    assert (result.code, discovery.step_numbers(tmp_path / "out")) == (6, [10, 30])
    assert [line["step"] for line in result.json["steps"] if line["kind"] == "storage"] == [20]
    assert "make it readable for this user" in result.err


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_step_with_a_file_that_cannot_be_read_keeps_no_other_from_being_copied(
    cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    read_blocks = PosixFileSystem.read_blocks

    def failing(files: PosixFileSystem, fd: int, blocks: Any, *, path: str) -> Any:
        if path.startswith(str(saved / layout.step_dirname(20))):
            raise OSError(number, os.strerror(number), path)
        return read_blocks(files, fd, blocks, path=path)

    monkeypatch.setattr(PosixFileSystem, "read_blocks", failing)
    result = cli("copy", saved, tmp_path / "out", "all", "--json")
    assert (result.code, discovery.step_numbers(tmp_path / "out")) == (6, [10, 30])
    assert [line["step"] for line in result.json["steps"] if line["kind"] == "unreadable"] == [20]
    assert os.strerror(number) in result.err
