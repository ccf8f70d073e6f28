"""One writing job at a time; a lock that a dead job left stops no job."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.core import failpoints
from hpcckpt.format import layout
from hpcckpt.native.posix_files import REAL, PosixFileSystem
from hpcckpt.rundir import lock
from hpcckpt.rundir.retention import leftovers
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.testing.ranks import run_ranks
from tests.support.listing import listed

HOLD = """
import sys, numpy as np, hpcckpt as hc
ckpt = hc.Checkpointer(sys.argv[1], max_to_keep=None)
ckpt.save(1, {"w": np.ones(10)}).result()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_job(run_dir):
    """A job in another process that has saved step 1 and still runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def save(run_dir: Path, step: int, **options: Any) -> None:
    with hc.Checkpointer(run_dir, **options) as ckpt:
        ckpt.save(step, {"w": np.full(10, float(step))})


def write_lock(run_dir: Path, age_s: float = 0.0, **changes: Any) -> lock.Holder:
    """Put a lock of another holder into a run directory."""
    run_dir.mkdir(exist_ok=True)
    holder = dataclasses.replace(lock.this_holder(), **changes)
    path = run_dir / layout.LOCK
    path.write_text(json.dumps(dataclasses.asdict(holder)), encoding="utf-8")
    then = time.time() - age_s
    os.utime(path, (then, then))
    return holder


@pytest.fixture(autouse=True)
def short_beats(monkeypatch):
    """Two beats pass at once."""
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)


def test_a_directory_that_a_running_job_uses_is_refused_by_name(run_dir, other_job):
    with pytest.raises(errors.LockedError, match=f"process {other_job.pid} on ") as caught:
        save(run_dir, 2)
    assert caught.value.exit_code == 8
    assert hc.latest_checkpoint(run_dir).name == layout.step_dirname(1)


def test_every_rank_is_told_that_the_directory_is_in_use(run_dir, other_job):
    def body(comm):
        with (
            hc.Checkpointer(run_dir, comm=comm) as ckpt,
            pytest.raises(errors.LockedError, match=f"process {other_job.pid} on "),
        ):
            ckpt.save(2, {"w": np.ones(10)})

    run_ranks(3, body)


def test_a_directory_that_a_running_job_uses_can_be_read(run_dir, other_job):
    state = {"w": np.zeros(10)}
    with hc.Checkpointer(run_dir) as ckpt:
        assert ckpt.restore(state).step == 1
        assert ckpt.all_steps() == [1]
    assert hc.load(run_dir)["w"].sum() == state["w"].sum() == 10


def test_the_lock_of_a_job_that_ended_is_gone(run_dir, other_job):
    other_job.stdin.close()
    assert other_job.wait() == 0
    assert not (run_dir / layout.LOCK).exists()
    save(run_dir, 2)


def test_the_lock_of_a_killed_job_is_taken_over(run_dir, other_job):
    other_job.send_signal(signal.SIGKILL)
    other_job.wait()
    assert (run_dir / layout.LOCK).exists()
    save(run_dir, 2)
    assert listed(run_dir) == [layout.step_dirname(1), layout.step_dirname(2)]


def test_a_job_that_is_only_stopped_keeps_its_lock(run_dir, other_job):
    other_job.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(errors.LockedError):
            save(run_dir, 2)
    finally:
        other_job.send_signal(signal.SIGCONT)


def test_what_a_killed_job_left_is_swept_by_the_next(run_dir, other_job):
    other_job.send_signal(signal.SIGKILL)
    other_job.wait()
    (run_dir / ".step-0000000002.tmp-0123456789ab" / "data").mkdir(parents=True)
    retired = run_dir / ".retired-0123456789ab"
    (run_dir / layout.step_dirname(1)).rename(retired)
    (run_dir / ".bad-0123456789ab").mkdir()
    (run_dir / ".aside-step-0000000009-0123456789ab").mkdir()
    save(run_dir, 2)
    assert leftovers(run_dir) == []
    assert {".bad-0123456789ab", ".aside-step-0000000009-0123456789ab"} < set(os.listdir(run_dir))


def test_nothing_is_swept_while_another_job_holds_the_lock(run_dir, other_job):
    (run_dir / ".step-0000000002.tmp-0123456789ab").mkdir()
    with pytest.raises(errors.LockedError):
        save(run_dir, 2)
    assert ".step-0000000002.tmp-0123456789ab" in leftovers(run_dir)


OTHER_BOOT = {"boot_id": "00000000-0000-0000-0000-000000000000"}
SUSPECTS = {
    "another boot of a host of this name": (0.0, OTHER_BOOT),
    "another host, by a clock that is ahead": (700.0, {"host": "elsewhere"}),
    "another container of this host": (700.0, {"pid": 2**22 + 1, "pid_ns": "1"}),
    "a copy of this machine": (700.0, {"pid": 2**22 + 1, "machine_id": "0" * 32}),
}


@contextlib.contextmanager
def beating(path):
    """Change the heartbeat of a lock, as a holder does that cannot be seen from here, each time it is looked at."""
    look, times = lock._look, itertools.count(int(path.stat().st_mtime))

    def look_and_beat(at, system):
        seen = look(at, system)
        now = next(times)
        os.utime(at, (now, now))
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "_look", look_and_beat)
        yield


@pytest.mark.parametrize("who", SUSPECTS)
def test_the_lock_of_a_live_job_that_cannot_be_seen_is_respected(run_dir, who):
    age_s, holder = SUSPECTS[who]
    write_lock(run_dir, age_s, **holder)
    path = run_dir / layout.LOCK
    before = path.read_bytes()
    with beating(path), pytest.raises(errors.LockedError, match="its heartbeat was seen to change"):
        save(run_dir, 1)
    assert path.read_bytes() == before
    assert listed(run_dir) == [layout.LOCK]


@pytest.mark.parametrize("who", SUSPECTS)
def test_a_lock_that_is_silent_for_two_beats_is_taken_over_and_logged(run_dir, who, caplog):
    age_s, holder = SUSPECTS[who]
    write_lock(run_dir, age_s, **holder)
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        save(run_dir, 1)
    watching, taken = (record.getMessage() for record in caplog.records)
    assert "watching for 0 s whether its heartbeat has stopped" in watching
    assert f"process {holder.get('pid', os.getpid())} on" in watching
    assert "is taken over from process" in taken


def test_two_beats_are_watched_of_the_length_that_is_given(run_dir, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 1000.0)
    write_lock(run_dir, **OTHER_BOOT)
    with lock.RunLock.take(run_dir, beat_s=0.01) as held:
        assert held.is_mine()
    assert lock.N_BEATS == 2


@pytest.mark.parametrize("has_scratch", [False, True])
def test_ranks_wait_for_a_watch_of_a_lock_beyond_their_time_out(run_dir, tmp_path, monkeypatch, has_scratch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.5)
    run_dir.mkdir()
    write_lock(run_dir, 7200.0, host="elsewhere", boot_id="x", machine_id="m")
    scratch = tmp_path / "scratch" if has_scratch else None

    def body(comm: Any) -> int:
        with hc.Checkpointer(run_dir, comm=comm, scratch=scratch, peer_timeout_s=0.4) as ckpt:
            return ckpt.save(1, {"w": np.zeros(3)}).result().step

    assert run_ranks(2, body) == [1, 1]


def test_a_lock_that_is_given_back_while_it_is_watched_is_taken(run_dir, monkeypatch):
    write_lock(run_dir, **OTHER_BOOT)
    look = lock._look
    seen = []

    def look_and_remove(path, system):
        if seen:
            path.unlink(missing_ok=True)
        seen.append(look(path, system))
        return seen[-1]

    monkeypatch.setattr(lock, "_look", look_and_remove)
    save(run_dir, 1)
    assert seen[1] is None


def test_a_heartbeat_in_the_future_is_respected_and_named(run_dir):
    write_lock(run_dir, -5000.0, host="elsewhere")
    with pytest.raises(errors.LockedError, match=r"heartbeat 5000 s in the future: a clock is wrong; if no job runs"):
        save(run_dir, 1)


def test_a_dead_process_of_this_machine_is_seen_at_once_whatever_the_clock_says(run_dir, caplog):
    write_lock(run_dir, -5000.0, pid=2**22 + 1)
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        save(run_dir, 1)
    assert caplog.records == []


@pytest.mark.parametrize(("who", "age_s", "is_dead"), [
    ("another boot of a host of this name", 0.0, False),
    ("another boot of a host of this name", 100.0, True),
    ("another host, by a clock that is ahead", 500.0, False),
    ("another host, by a clock that is ahead", 700.0, True),
])  # fmt: skip
def test_tools_call_a_holder_dead_only_when_its_heartbeat_is_old(run_dir, who, age_s, is_dead, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 30.0)
    write_lock(run_dir, age_s, **SUSPECTS[who][1])
    assert lock.describe(run_dir)[1] is is_dead


def test_a_checkpointer_of_another_directory_goes_on_while_a_lock_is_watched(run_dir, tmp_path, monkeypatch):
    write_lock(run_dir, **OTHER_BOOT)
    watch = lock._watch

    def watch_and_save(*args):
        save(tmp_path / "other", 1)
        return watch(*args)

    monkeypatch.setattr(lock, "_watch", watch_and_save)
    save(run_dir, 1)


def test_a_lock_of_a_process_number_that_is_used_again_is_stale(run_dir):
    write_lock(run_dir, started="1")
    save(run_dir, 1)


def test_a_lock_of_this_very_process_number_and_start_is_respected(run_dir):
    """Another container may have it; its own nonce tells it from ours."""
    write_lock(run_dir, nonce="feedfeedfeed")
    with pytest.raises(errors.LockedError):
        save(run_dir, 1)


@pytest.mark.parametrize("age_s", [0.0, 500.0])
def test_a_lock_of_another_host_is_respected_until_it_expires(run_dir, age_s):
    write_lock(run_dir, age_s, host="elsewhere", job_id="4711")
    with pytest.raises(errors.LockedError, match="on elsewhere, job 4711"):
        save(run_dir, 1)


def test_a_lock_of_another_host_that_is_silent_for_too_long_is_taken_over(run_dir):
    write_lock(run_dir, 700.0, host="elsewhere")
    save(run_dir, 1)


def test_how_long_is_too_long_can_be_said(run_dir):
    write_lock(run_dir, 100.0, host="elsewhere")
    save(run_dir, 1, lock_expiry_s=60.0)


def test_the_holder_shows_that_it_lives(run_dir, monkeypatch):
    """Its heartbeat sets the lock's time, on which other hosts go."""
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.001)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(10)})
        path = run_dir / layout.LOCK
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 30
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline, "no heartbeat"
            os.sched_yield()


def test_a_lock_that_says_nothing_sensible_is_taken_over_once_it_is_old(run_dir):
    run_dir.mkdir()
    path = run_dir / layout.LOCK
    path.write_text('{"host": "', encoding="utf-8")
    os.utime(path, (0, 0))
    save(run_dir, 1)


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
def test_a_lock_that_is_no_ordinary_file_neither_hangs_nor_is_followed(run_dir, tmp_path, kind):
    run_dir.mkdir()
    path, elsewhere = run_dir / layout.LOCK, tmp_path / "elsewhere"
    elsewhere.write_text("precious", encoding="utf-8")
    {"fifo": os.mkfifo, "symlink": lambda p: p.symlink_to(elsewhere), "directory": os.mkdir}[kind](path)
    with pytest.raises(errors.RetryError) if kind == "directory" else contextlib.nullcontext():
        save(run_dir, 1)  # what has no heartbeat and no holder is taken over, by its name
    assert elsewhere.read_text(encoding="utf-8") == "precious"


def test_a_lock_that_was_made_just_now_and_is_empty_is_watched_and_taken_over(run_dir, caplog, monkeypatch):
    """As a loss of power leaves it. Who wants the lock gives it no heartbeat."""
    run_dir.mkdir()
    (run_dir / layout.LOCK).touch()
    touched, real = [], os.utime

    def touch(path, *args, **options):
        touched.append(Path(path).read_bytes())
        real(path, *args, **options)

    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(os, "utime", touch)
    save(run_dir, 1)
    assert "is held by a file that names no job" in caplog.text
    assert b"" not in touched


@pytest.mark.counts(1, 2, 5)
def test_a_save_that_lost_its_lock_publishes_nothing(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(10)}).result()
            comm.barrier()
            if comm.rank == 0:
                write_lock(run_dir, host="elsewhere")
            comm.barrier()
            with pytest.raises(errors.LockLostError, match="on elsewhere"):
                ckpt.save(2, {"w": np.ones(10)}).result()
            comm.barrier()
            return ckpt.all_steps()

    assert ranks(body) == [[1]] * ranks.size
    assert ranks.on_root(lambda: lock.read_holder(run_dir / layout.LOCK).host) == "elsewhere"
    assert ranks.on_root(lambda: leftovers(run_dir)) == []


def test_a_job_whose_run_directory_is_renamed_says_so_until_it_has_its_name_again(run_dir):
    moved = run_dir.with_name("moved")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(10)}).result()
        run_dir.rename(moved)
        for step in (2, 3):
            with pytest.raises(errors.LockLostError, match=r"/run was removed or renamed .*: restore its name"):
                ckpt.save(step, {"w": np.ones(10)}).result()
        moved.rename(run_dir)
        assert ckpt.save(4, {"w": np.ones(10)}).result().step == 4


def test_a_job_whose_lock_was_removed_by_hand_says_so_and_the_next_save_works(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(10)}).result()
        (run_dir / layout.LOCK).unlink()
        with pytest.raises(errors.LockLostError, match=r"\.lock was removed or damaged; .* save again"):
            ckpt.save(2, {"w": np.ones(10)}).result()
        assert ckpt.save(3, {"w": np.ones(10)}).result().step == 3


@pytest.mark.parametrize("phase", ["1-begin", "2-write", "2-synced"])
def test_a_lock_lost_while_a_step_is_written_keeps_it_from_being_published(ranks, run_dir, faults, phase):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.LockLostError, match="on elsewhere"):
            ckpt.save(2, {"w": np.ones(10)}).result()

    with faults.calling(phase, lambda: write_lock(run_dir, host="elsewhere")):
        ranks(body)
    assert hc.latest_checkpoint(run_dir) is None


def test_a_lock_that_was_lost_is_not_removed_on_closing(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(10)}).result()
        other = write_lock(run_dir, host="elsewhere")
    assert lock.read_holder(run_dir / layout.LOCK) == other


def test_checkpointers_of_one_process_share_the_lock(run_dir):
    with hc.Checkpointer(run_dir) as one:
        one.save(1, {"w": np.ones(10)}).result()
        save(run_dir, 2)
        assert (run_dir / layout.LOCK).exists()
    assert not (run_dir / layout.LOCK).exists()


def test_a_checkpointer_that_is_forgotten_gives_its_lock_back(run_dir):
    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(1, {"w": np.ones(10)}).result()
    assert (run_dir / layout.LOCK).exists()
    del ckpt
    limit = time.monotonic() + 30.0
    while (run_dir / layout.LOCK).exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_checkpointer_that_is_collected_while_its_lock_is_shared_leaves_it_held(run_dir, monkeypatch):
    class Collecting(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            found = super().get(key, default)
            gc.collect()
            return found

    gc.disable()
    try:
        forgotten = {"ckpt": hc.Checkpointer(run_dir)}
        forgotten["itself"] = forgotten
        forgotten["ckpt"].save(1, {"w": np.ones(10)}).result()
        with hc.Checkpointer(run_dir) as ckpt:
            ckpt.restore({"w": np.ones(10)})
            del forgotten
            held = lock._HeldLocks.of(REAL)
            monkeypatch.setattr(held, "locks", Collecting(held.locks))
            assert ckpt.save(2, {"w": np.ones(10)}).result().step == 2
    finally:
        gc.enable()


def test_a_checkpointer_left_by_an_exception_gives_its_lock_back(run_dir):
    def train():
        with hc.Checkpointer(run_dir) as ckpt:
            ckpt.save(1, {"w": np.ones(10)}).result()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert not (run_dir / layout.LOCK).exists()


def test_a_first_save_that_is_refused_gives_the_lock_back_on_closing(run_dir):
    save(run_dir, 5)
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(errors.NewerStepError):
        ckpt.save(1, {"w": np.ones(10)})
    assert not (run_dir / layout.LOCK).exists()


def test_a_checkpointer_that_only_reads_takes_no_lock(run_dir):
    save(run_dir, 1)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore({"w": np.zeros(10)})
        assert not (run_dir / layout.LOCK).exists()


def test_a_lock_needs_no_hard_links(run_dir, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(10)})
        assert lock.read_holder(run_dir / layout.LOCK).pid == os.getpid()
    assert listed(run_dir) == [layout.step_dirname(1)]


def test_a_lock_of_another_container_of_this_host_is_respected_until_it_expires(run_dir):
    """Its process numbers are not ours: that no such process is seen here proves nothing."""
    write_lock(run_dir, 500.0, pid=2**22 + 1, pid_ns="1")
    with pytest.raises(errors.LockedError):
        save(run_dir, 1)
    write_lock(run_dir, 700.0, pid=2**22 + 1, pid_ns="1")
    save(run_dir, 1)


def test_a_process_of_our_own_container_that_is_gone_is_seen_at_once(run_dir):
    write_lock(run_dir, pid=2**22 + 1)
    save(run_dir, 1)


@pytest.mark.parametrize(("pid", "is_free"), [(2**22 + 1, True), (os.getpid(), False)], ids=["gone", "alive"])
def test_a_lock_of_an_older_version_is_understood(run_dir, pid, is_free):
    """It says nothing of namespaces."""
    write_lock(run_dir, pid=pid)
    path = run_dir / layout.LOCK
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["pid_ns"]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert lock.read_holder(path).pid == pid
    if is_free:
        save(run_dir, 1)
    else:
        with pytest.raises(errors.LockedError, match=f"process {pid}"):
            save(run_dir, 1)


NO_HOLDERS = [{"pid": "\0"}, {"pid": "\ud800"}, {"pid": 1.5}, {"pid_ns": ["a"]}, {"host": None}, {"nonce": "\ud800"}]


@pytest.mark.parametrize("changes", [*NO_HOLDERS, None], ids=str)
def test_a_lock_with_other_content_than_a_holder_names_no_job_and_ends_nothing(run_dir, changes, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    holder = dataclasses.asdict(lock.this_holder()) | (changes or {})
    run_dir.mkdir()
    path = run_dir / layout.LOCK
    path.write_text("[" * 50_000 if changes is None else json.dumps(holder), encoding="utf-8")
    assert lock.read_holder(path) is None
    assert lock.describe(run_dir) is None
    os.utime(path, (0, 0))
    save(run_dir, 1)
    assert not path.exists()


def test_what_jobs_left_that_were_killed_while_they_took_the_lock_is_swept(run_dir, monkeypatch):
    run_dir.mkdir()
    left = [run_dir / ".lock.0123456789ab", run_dir / ".lock.dead-0123456789ab"]
    for path in left:
        path.write_text("{}", encoding="utf-8")
        os.utime(path, (0, 0))
    save(run_dir, 1)
    assert all(path.exists() for path in left), "a job that lives may just have made them"
    monkeypatch.setattr(lock, "LEFTOVER_S", -1.0)
    save(run_dir, 2)
    assert not any(path.exists() for path in left)
    assert (run_dir / layout.step_dirname(2)).is_dir()


def test_a_draft_that_a_read_only_disk_kept_is_removed_when_it_is_writable_again(run_dir, monkeypatch):
    with monkeypatch.context() as patch:
        real_write, real_unlink = PosixFileSystem.write_file, os.unlink

        def write_file(self: PosixFileSystem, path: Path, data: bytes, **options: Any) -> None:
            if not path.name.startswith(".lock."):
                return real_write(self, path, data, **options)
            path.touch()
            raise OSError(errno.EROFS, "Read-only file system")

        def unlink(path: Any, **options: Any) -> None:
            if os.path.basename(path).startswith(".lock."):
                raise OSError(errno.EROFS, "Read-only file system")
            real_unlink(path, **options)

        patch.setattr(PosixFileSystem, "write_file", write_file)
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(errors.ReadOnlyError):
            save(run_dir, 1)
        assert len(list(run_dir.glob(".lock.*"))) == 1
    save(run_dir, 1)
    assert list(run_dir.glob(".lock.*")) == []


DIE = """
import os, signal, sys
import hpcckpt as hc
from hpcckpt.native.posix_files import PosixFileSystem

def die(self, path, data):
    path.touch()
    os.kill(os.getpid(), signal.SIGKILL)

PosixFileSystem.write_file = die
hc.Checkpointer(sys.argv[1]).save(1, {"w": 1.0})
"""


def test_the_empty_draft_of_a_job_that_was_killed_is_swept_by_the_next(run_dir):
    run_dir.mkdir()
    assert subprocess.run([sys.executable, "-c", DIE, run_dir], check=False).returncode == -signal.SIGKILL
    (draft,) = run_dir.glob(".lock.*")
    assert draft.stat().st_size == 0
    first = dataclasses.replace(lock.this_holder(), pid=1, started=REAL.processes.started(1))
    living = run_dir / f".lock.{lock._mark(first)}-0123456789ab"
    living.touch()
    save(run_dir, 1)
    assert not draft.exists()
    assert living.exists()


def test_a_job_whose_draft_is_swept_takes_the_lock_all_the_same(run_dir, monkeypatch):
    real_link = os.link

    def link(source: Any, target: Any, **options: Any) -> None:
        real_link(source, target, **options)
        os.unlink(source)

    monkeypatch.setattr(os, "link", link)
    save(run_dir, 1)


def test_a_lock_that_was_lost_is_taken_again_when_the_other_job_is_gone(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(10)}).result()
            comm.barrier()
            if comm.rank == 0:
                write_lock(run_dir, host="elsewhere")
            comm.barrier()
            for step in (2, 3):
                with pytest.raises(errors.LockLostError, match="on elsewhere"):
                    ckpt.save(step, {"w": np.ones(10)}).result()
            comm.barrier()
            if comm.rank == 0:
                (run_dir / layout.LOCK).unlink()
            comm.barrier()
            ckpt.save(4, {"w": np.full(10, 4.0)}).result()
            ckpt.save(5, {"w": np.full(10, 5.0)}).result()
            comm.barrier()
            return ckpt.all_steps()

    assert ranks(body) == [[1, 4, 5]] * ranks.size
    assert not (run_dir / layout.LOCK).exists()


def test_a_save_that_another_job_came_between_is_not_published(ranks, run_dir):
    """The other job came and went while the step was written: it may have swept what was written already."""
    arrivals = []

    def come_and_go(phase, rank):
        if (phase, rank) == ("3-report", 0):
            arrivals.append(phase)
            if len(arrivals) == 2:
                (run_dir / layout.LOCK).unlink()
                with lock.RunLock.take(run_dir) as held:  # the one that the checkpointer holds
                    Workspace.at(run_dir).reacquire(held)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(10)}).result()
            with pytest.raises(errors.LockLostError, match="meanwhile"):
                ckpt.save(2, {"w": np.ones(10)}).result()
            ckpt.save(3, {"w": np.ones(10)}).result()
            return ckpt.all_steps()

    failpoints.install_hook(come_and_go)
    try:
        assert ranks(body) == [[1, 3]] * ranks.size
    finally:
        failpoints.install_hook(None)


def test_reclaiming_a_lock_that_is_ours_changes_nothing(run_dir):
    run_dir.mkdir()
    with lock.RunLock.take(run_dir) as held:
        before = (run_dir / layout.LOCK).read_bytes()
        assert not held.reclaim()
        assert (run_dir / layout.LOCK).read_bytes() == before
        held.check()


def test_a_reclaimed_lock_shows_that_it_lives(run_dir, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.001)
    run_dir.mkdir()
    path = run_dir / layout.LOCK
    with lock.RunLock.take(run_dir) as held:
        write_lock(run_dir, host="elsewhere")
        with pytest.raises(errors.LockLostError):
            held.reclaim()
        path.unlink()
        assert held.reclaim()
        held.check()
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 30
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline, "no heartbeat"
            os.sched_yield()
    assert not path.exists()
