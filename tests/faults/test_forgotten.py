"""Without `close`: saves are committed, and locks, memory and communicators are released."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.checkpointer import shutdown
from hpcckpt.checkpointer.session import Session
from hpcckpt.collective import deadlines
from hpcckpt.collective.deadlines import Patience
from hpcckpt.core import failpoints
from hpcckpt.core.weak import living
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.journal import Journal, read_journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.run_directory import RunDirectory
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.testing.ranks import run_ranks

STATE = {"w": np.ones(10)}
LIMIT_S = 60.0


def run(script: str, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
    begin = "import gc, os, sys, threading\nimport numpy as np\nimport hpcckpt as hc\nw = np.ones(100_000)\n"
    command = [sys.executable, "-c", begin + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def is_locked(run_dir: Path) -> bool:
    return (run_dir / layout.LOCK).exists()


def wait_until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.01)


def open_elsewhere(run_dir: Path) -> None:
    """Open and close a run in another directory, as a later part of a program."""
    hc.Checkpointer(run_dir.with_name("elsewhere")).close()


def session_of(run_dir: Path) -> weakref.ref[Session]:
    (found,) = (each for each in living(shutdown._open_sessions) if each.rundirs[0].path == run_dir)
    return weakref.ref(found)


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions be released by the thread that opens a run, as where no thread can be started."""
    made = shutdown._Forgotten()
    monkeypatch.setattr(made, "start", lambda: None)
    monkeypatch.setattr(shutdown, "_forgotten", made)


# -- the end of the program ------------------------------------------------------------------------


def test_a_checkpointer_that_is_collected_as_the_program_begins_to_end_loses_no_save(run_dir):
    ended = run(
        """
from hpcckpt.checkpointer import shutdown
gc.disable()
holder = {"ckpt": hc.Checkpointer(sys.argv[1])}
holder["itself"] = holder
holder["ckpt"].save(1, {"w": w})
del holder
real = shutdown.living

def collecting(table):
    gc.collect()
    return real(table)

shutdown.living = collecting
""",
        run_dir,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert step_numbers(run_dir) == [1]
    assert not is_locked(run_dir)


CHILD = """
import multiprocessing, sys, threading, time
import numpy as np, hpcckpt as hc

def train(directory):
    global ckpt
    ckpt = hc.Checkpointer(directory)
    for step in (1, 2):
        time.sleep(0.2)
        ckpt.save(step, {"w": np.ones(100_000)})

def work(directory, has_thread):
    threading.Thread(target=train, args=[directory]).start() if has_thread else train(directory)

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=[sys.argv[1], sys.argv[3] == "True"])
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("has_thread", [False, True])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_finishes_its_saves(run_dir, tmp_path, method, has_thread):
    """Those that are forked end without what `atexit` calls."""
    script = tmp_path / "train.py"
    script.write_text(CHILD)
    command = [sys.executable, str(script), str(run_dir), method, str(has_thread)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert step_numbers(run_dir) == [1, 2]
    assert not is_locked(run_dir)


LISTENER = """
def use_another(step):
    if sys.argv[3] == "thread":
        thread = threading.Thread(target=lambda: hc.Checkpointer(sys.argv[2]).close(), daemon=True)
        thread.start()
        thread.join(10)
        print(step.step, "waits" if thread.is_alive() else "continues", flush=True)
    else:
        hc.Checkpointer(sys.argv[2]).close()
        print(step.step, "continues", flush=True)

def forget():
    ckpt = hc.Checkpointer(sys.argv[1])
    ckpt.on_saved(use_another)
    ckpt.save(1, {"w": w})

forget()
"""


@pytest.mark.parametrize("end", ["", "hc.Checkpointer(sys.argv[1]).close()"], ids=["at exit", "at the next opening"])
@pytest.mark.parametrize("by", ["itself", "thread"])
def test_a_function_called_with_a_late_step_may_open_a_run(run_dir, tmp_path, end, by):
    ended = run(LISTENER + end, run_dir, tmp_path / "other", by)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "1 continues\n"


# -- a program that continues --------------------------------------------------------------------------


@pytest.mark.parametrize("has_scratch", [False, True])
def test_a_run_whose_save_ends_after_its_checkpointer_is_collected_is_released(run_dir, tmp_path, has_scratch):
    options = {"scratch": tmp_path / "scratch"} if has_scratch else {}
    hc.Checkpointer(run_dir, **options).save(1, STATE).durable()
    session = session_of(run_dir)
    open_elsewhere(run_dir)
    gc.collect()
    assert session() is None
    assert not is_locked(run_dir)


def test_a_forgotten_save_that_fails_is_reported_before_its_run_is_released(run_dir, caplog):
    def fail(phase: str, _: int) -> None:
        if phase == "2-written":
            raise OSError(28, "No space left on device")

    failpoints.install_hook(fail)
    pending = hc.Checkpointer(run_dir).save(1, STATE)
    wait_until(lambda: _has_failed(pending))
    failpoints.install_hook(None)
    open_elsewhere(run_dir)
    assert "No space left on device" in caplog.text
    assert not is_locked(run_dir)


def _has_failed(pending: Any) -> bool:
    try:
        return bool(pending.done())
    except hc.errors.HpcckptError:
        return True


def test_of_a_block_that_an_exception_ended_nothing_stays_in_memory(run_dir):
    def body(comm: Any) -> weakref.ref[Session]:
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.__enter__()
        ckpt.save(1, STATE).result()
        ckpt.__exit__(ValueError, ValueError("own"), None)
        return weakref.ref(ckpt._session)

    left = run_ranks(2, body)
    gc.collect()
    assert [session() for session in left] == [None, None]


def test_a_closed_checkpointer_is_collected_though_it_calls_its_owner(run_dir):
    class Trainer:
        def __init__(self) -> None:
            self.ckpt = hc.Checkpointer(run_dir)
            self.ckpt.on_saved(self.log)

        def log(self, step: Any) -> None: ...

    trainer = Trainer()
    trainer.ckpt.save(1, STATE).result()
    trainer.ckpt.close()
    left = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert left() is None


def test_how_a_block_ended_is_in_the_journal_though_its_steps_went_to_scratch(run_dir, tmp_path, monkeypatch):
    real, locked = Journal.end, []

    def end(self: Journal, *facts: Any) -> None:
        locked.append(is_locked(run_dir))
        real(self, *facts)

    monkeypatch.setattr(Journal, "end", end)

    def main() -> None:
        with hc.Checkpointer(run_dir, scratch=tmp_path / "scratch") as ckpt:
            ckpt.save(1, STATE).durable()
            sys.exit(75)

    with pytest.raises(SystemExit):
        main()
    wait_until(lambda: gc.collect() >= 0 and not is_locked(run_dir))
    last = read_journal(run_dir)[-1]
    assert (last["event"], last["error"], last["exit_code"]) == ("end", "SystemExit", 75)
    assert locked == [True]


# -- releases that fail or are interrupted ------------------------------------------------------------------


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the first release of a lock."""
    real, arrivals = RunLock.release, []

    def release(self: RunLock) -> None:
        arrivals.append(self)
        if len(arrivals) == 1:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(RunLock, "release", release)


def test_an_interrupted_release_is_repeated(run_dir, threadless, interrupted):
    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, STATE).result()
    del ckpt
    with pytest.raises(KeyboardInterrupt):
        open_elsewhere(run_dir)
    assert is_locked(run_dir)
    open_elsewhere(run_dir)
    assert not is_locked(run_dir)


def test_an_interrupted_close_is_repeated(run_dir, interrupted):
    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, {"w": np.ones(1_000_000)}).result()
    with pytest.raises(KeyboardInterrupt):
        ckpt.close()
    assert is_locked(run_dir)
    assert ckpt._session.queue.arenas._free  # it may be used
    ckpt.close()
    assert not is_locked(run_dir)


def test_an_interrupted_opening_finishes_an_abandoned_run_later(run_dir, tmp_path, monkeypatch):
    def interrupt(_: Session) -> None:
        raise KeyboardInterrupt

    scratch = tmp_path / "scratch"
    ckpt = hc.Checkpointer(run_dir, scratch=scratch)
    ckpt.save(1, STATE)
    ckpt.__exit__(ValueError, ValueError("own"), None)
    monkeypatch.setattr(shutdown, "_finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hc.Checkpointer(run_dir, scratch=scratch)
    monkeypatch.undo()
    del ckpt
    gc.collect()
    hc.Checkpointer(run_dir, scratch=scratch).close()
    assert step_numbers(run_dir) == [1]
    assert not is_locked(run_dir)


def test_a_lock_is_released_though_what_was_prepared_cannot_be_removed(run_dir, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, STATE).result()
    monkeypatch.setattr(Workspace, "sweep", fail)
    del ckpt
    wait_until(lambda: not is_locked(run_dir))


def test_an_opening_does_not_fail_for_what_another_run_left(run_dir, monkeypatch, caplog):
    hc.Checkpointer(run_dir).save(1, STATE).result()
    monkeypatch.setattr(shutdown, "_finish", _fail)
    open_elsewhere(run_dir)
    assert "of another run" in caplog.text


def _fail(_: Session) -> None:
    raise ValueError("of another run")


def test_an_opening_releases_what_was_noted_if_the_thread_has_ended(run_dir, threadless):
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    shutdown._forgotten._thread = ended
    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, STATE).result()
    del ckpt
    open_elsewhere(run_dir)
    assert not is_locked(run_dir)


def test_two_threads_release_one_lock_once(run_dir, monkeypatch):
    with hc.Checkpointer(run_dir) as other:
        other.save(1, STATE).result()
        ckpt = hc.Checkpointer(run_dir)
        ckpt.restore({"w": np.zeros(10)})
        ckpt.save(2, STATE).result()
        real, rundir = Workspace.finish_removal, ckpt._session.rundir

        def late(self: Workspace) -> str:
            monkeypatch.setattr(Workspace, "finish_removal", real)
            rundir.close()  # as another thread may at this moment
            return real(self)

        monkeypatch.setattr(Workspace, "finish_removal", late)
        rundir.close()
        assert is_locked(run_dir)
        ckpt.close()


def test_an_opening_logs_that_it_waits_for_a_release(run_dir, monkeypatch, caplog):
    may_end, real = threading.Event(), RunDirectory.close

    def slow(self: RunDirectory) -> None:
        if threading.current_thread().name == "hpcckpt-release":
            may_end.wait(LIMIT_S)
        real(self)

    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, STATE).result()
    monkeypatch.setattr(RunDirectory, "close", slow)
    monkeypatch.setattr(deadlines, "Patience", lambda: Patience(first_note_s=0.0))
    del ckpt
    opening = threading.Thread(target=open_elsewhere, args=[run_dir])
    opening.start()
    try:
        wait_until(lambda: "runs whose checkpointers were not closed are released" in caplog.text)
    finally:
        may_end.set()
        opening.join()


def test_a_thread_that_cannot_be_started_is_started_later(run_dir, monkeypatch):
    made, real = shutdown._Forgotten(), threading.Thread.start
    monkeypatch.setattr(shutdown, "_forgotten", made)

    def refused(self: threading.Thread) -> None:
        if self.name == "hpcckpt-release":
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    hc.Checkpointer(run_dir).close()
    monkeypatch.setattr(threading.Thread, "start", real)
    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, STATE).result()
    del ckpt
    wait_until(lambda: not is_locked(run_dir))


def test_a_save_that_a_failing_close_left_keeps_no_lock_at_the_end(run_dir, monkeypatch):
    monkeypatch.setattr(shutdown, "_open_sessions", weakref.WeakValueDictionary())
    monkeypatch.setattr(shutdown, "_orphans", set())  # what rank 1 leaves is not for this process to finish

    def fail() -> None:
        raise MemoryError

    def body(comm: Any) -> None:
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, STATE).result()
        ckpt.save(2, STATE)
        comm.barrier()
        if not comm.is_root:
            return
        monkeypatch.setattr(ckpt._session.queue.background, "poll", fail)
        with pytest.raises(MemoryError):
            ckpt.close()
        assert is_locked(run_dir)
        monkeypatch.setattr(shutdown, "_open_sessions", weakref.WeakValueDictionary({0: ckpt._session}))
        shutdown._finish_all(os.getpid())

    run_ranks(2, body)
    assert not is_locked(run_dir)


def test_a_run_that_is_being_finished_is_not_released_by_the_thread(run_dir, tmp_path, threadless, monkeypatch):
    real, held = shutdown._finish, []

    def finish(session: Session) -> None:
        gc.collect()
        shutdown._forgotten.release()
        held.append([rundir.lock is not None for rundir in session.rundirs])
        real(session)

    scratch = tmp_path / "scratch"
    gc.disable()
    try:
        left = {"ckpt": hc.Checkpointer(run_dir, scratch=scratch)}
        left["itself"] = left
        left["ckpt"].save(1, STATE).durable()
        left["ckpt"].__exit__(ValueError, ValueError("own"), None)
        del left
        monkeypatch.setattr(shutdown, "_finish", finish)
        hc.Checkpointer(run_dir, scratch=scratch).close()
    finally:
        gc.enable()
    assert held == [[True, True]]


def test_memory_of_snapshots_is_released_where_ranks_forget_checkpointers(run_dir, monkeypatch):
    monkeypatch.setattr(shutdown, "_orphans", set())

    def body(comm: Any) -> None:
        hc.Checkpointer(run_dir, comm=comm).save(1, {"w": np.ones(1_000_000)}).result()
        if comm.is_root:
            open_elsewhere(run_dir)  # a save was in flight when it was collected
            wait_until(lambda: not is_locked(run_dir))
            (session,) = (each for each in shutdown._orphans if each.comm.is_root)
            assert not session.queue.arenas._free

    run_ranks(2, body)


def test_a_run_that_was_closed_by_a_time_out_is_not_locked_again_by_its_save(run_dir):
    may_continue, arrivals = threading.Event(), []

    def hold(phase: str, _: int) -> None:
        if phase == "1-begin":
            arrivals.append(phase)
            may_continue.wait(LIMIT_S)

    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, STATE).result()
    failpoints.install_hook(hold)
    try:
        ckpt.save(2, STATE)
        (task,) = ckpt._session.queue.background.tasks
        wait_until(lambda: bool(arrivals))
        shutdown._abort(ckpt._session, "PeerTimeoutError")
        may_continue.set()
        task.local.join()
    finally:
        failpoints.install_hook(None)
    assert not is_locked(run_dir)


FREED = """
from mpi4py import MPI
from hpcckpt.core import failpoints
from hpcckpt.collective.mpi import MpiCommunicator
real, freed = MpiCommunicator.free, []
MpiCommunicator.free = lambda self: (freed.append(self), real(self))
for step in range(3):
    ckpt = hc.Checkpointer(sys.argv[1], comm=MPI.COMM_SELF)
    pending = ckpt.save(step, {"w": w})
    pending.result()
    del ckpt
hc.Checkpointer(sys.argv[2], comm=MPI.COMM_SELF).close()
assert pending.done() and pending.result().step == 2
print(len(freed))
may_continue = threading.Event()
failpoints.install_hook(lambda phase, _: phase == "2-write" and may_continue.wait())
ckpt = hc.Checkpointer(sys.argv[1], comm=MPI.COMM_SELF)
ckpt.restore({"w": w})
ckpt.save(9, {"w": w})
del ckpt
hc.Checkpointer(sys.argv[2], comm=MPI.COMM_SELF).close()
may_continue.set()
"""


def test_communicators_of_one_rank_are_freed_without_close(run_dir, tmp_path):
    """MPI has only some thousand of them."""
    ended = run(FREED, run_dir, tmp_path / "other")
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "4\n")
    assert step_numbers(run_dir) == [1, 2, 9]
