"""Full disks, quotas, read-only directories and files in the way: a clear error, and nothing lost."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import resource
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.backends.rankfile import frozen
from hpcckpt.format import layout
from hpcckpt.native.posix_files import PosixFileSystem
from hpcckpt.rundir import discovery
from hpcckpt.state import tree
from hpcckpt.testing.faults import Fault, armed
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools.doctor import storage
from tests.support.listing import listed

MIB = 1 << 20


@contextlib.contextmanager
def mounted(where: Path, *options: str) -> Iterator[Path]:
    """Mount something, where we may; skip where not."""
    where.mkdir(exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(["mount", *options, str(where)], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m", "tmpfs") as where:
        yield where


def state(nbytes: int, value: int = 1) -> dict[str, Any]:
    return {"w": np.full(nbytes, value, np.uint8)}


def test_a_step_that_does_not_fit_is_refused_before_anything_is_written(small_disk):
    run_dir = small_disk / "run"
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(3 * MIB)).result()
        begun = Fault("2-write", "raise", error=AssertionError("begun all the same"))
        text = r"needs \d+ bytes, \d+ are free; nothing was written or removed"
        with armed(begun), pytest.raises(errors.NoSpaceError, match=text) as caught:
            ckpt.save(2, state(6 * MIB)).result()
        assert caught.value.exit_code == 7
        assert ckpt.all_steps() == [1]


def test_old_steps_are_not_removed_to_make_room(small_disk):
    with hc.Checkpointer(small_disk / "run", max_to_keep=1) as ckpt:
        ckpt.save(1, state(4 * MIB))
        with pytest.raises(errors.NoSpaceError):
            ckpt.save(2, state(4 * MIB)).result()
        assert ckpt.all_steps() == [1]
    assert hc.load(small_disk / "run")["w"].nbytes == 4 * MIB


def test_a_disk_that_fills_up_while_a_step_is_written_loses_nothing(small_disk, monkeypatch, debris):
    """Others write there too: that there was room is no promise."""
    run_dir = small_disk / "run"
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(3 * MIB)).result()
        filler = small_disk / "filler"
        with monkeypatch.context() as patch:
            patch.setattr("hpcckpt.rundir.commit.check_space", lambda *_: filler.write_bytes(bytes(3 * MIB)))
            with pytest.raises(errors.NoSpaceError, match=r"rank-00000\.safetensors"):
                ckpt.save(2, state(3 * MIB)).result()
        assert debris(ckpt) == []
        assert ckpt.all_steps() == [1]
        filler.unlink()
        ckpt.save(2, state(3 * MIB, 2))
    assert hc.load(run_dir)["w"][0] == 2


def test_a_restore_needs_no_space(small_disk):
    """A pin is wished for, not needed."""
    run_dir = small_disk / "run"
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(MIB))
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(8 * MIB))
    held = state(MIB, 0)
    with hc.Checkpointer(run_dir) as ckpt:
        assert ckpt.restore(held).warnings == ()
    assert held["w"].all()


def test_a_disk_that_is_full_as_told_by_statvfs_is_refused(ranks, run_dir, monkeypatch):
    """The same without the right to mount, and on every rank."""

    def full(_path):
        return os.statvfs_result((4096, 4096, 1000, 10, 10, 0, 0, 0, 0, 255))

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(100_000)).result()
            comm.barrier()
            if comm.rank == 0:
                monkeypatch.setattr(os, "statvfs", full)
            comm.barrier()
            with pytest.raises(errors.NoSpaceError, match="40960 are free"):
                ckpt.save(2, state(100_000)).result()
            return ckpt.all_steps()

    assert ranks(body) == [[1]] * ranks.size


class Frozen:
    """A value that its program never changes in place, as TensorFlow's are."""

    array = np.arange(5000.0)


def test_a_save_that_links_what_did_not_change_needs_no_space_for_it(ranks, run_dir, monkeypatch):
    def leaves(obj, name):
        held = lambda sources: [source.array for source in sources]  # noqa: E731
        declaration = tree.declare(obj.array, name, "replicated")
        yield tree.TensorLeaf(declaration, lambda: obj.array, lambda _: None, source=obj, holder=held)

    monkeypatch.setitem(sys.modules, "adapter_of_frozen", types.SimpleNamespace(leaves=leaves))
    monkeypatch.setitem(tree.ADAPTERS, Frozen.__module__.partition(".")[0], "adapter_of_frozen")
    monkeypatch.setattr(frozen, "MIN_BYTES", 1000)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, incremental=True) as ckpt:
            linked = [ckpt.save(step, {"frozen": Frozen(), "n": step}).result().linked_nbytes for step in range(5)]
            comm.barrier()
            if comm.rank == 0:
                monkeypatch.setattr(
                    os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 1000, 10, 10, 0, 0, 0, 0, 255))
                )
            comm.barrier()
            return linked[-1], ckpt.save(5, {"frozen": Frozen(), "n": 5}).result().linked_nbytes

    assert ranks(body) == [(Frozen.array.nbytes, Frozen.array.nbytes)] * ranks.size


def test_a_file_system_that_does_not_tell_its_size_is_trusted(run_dir, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255)))
    with hc.Checkpointer(run_dir) as ckpt:
        assert ckpt.save(1, state(10)).result().step == 1


LIMITED = """
import resource, signal, sys, numpy as np, hpcckpt as hc
with hc.Checkpointer(sys.argv[1]) as ckpt:
    ckpt.save(1, {"w": np.ones(1000, np.uint8)}).result()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        ckpt.save(2, {"w": np.ones(2 << 20, np.uint8)}).result()
    except hc.errors.StorageError as error:
        print(ckpt.all_steps(), error)
"""


def test_a_limit_on_file_sizes_is_an_error_that_names_the_file(run_dir):
    found = subprocess.run([sys.executable, "-c", LIMITED, str(run_dir)], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("[1] ")
    assert "rank-00000.safetensors" in found.stdout
    assert "File too large" in found.stdout


# -- directories that cannot be written -----------------------------------------------------------


@pytest.fixture
def read_only(tmp_path):
    """A run directory with one step, mounted read-only."""
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state(1000))
    with mounted(tmp_path / "mount", "--bind", str(tmp_path)) as where:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(where)], check=True)
        yield where / "run"


def test_saving_to_a_read_only_directory_says_so(read_only):
    with hc.Checkpointer(read_only) as ckpt, pytest.raises(errors.ReadOnlyError, match="make the directory writable"):
        ckpt.save(2, state(10))


def test_making_a_run_directory_in_a_read_only_one_says_so(read_only):
    with hc.Checkpointer(read_only.parent / "new") as ckpt, pytest.raises(errors.ReadOnlyError, match="new"):
        ckpt.save(2, state(10))


def test_a_read_only_directory_can_be_read(read_only):
    held = state(1000, 0)
    with hc.Checkpointer(read_only) as ckpt:
        assert ckpt.restore(held).step == 1
        assert ckpt.latest_step() == 1
    assert held["w"].all()
    assert hc.load(read_only)["w"].all()


def test_pinning_in_a_read_only_directory_says_so(read_only):
    with hc.Checkpointer(read_only) as ckpt, pytest.raises(errors.ReadOnlyError, match="pin step 1"):
        ckpt.pin(1)


@pytest.mark.parametrize(
    ("name", "cls"),
    [("rank-00000.safetensors", errors.ReadOnlyError), (layout.MANIFEST, errors.NoRestorableStepError)],
)
def test_a_read_that_is_denied_asks_for_the_right_to_read(run_dir, monkeypatch, name, cls):
    open_file = os.open

    def refuse(path, *args, **kwargs):
        if os.path.basename(path) == name:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_file(path, *args, **kwargs)

    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(10))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(cls, match=f"{name}: Permission denied; make it readable"):
        hc.load(run_dir)
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(cls, match=f"{name}: Permission denied; make it readable"):
        ckpt.restore(state(10))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_every_rank_is_told_that_the_directory_cannot_be_written(ranks, run_dir, monkeypatch, number):
    """The same without the right to mount."""
    make = Path.mkdir

    def refuse(path, *args, **kwargs):
        if layout.is_temporary(path.name):
            raise OSError(number, os.strerror(number), str(path))
        make(path, *args, **kwargs)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.ReadOnlyError, match="writable"):
            ckpt.save(1, state(10))

    monkeypatch.setattr(Path, "mkdir", refuse)
    ranks(body)


# -- things in the way ----------------------------------------------------------------------------


def test_a_file_where_the_run_directory_should_be_is_an_error_and_stays(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            for call in (lambda: ckpt.save(1, state(10)), lambda: ckpt.restore(state(10)), ckpt.latest_step):
                with pytest.raises(errors.StorageError, match="run"):
                    call()

    ranks.on_root(lambda: run_dir.write_text("precious", encoding="utf-8"))
    ranks(body)
    assert run_dir.read_text(encoding="utf-8") == "precious"
    for read in (hc.load, hc.latest_checkpoint, discovery.scan):
        with pytest.raises(errors.StorageError):
            read(run_dir)


def test_a_file_where_a_parent_should_be_is_an_error(run_dir):
    run_dir.write_text("precious", encoding="utf-8")
    with hc.Checkpointer(run_dir / "deeper" / "still") as ckpt, pytest.raises(errors.StorageError):
        ckpt.save(1, state(10))
    assert run_dir.read_text(encoding="utf-8") == "precious"


def test_a_run_directory_deep_down_is_made_with_its_parents(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir / "a" / "b", comm=comm) as ckpt:
            return ckpt.save(1, state(10)).result().path

    assert ranks(body) == [run_dir / "a" / "b" / layout.step_dirname(1)] * ranks.size


def test_a_run_directory_may_be_a_link(ranks, run_dir, tmp_path):
    """Only what is in it may not be."""
    target = run_dir.with_name("elsewhere")

    def link():
        target.mkdir()
        run_dir.symlink_to(target)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(10))
            return ckpt.restore(state(10, 0)).step

    ranks.on_root(link)
    assert ranks(body) == [1] * ranks.size
    assert [name for name in listed(target) if not name.startswith(".")] == [layout.step_dirname(1)]


def test_a_job_stays_in_its_run_when_a_link_to_it_is_changed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "latest").symlink_to("mine")
    with hc.Checkpointer(tmp_path / "latest") as ckpt, hc.Checkpointer(tmp_path / "other") as other:
        ckpt.save(1, state(10)).result()
        other.save(100, state(10)).result()
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("other")
        assert ckpt.save(101, state(10)).result().path == tmp_path / "mine" / layout.step_dirname(101)
        assert ckpt.latest_step() == 101
        assert (ckpt.all_steps(), other.all_steps()) == ([1, 101], [100])


def test_a_file_where_a_step_should_be_is_moved_aside_like_any_damaged_step(run_dir):
    run_dir.mkdir()
    (run_dir / layout.step_dirname(1)).write_text("precious", encoding="utf-8")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(10))
    (bad,) = run_dir.glob(".bad-*")
    assert bad.read_text(encoding="utf-8") == "precious"


def test_files_get_the_modes_of_the_umask(run_dir):
    before = os.umask(0o027)
    try:
        with hc.Checkpointer(run_dir) as ckpt:
            path = ckpt.save(1, state(10)).result().path
    finally:
        os.umask(before)
    modes = {p.relative_to(run_dir).as_posix(): oct(p.stat().st_mode & 0o777) for p in (path, *path.rglob("*"))}
    files = {mode for name, mode in modes.items() if name.endswith((".json", ".safetensors"))}
    assert files == {"0o640"}
    assert {mode for name, mode in modes.items() if not name.endswith((".json", ".safetensors"))} == {"0o750"}


def test_every_file_and_directory_is_synced_before_the_step_is_visible(run_dir, monkeypatch):
    """Durable before visible: whatever has the step's name was fsynced under the temporary one."""
    synced: list[str] = []
    visible: list[bool] = []
    final = run_dir / layout.step_dirname(1)

    def watch(name):
        original = getattr(native, name)

        def watched(*args):
            synced.append(str(args[0]) if name == "fsync_dir" else Path(args[-1]).name)
            visible.append(final.exists())
            return original(*args)

        monkeypatch.setattr(native, name, watched)

    watch("fsync")
    watch("fdatasync")
    watch("fsync_dir")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(10)).result()
    names = [Path(path).name for path in synced]
    temporary = next(name for name in names if layout.is_temporary(name))
    assert names == ["run" if p == str(run_dir) else Path(p).name for p in synced]
    assert names[:1] == [run_dir.parent.name]  # the run directory was made
    assert names[1:6] == ["rank-00000.safetensors", "data", "manifest.json", temporary, "run"]
    assert visible[:6] == [False] * 5 + [True]


def test_open_files_do_not_pile_up(run_dir):
    gc.collect()  # what tests before have left open is not to be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with hc.Checkpointer(run_dir) as ckpt:
        for step in range(5):
            ckpt.save(step, state(10))
            ckpt.restore(state(10))
        with pytest.raises(errors.StepExistsError):
            ckpt.save(4, state(10)).result()
    hc.load(run_dir)
    assert len(os.listdir("/proc/self/fd")) == before


def test_few_open_files_are_enough(run_dir):
    """A restore of many ranks' files must not hold them all open."""
    from hpcckpt.testing.ranks import run_ranks

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(200_000))

    run_ranks(16, body)
    in_use = max(map(int, os.listdir("/proc/self/fd")))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 6, before[1]))
    try:
        assert hc.load(run_dir)["w"].all()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_that_does_not_say_what_is_free_is_saved_to(run_dir, monkeypatch, caplog, code):
    def refuse(path):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(os, "statvfs", refuse)
    with caplog.at_level(logging.WARNING, "hpcckpt"), hc.Checkpointer(run_dir) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"w": np.full(3, float(step))}).result()
    (record,) = caplog.records
    assert "free space is unknown" in record.getMessage()
    assert hc.load(run_dir)["w"].tolist() == [3.0] * 3
    (space,) = [found for found in storage.findings(run_dir) if found.topic == "space"]
    assert "unknown" in space.message


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EIO])
def test_a_readers_pin_that_cannot_be_removed_ends_no_restore(run_dir, monkeypatch, code):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(3)}).result()
    unlink = PosixFileSystem.unlink

    def refused(self: Any, path: Any) -> Any:
        if ".reader-" in os.fspath(path):
            raise OSError(code, os.strerror(code), path)
        return unlink(self, path)

    monkeypatch.setattr(PosixFileSystem, "unlink", refused)

    def body(comm: Any) -> list[float]:
        state = {"w": np.zeros(3)}
        with hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=20.0) as ckpt:
            assert ckpt.restore(state).step == 1
        return state["w"].tolist()

    assert run_ranks(2, body) == [[1.0] * 3] * 2
