"""The interfaces to the operating system: nothing goes around them, and a test can put something else behind them."""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt
import hpcckpt as hc
from hpcckpt.backends.rankfile.backend import RankfileBackend
from hpcckpt.collective.deadlines import Patience
from hpcckpt.core.options import Options
from hpcckpt.core.plan import SaveJob
from hpcckpt.core.system import LocalProcesses, OperatingSystem
from hpcckpt.errors import HpcckptError
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX, REAL, PosixFileSystem
from hpcckpt.rundir import commit, damage_records, discovery, journal, leftovers, pins
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.run_directory import NodeMap, RunDirectory
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.testing.ranks import ThreadCommunicator, _Group

# -- nothing goes around them ----------------------------------------------------------------------

ROOT = Path(hpcckpt.__file__).parent
MODULES = {"time", "threading", "socket", "shutil", "tempfile", "subprocess", "signal"}
"""Of these every use counts."""
PURE = {"PathLike", "basename", "dirname", "environ", "fsencode", "fspath", "join", "normpath", "path", "stat_result"}
"""Names in `os` and `os.path` that touch no file."""
NATIVE = {"fsync", "fdatasync", "fsync_dir", "write_blocks", "read_blocks", "preallocate"}
PATHLIB = {
    "chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir", "lstat", "mkdir",
    "read_bytes", "read_text", "rename", "resolve", "rglob", "rmdir", "samefile", "stat", "symlink_to", "touch",
    "unlink", "write_bytes", "write_text",
}  # fmt: skip
INTERFACES = {"files", "_files", "_fs", "processes"}

AROUND = {
    "collective": {  # file -> what it uses, and why it may
        "communicator.py": {"os._exit", "os.sched_getaffinity", "os.cpu_count"},  # ends the process; counts its cores
        "interrupts.py": {"signal", "threading"},  # a signal comes to the main thread of a real process
        "launchers.py": {"os.getpid", "read_bytes", "read_text"},  # who started this process: before there are ranks
        "mpi.py": {"read_text", "resolve", "threading"},  # the transport itself: loaded libraries, who finalizes MPI
    },
    "rundir": {
        # Names that plugins import from here; `latest_step` and `latest_checkpoint`, which programs call.
        "discovery.py": {"from hpcckpt.core.files", "default of newest_to_resume"},
    },
    "saving": {},
    "restoring": {  # `info`, `load`, `open_step`, `held_step`: programs without ranks call these
        "checkpoint_info.py": {
            "default of discovery.find_step", "default of discovery.read_manifest", "default of pins.pins"
        },
        "reader.py": {
            "default of discovery.check_files", "default of discovery.read_manifest",
            "default of discovery.newest_to_resume", "default of discovery.find_step",
            "default of discovery.raise_if_absent",
        },
        "segments.py": {"default of pins.reader_name", "default of pins.pin", "default of pins.unpin"},
    },
    "tiers": {},
}  # fmt: skip
NO_PROTOCOL = {"atomic_files.py"}
"""Files that a command or a framework writes by their path."""


def uses(path: Path) -> Iterator[str]:
    """Yield what a module uses of the operating system without an interface."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (
            node.module in MODULES | {"os"} or node.module == "hpcckpt.core.files"
        ):
            yield f"from {node.module}"
        elif isinstance(node, ast.ImportFrom) and node.module == "hpcckpt.core":
            yield from ("core.files" for name in node.names if name.name == "files")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
            yield "open"
        elif isinstance(node, ast.Attribute):
            yield from _attribute(ast.unparse(node.value), node.attr)


def _attribute(owner: str, name: str) -> Iterator[str]:
    if owner in MODULES:
        yield owner
    elif owner in {"os", "os.path", "native"}:
        is_use = name in NATIVE if owner == "native" else name not in PURE and not name.startswith("O_")
        yield from [f"{owner}.{name}"] if is_use else []
    elif name in PATHLIB and owner.rpartition(".")[2] not in INTERFACES:
        yield name


def defaulted() -> dict[str, tuple[str, int]]:
    """Return the functions of `rundir` with a default system or file system: name and index of that parameter."""
    found = {}
    for path in (ROOT / "rundir").glob("[a-z]*.py"):
        module = importlib.import_module(f"hpcckpt.rundir.{path.stem}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") == module.__name__ and callable(value):
                inner = {
                    f"{name}.{method}": getattr(value, method) for method in ("at", "take") if hasattr(value, method)
                }
                for text, function in {name: value, f"{path.stem}.{name}": value, **inner}.items():
                    parameters = inspect.signature(function).parameters
                    for index, parameter in enumerate(parameters.values()):
                        if parameter.default in (POSIX, REAL):
                            found[text] = (parameter.name, index)
    return found


def defaults(path: Path) -> Iterator[str]:
    """Yield the calls of a module that leave the system to the default."""
    known = defaulted()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if text in known:
            name, index = known[text]
            if len(node.args) <= index and name not in {keyword.arg for keyword in node.keywords}:
                yield f"default of {text}"


@pytest.mark.parametrize("package", AROUND)
def test_a_package_of_the_protocol_reaches_the_system_through_the_interfaces_only(package):
    paths = sorted((ROOT / package).rglob("*.py"))
    assert len(paths) > 5
    found = {path.name: {*uses(path), *defaults(path)} for path in paths if path.name not in NO_PROTOCOL}
    assert {name: used for name, used in found.items() if used} == AROUND[package]


def test_each_kind_of_use_is_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import os, time\nfrom hpcckpt.core import files\nfrom time import sleep\n"
        "time.sleep(1)\nos.rename(a, b)\nopen(a)\na.parent.read_text()\nnative.fsync_dir(a)\n"
        "self.files.unlink(a)\nos.path.join(a, b)\nos.O_RDONLY\nnative.crc32c(a)\n",
        encoding="utf-8",
    )
    assert sorted(uses(path)) == [
        "core.files",
        "from time",
        "native.fsync_dir",
        "open",
        "os.rename",
        "read_text",
        "time",
    ]


# -- a clock that a test turns -----------------------------------------------------------------------


class FakeClock:
    """Time passes only while somebody sleeps, and at least a second then."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self.passed_s

    def time(self) -> float:
        """Return what the files' clock showed at the start, and what has passed."""
        return time.time() + self.passed_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.passed_s += max(seconds, 1.0)


def test_the_lock_of_a_job_that_is_silent_is_taken_over_in_no_time(tmp_path, caplog):
    system = OperatingSystem(POSIX, clock=FakeClock())
    with RunLock.take(tmp_path, system=OperatingSystem(POSIX)) as held:
        path = tmp_path / layout.LOCK
        path.write_text(path.read_text(encoding="utf-8").replace(held.holder.host, "elsewhere"), encoding="utf-8")
        with pytest.raises(hc.errors.LockedError, match="elsewhere"):
            RunLock.take(tmp_path, system=system)
        system.clock.sleep(700.0)  # longer than a lock is respected without a heartbeat
        with RunLock.take(tmp_path, system=system) as taken:
            assert taken.is_mine()
            assert not held.is_mine()
    assert 760.0 <= system.clock.passed_s < 770.0, "two beats of 30 s are watched"
    assert "is taken over from" in caplog.text


def test_a_rank_that_waits_for_half_an_hour_gives_up_in_no_time(caplog):
    clock = FakeClock()
    comm = ThreadCommunicator(_Group(2, 0.0), 0, Patience().within(1800.0), clock)
    with pytest.raises(SystemExit):
        comm.barrier()
    assert 1800.0 < clock.passed_s < 1810.0
    assert "rank 0 waited 1800 s (peer_timeout_s): rank 1 has not entered a call of hpcckpt" in caplog.text
    assert caplog.text.count("waiting for other ranks") > 100


# -- a file system that fails ------------------------------------------------------------------------

CHANGES = (
    "exchange",
    "fsync",
    "fsync_dir",
    "link",
    "mkdir",
    "open",
    "rename",
    "remove_tree",
    "unlink",
    "write_blocks",
    "write_file",
)


NEVER = range(0)


class FailingFileSystem(PosixFileSystem):
    """The file system of this machine, of which one operation fails, or all from one on."""

    def __init__(self, *, is_first_done: bool = False) -> None:
        self.n_calls = 0
        self.failing = NEVER
        self.is_first_done = is_first_done
        self._guard = threading.Lock()

    def count(self, name: str, really: Callable[[], Any]) -> Any:
        """Count an operation, and do it; fail if it is due: the first, if wanted, after it was done."""
        with self._guard:
            number, self.n_calls = self.n_calls, self.n_calls + 1
        if number not in self.failing:
            return really()
        if self.is_first_done and number == self.failing.start:
            really()
        raise OSError(errno.EIO, f"{name} failed")


def _counted(name: str) -> Any:
    really = getattr(PosixFileSystem, name)

    def call(self: FailingFileSystem, *args: Any, **options: Any) -> Any:
        return self.count(name, lambda: really(self, *args, **options))

    return call


for _name in CHANGES:
    setattr(FailingFileSystem, _name, _counted(_name))


def opened(run: Path, files: FailingFileSystem) -> RunDirectory:
    """Return a run directory on a file system that fails, opened for writing."""
    rundir = RunDirectory(run, 0, NodeMap(1), RankfileBackend(), Options(max_to_keep=1), OperatingSystem(files))
    rundir.open()
    return rundir


def commit_again(rundir: RunDirectory, written: Path, failing: range = NEVER, step: int = 1) -> bool:
    """Commit a step that was written elsewhere, while operations fail; return True if that succeeds."""
    files = rundir.system.files
    assert isinstance(files, FailingFileSystem)
    manifest = replace(discovery.read_manifest(written, files), step=step)
    slot = rundir.prepare_slot(None)
    staged = commit.Staged(SaveJob(manifest.save_id, step, 1), rundir.path, slot.name)
    shutil.copytree(written / layout.DATA, staged.path / layout.DATA, dirs_exist_ok=True)
    files.n_calls, files.failing = 0, failing
    try:
        rundir.commit(staged, manifest, overwrite=True)
    except (HpcckptError, OSError):
        rundir.abort(staged)
        return False
    finally:
        files.failing = NEVER
    return True


@pytest.mark.parametrize("is_one", [True, False], ids=["one operation fails", "all fail from one on"])
def test_a_commit_of_which_any_operation_fails_leaves_the_old_or_the_new_step_whole(tmp_path, is_one):
    for name, value in (("old", 1.0), ("new", 2.0)):
        with hc.Checkpointer(tmp_path / name) as ckpt:
            ckpt.save(1, {"w": np.full(1000, value)})
    succeeded = []
    for n in range(200):
        run, files = tmp_path / f"run-{n}", FailingFileSystem()
        shutil.copytree(tmp_path / "old", run)
        rundir = opened(run, files)
        is_committed = commit_again(
            rundir, tmp_path / "new" / layout.step_dirname(1), range(n, n + 1 if is_one else 10**9)
        )
        rundir.close()
        with hc.Checkpointer(run) as ckpt:  # a job that comes later gives names back and sweeps
            ckpt.save(2, {"w": np.zeros(1)}).result()
            assert ckpt.all_steps() == [1, 2]
        (value,) = set(hc.load(run, step=1)["w"].tolist())
        assert value in ({2.0} if is_committed else {1.0} if is_one else {1.0, 2.0}), n
        assert [name for name in os.listdir(run) if name.startswith((".next", ".replaced", ".retired"))] == []
        succeeded.append(is_committed)
        if files.n_calls <= n:
            break
    assert files.n_calls <= n, "every operation has failed once"
    assert not succeeded[0]
    assert succeeded[-1]


@pytest.mark.parametrize("is_new", [True, False], ids=["a new step", "a step that is replaced"])
def test_after_a_commit_of_which_any_answer_is_lost_the_job_saves_again(tmp_path, is_new):
    """And until then no name has changed, however many requests fail after the one whose answer is lost."""
    old = 0 if is_new else 1
    for name, step, value in (("old", old, 1.0), ("new", 1, 2.0), ("next", 2, 3.0)):
        with hc.Checkpointer(tmp_path / name) as ckpt:
            ckpt.save(step, {"w": np.full(1000, value)})
    for n, n_failing in itertools.product(range(200), (1, 2, 5, 10**9)):
        run, files = tmp_path / f"run-{n}-{n_failing}", FailingFileSystem(is_first_done=True)
        shutil.copytree(tmp_path / "old", run)
        rundir = opened(run, files)
        rundir.lineage = rundir.lineage.after(SaveJob("0" * 32, old, 1))
        is_committed = commit_again(rundir, tmp_path / "new" / layout.step_dirname(1), range(n, n + n_failing))
        is_last = files.n_calls <= n
        rundir.workspace.restore_names()
        found = {step: float(hc.load(run, step=step)["w"][0]) for step in discovery.step_numbers(run)}
        allowed = [{1: 2.0}, {0: 1.0, 1: 2.0}] if is_committed else [{old: 1.0}]  # retention may have failed
        assert found in allowed, (n, n_failing)
        assert commit_again(rundir, tmp_path / "next" / layout.step_dirname(2), step=2), (n, n_failing)
        rundir.close()
        assert discovery.step_numbers(run) == [2]
        assert [name for name in os.listdir(run) if name.startswith((".next", ".replaced", ".retired"))] == []
        if is_last:
            break
    assert is_last, "every answer was lost once"


def test_a_run_directory_uses_no_other_file_system_than_its_own(tmp_path, monkeypatch):
    """A function that was not passed one would fall back to the default."""
    with hc.Checkpointer(tmp_path / "new") as ckpt:
        ckpt.save(1, {"w": np.zeros(1000)})
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]

    def refused(name: str, own: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if threading.current_thread() in others:  # the heartbeat of a checkpointer that another test left open
                return own(*args, **options)
            return pytest.fail(f"{name} of the default")

        return call

    for name in [name for name in dir(POSIX) if not name.startswith("_")]:
        monkeypatch.setattr(POSIX, name, refused(name, getattr(POSIX, name)))
    run, written = tmp_path / "run", tmp_path / "new" / layout.step_dirname(1)
    files = FailingFileSystem()
    system = OperatingSystem(files)
    for step in (1, 1, 2, 3):  # one is replaced, the others are retired and swept
        rundir = opened(run, files)
        assert commit_again(rundir, written, step=step)
        rundir.close()
    assert discovery.step_numbers(run, files) == [3]
    pins.pin_save(run, 3, system)
    pins.pin(run, 3, pins.reader_name(system), files=files)
    assert pins.pins_to_obey(run, system) == pins.pinned_by_users(run, system) == {3}
    assert damage_records.record(run, 3, "0" * 32, "a problem", "a test", system)
    assert [each.kind for each in leftovers.find_leftovers(run, system=system)] == []
    assert discovery.find_step(run, "latest", files=files).step == 3
    assert pins.unpin(run, 3, files=files)
    with RunLock.take(run, system=system) as held:
        Workspace.at(run, system).sweep(held)
    assert [entry["event"] for entry in journal.read_journal(run, system)] == []


# -- several processes in one ------------------------------------------------------------------------


class _Processes:
    """One of several simulated processes of a host."""

    def __init__(self, pid: int, running: set[int]) -> None:
        self._pid, self._running = pid, running

    def host(self) -> str:
        return "host"

    def pid(self) -> int:
        return self._pid

    def started(self, pid: int) -> str:
        return f"start of {pid}" if pid in self._running else ""

    def exists(self, pid: int) -> bool:
        return pid in self._running

    def boot_id(self) -> str:
        return "boot"

    def machine_id(self) -> str:
        return "machine"

    def pid_namespace(self) -> str:
        return "namespace"


class _Elsewhere(_Processes):
    def host(self) -> str:
        return "elsewhere"


def test_simulated_processes_share_no_state_and_keep_each_other_out(tmp_path):
    running = {1, 2}
    one, two = (OperatingSystem(POSIX, processes=_Processes(pid, running)) for pid in (1, 2))
    assert Workspace.at(tmp_path, one) is Workspace.at(tmp_path, one)
    assert Workspace.at(tmp_path, one) is not Workspace.at(tmp_path, two)
    with RunLock.take(tmp_path, system=one) as first:
        with RunLock.take(tmp_path, system=one) as again:
            assert again is first
        with pytest.raises(hc.errors.LockedError, match="in use by process 1 on host") as refused:
            RunLock.take(tmp_path, system=two)
        assert "if that node died" not in str(refused.value)
        away = OperatingSystem(POSIX, processes=_Elsewhere(3, running))
        with pytest.raises(hc.errors.LockedError, match="if that node died, the lock can be taken 600 s after"):
            RunLock.take(tmp_path, system=away)
        running.remove(1)
        with RunLock.take(tmp_path, system=two) as second:
            assert second.is_mine()
            assert not first.is_mine()


def test_a_forked_child_shares_nothing_with_its_parent_even_if_its_pid_is_reused():
    class OneNumber(LocalProcesses):
        def pid(self) -> int:
            return 100

    system = OperatingSystem(POSIX, processes=OneNumber())
    made = system.shared(("a",), object)
    assert system.shared(("a",), object) is made
    child = os.fork()
    if child == 0:
        os._exit(0 if system.shared(("a",), object) is not made else 1)
    assert os.waitpid(child, 0)[1] == 0
