"""A forked child that uses the checkpointer of its parent gets a typed error, and changes nothing of its parent's."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.backends.rankfile import backend
from hpcckpt.checkpointer import shutdown
from hpcckpt.errors import ForkedError
from hpcckpt.format import layout
from hpcckpt.native import plugins
from hpcckpt.native.posix_files import REAL
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.lock import RunLock, _HeldLocks
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tmci import calls

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(body: Callable[[], Any], limit_s: int = 60) -> Any:
    """Fork, and return what `body` returned in the child, or the kind of the error that it raised."""
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit_s)  # a child that hangs ends, and fails the test
        try:
            said = {"value": body()}
        except BaseException as error:  # noqa: BLE001 - the child must not run the tests that come after this one
            said = {"kind": getattr(error, "kind", type(error).__name__), "text": str(error)}
        os.write(target, json.dumps(said).encode())
        os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(text)


METHODS: dict[str, Callable[[hc.Checkpointer, hc.PendingSave], Any]] = {
    "save": lambda ckpt, _: ckpt.save(2, {"w": np.zeros(3)}),
    "restore": lambda ckpt, _: ckpt.restore({"w": np.zeros(3)}),
    "poll": lambda ckpt, _: ckpt.poll(),
    "wait": lambda ckpt, _: ckpt.wait(),
    "close": lambda ckpt, _: ckpt.close(),
    "latest_step": lambda ckpt, _: ckpt.latest_step(),
    "best_step": lambda ckpt, _: ckpt.best_step(),
    "all_steps": lambda ckpt, _: ckpt.all_steps(),
    "has_steps": lambda ckpt, _: ckpt.has_steps(),
    "pin": lambda ckpt, _: ckpt.pin(1),
    "unpin": lambda ckpt, _: ckpt.unpin(1),
    "on_saved": lambda ckpt, _: ckpt.on_saved(print),
    "on_drained": lambda ckpt, _: ckpt.on_drained(print),
    "done": lambda _, pending: pending.done(),
    "result": lambda _, pending: pending.result(),
    "durable": lambda _, pending: pending.durable(),
}
NEVER_RAISE = {"directory", "comm", "options", "is_draining", "last_step", "is_saving", "journal"}


def test_every_public_method_is_tried_in_a_child():
    public = {name for cls in (hc.Checkpointer, hc.PendingSave) for name in dir(cls) if not name.startswith("_")}
    assert public == METHODS.keys() | NEVER_RAISE


@pytest.mark.parametrize("method", METHODS)
def test_a_method_in_a_forked_child_raises_the_typed_error(run_dir, method):
    with hc.Checkpointer(run_dir) as ckpt:
        pending = ckpt.save(1, {"w": np.arange(3.0)})
        said = in_child(lambda: METHODS[method](ckpt, pending) and None)
        assert said["kind"] == "forked"
        assert f"belongs to process {os.getpid()}" in said["text"]
        assert "create a new Checkpointer here, with another directory" in said["text"]
        pending.result()
    assert hc.load(run_dir)["w"].tolist() == [0.0, 1.0, 2.0]


def test_the_error_is_one_of_the_program_and_a_runtime_error():
    assert issubclass(ForkedError, hc.errors.CodeError)
    assert issubclass(ForkedError, RuntimeError)


def _leave_with(ckpt: hc.Checkpointer) -> None:
    with ckpt:
        pass


def _leave_with_error(ckpt: hc.Checkpointer) -> None:
    with pytest.raises(ZeroDivisionError), ckpt:
        raise ZeroDivisionError


def _forget(ckpt: hc.Checkpointer) -> None:
    ckpt.__dict__.clear()
    gc.collect()


ENDS: dict[str, Callable[[hc.Checkpointer], Any]] = {
    "with": _leave_with,
    "with and an error": _leave_with_error,
    "finalizer": lambda ckpt: ckpt._forget(),
    "atexit": lambda _: shutdown._finish_all(os.getppid()),
    "journal": lambda ckpt: ckpt.journal.end("child"),
    "collected": _forget,
}


@pytest.mark.parametrize("way", ENDS)
def test_what_ends_a_checkpointer_in_a_child_leaves_the_parents_files(run_dir, faults, way):
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.save(1, {"w": np.arange(3.0)}).result()
        before = sorted(map(str, run_dir.rglob("*"))), (run_dir / layout.LOCK).read_bytes()
        journal = (run_dir / "journal.jsonl").read_bytes()
        assert in_child(lambda: ENDS[way](ckpt)) == {"value": None}
        assert (sorted(map(str, run_dir.rglob("*"))), (run_dir / layout.LOCK).read_bytes()) == before
        assert (run_dir / "journal.jsonl").read_bytes() == journal
        ckpt.save(2, {"w": np.arange(3.0)}).result()


def test_a_lock_is_not_the_childs_and_the_child_cannot_take_it(run_dir):
    run_dir.mkdir()
    with RunLock.take(run_dir) as lock:

        def body() -> list[Any]:
            with pytest.raises(hc.errors.LockedError):
                RunLock.take(run_dir)
            for forbidden in (lock.check, lock.reclaim):
                with pytest.raises(ForkedError, match=f"held by process {os.getppid()}"):
                    forbidden()
            mine = lock.is_mine()
            lock.release()
            return [mine, (run_dir / layout.LOCK).exists()]

        assert in_child(body) == {"value": [False, True]}
        assert lock.is_mine()


def test_a_child_forked_while_a_lock_is_being_taken_can_use_another_directory(run_dir, tmp_path):
    with _HeldLocks.of(REAL).guard:

        def body() -> int:
            with hc.Checkpointer(tmp_path / "other") as own:
                return own.save(7, {"w": np.ones(3)}).result().step

        assert in_child(body) == {"value": 7}


OWN = """
import os, sys, threading, numpy as np, hpcckpt as hc
from hpcckpt.core import failpoints
goes_on = threading.Event()
failpoints.install_hook(lambda phase, _rank: phase == "2-write" and goes_on.wait())
ckpt = hc.Checkpointer(sys.argv[1])
in_flight = ckpt.save(1, {"w": np.ones(10)})
pid = os.fork()
if pid == 0:
    failpoints.install_hook(None)
    own = hc.Checkpointer(sys.argv[2])
    own.save(1, {"w": np.ones(1_000_000)})
    sys.exit(0)
assert os.waitpid(pid, 0) == (pid, 0)
assert not in_flight.done()
goes_on.set()
ckpt.save(2, {"w": np.ones(10)}).result()
"""


def test_a_save_of_a_child_is_committed_when_the_child_ends(run_dir, tmp_path):
    places = [str(run_dir), str(tmp_path / "other")]
    ended = subprocess.run(
        [sys.executable, "-c", OWN, *places], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [step_numbers(Path(place)) for place in places] == [[1, 2], [1]]
    assert [(Path(place) / layout.LOCK).exists() for place in places] == [False, False]


def use_own(run_dir: Path) -> Any:
    ckpt = hc.Checkpointer(run_dir.with_name(f"own-{os.getpid()}"))
    ckpt.save(1, {"w": np.arange(3.0)}).result()
    return hc.load(ckpt.directory)["w"].tolist()


LOCKS: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "known headers": (lambda: backend._known._guard, lambda run_dir: hc.load(run_dir)["w"].tolist()),
    "forgotten checkpointers": (lambda: shutdown._forgotten._guard, use_own),
    "loaded plugins": (lambda: plugins._lock, lambda _: len(plugins.loaded()) * [0]),
    "open plugins of TMCI": (lambda: calls._lock, lambda _: calls.close_all()),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_child_does_not_wait_for_a_lock_that_a_thread_held_at_the_fork(run_dir, name):
    lock_of, use = LOCKS[name]
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.arange(3.0)}).result()
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_of():
            is_held.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(60)
    try:
        assert "value" in in_child(lambda: use(run_dir), limit_s=5)
    finally:
        may_end.set()
        thread.join()
    use(run_dir)


def test_ranks_as_threads_raise_it_in_a_child_without_waiting_for_each_other(run_dir):
    def body(comm: Any) -> Any:
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, {"w": np.arange(3.0)}).result()
        said = comm.on_root("fork", lambda: in_child(lambda: ckpt.save(2, {"w": np.zeros(3)}) and None))
        ckpt.close()
        return said["kind"]

    assert run_ranks(2, body) == ["forked", "forked"]


SCRIPT = """
import os, sys
import numpy as np
import hpcckpt as hc
ckpt = hc.Checkpointer(sys.argv[1], threads=4)
w = np.ones(1 << 20)
for step in range(1, 4):
    pending = ckpt.save(step, {"w": w * step})
    if os.fork() == 0:
        END
    assert os.wait()[1] == 0
    pending.result()
ckpt.close()
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "del ckpt, pending; sys.exit(0)", "os._exit(0)"])
def test_a_child_that_never_uses_it_ends_and_the_parent_saves_on(run_dir: Path, end: str):
    """The interpreter of the child ends, with its copies of threads, arenas, finalizers and exit handlers."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("END", end), str(run_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [float(hc.load(run_dir, step=step)["w"][0]) for step in (1, 2, 3)] == [1.0, 2.0, 3.0]
