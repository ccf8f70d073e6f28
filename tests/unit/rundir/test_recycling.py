"""Files of retired steps are written over by later saves, and no reader is ever deceived."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.backends import reusing, spans
from hpcckpt.backends.rankfile import backend, format as codec
from hpcckpt.core import failpoints, mounts
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import run_directory
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.testing.faults import Fault, armed
from tests.support.programs import open_files
from tests.support.small_disk import disk_of_size

MIB = 1 << 20
SIZES = (4000, 100, 9000, 9000, 0, 4000)


def state(value: float, length: int = 4000) -> dict[str, Any]:
    return {"w": np.arange(length) + float(value), "b": np.full(3, float(value)), "n": int(value)}


def values(run_dir: Path, step: int) -> list[float]:
    return hc.load(run_dir / layout.step_dirname(step))["w"].tolist()


def inodes(run_dir: Path, step: int) -> set[int]:
    return {path.stat().st_ino for path in (run_dir / layout.step_dirname(step) / layout.DATA).iterdir()}


def save(ranks: Any, run_dir: Path, *steps: int, **options: Any) -> list[set[int]]:
    """Save steps one after the other; return the inodes that each had when it was committed."""

    def body(comm: Any) -> list[set[int]]:
        found = []
        with hc.Checkpointer(run_dir, comm=comm, **{"max_to_keep": 1, **options}) as ckpt:
            for step in steps:
                ckpt.save(step, state(step)).result()
                comm.barrier()
                found.append(inodes(run_dir, step))
                comm.barrier()
        return found

    return ranks(body)[0]


@pytest.fixture(autouse=True)
def a_file_system_that_counts_links(tmp_path, monkeypatch):
    """Where the count cannot be trusted nothing is written over, and there is nothing to test."""
    if not run_directory.counts_links(tmp_path):
        pytest.skip("links are not counted here")
    monkeypatch.setattr(run_directory, "knows_readers", lambda _path: True)  # the tests' own are on this machine


# -- used again, or not --------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """Whether each file that is opened to be written was new; a file system too uses numbers of inodes again."""
    found: list[bool] = []
    open_to_write = backend.open_to_write

    def note(path: str, **options: Any) -> tuple[int, bool]:
        fd, is_new = open_to_write(path, **options)
        found.append(is_new)
        return fd, is_new

    monkeypatch.setattr(backend, "open_to_write", note)
    return found


def test_the_save_after_a_retirement_writes_over_its_files(ranks, run_dir, opened):
    one, two, three, four, five = save(ranks, run_dir, 1, 2, 3, 4, 5)
    assert (three, four, five) == (one, two, one)
    assert len(one | two) == 2 * ranks.size
    assert sorted(opened) == [False] * (3 * len(opened) // 5) + [True] * (2 * len(opened) // 5)
    assert values(run_dir, 5) == [5.0 + k for k in range(4000)]


@pytest.mark.parametrize("when", ["prepare", "reuse"])
def test_what_is_being_prepared_survives_the_sweep_of_another_checkpointer(run_dir, opened, when, monkeypatch):
    """Both are of one process, and share the lock."""
    really = getattr(backend.RankfileBackend, when)
    with hc.Checkpointer(run_dir, max_to_keep=1) as ours, hc.Checkpointer(run_dir) as other:

        def meanwhile(*given: Any) -> None:
            other._session.rundir.open()
            really(*given)

        monkeypatch.setattr(backend.RankfileBackend, when, meanwhile)
        for step in (1, 2, 3):
            ours.save(step, state(step)).result()
        assert other._session.rundir.lock is not None
    assert opened == [True, True, False]
    assert values(run_dir, 3) == [3.0 + k for k in range(4000)]


def test_a_step_that_is_kept_is_never_written_over(ranks, run_dir):
    found = save(ranks, run_dir, 1, 2, 3, 4, 5, max_to_keep=2, keep_period=2)
    assert step_numbers(run_dir) == [2, 4, 5]
    kept = [found[step - 1] for step in (2, 4, 5)]
    assert not kept[0] & kept[1]
    assert not (kept[0] | kept[1]) & kept[2]
    assert [values(run_dir, step)[0] for step in (2, 4, 5)] == [2.0, 4.0, 5.0]


def test_files_are_not_used_again_when_that_is_turned_off(ranks, run_dir, opened):
    save(ranks, run_dir, 1, 2, 3, 4, recycle=False)
    assert set(opened) == {True}
    assert step_numbers(run_dir) == [4]


def test_files_are_not_used_again_where_links_cannot_be_counted(ranks, run_dir, opened, monkeypatch):
    monkeypatch.setattr(run_directory, "counts_links", lambda _path: False)
    save(ranks, run_dir, 1, 2, 3, 4)
    assert set(opened) == {True}
    assert step_numbers(run_dir) == [4]


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_steps_of_any_size_come_back_from_files_of_any_size(ranks, run_dir, max_in_flight):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1, max_in_flight=max_in_flight) as ckpt:
            found = []
            for step, length in enumerate(SIZES):
                ckpt.save(step, state(step, length))
                target = state(-1, length)
                ckpt.restore(target, step)
                found.append((target["w"].tolist() == state(step, length)["w"].tolist(), target["n"]))
        return found

    assert ranks(body) == [[(True, step) for step in range(len(SIZES))]] * ranks.size
    step = run_dir / layout.step_dirname(len(SIZES) - 1)
    nbytes = sum(path.stat().st_size for path in (step / layout.DATA).iterdir())
    assert nbytes <= 8 * (SIZES[-1] + 3) + ranks.size * 2 * codec.PAGE_BYTES  # cut to what the step needs


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (5, 2), (2, 5)])
def test_files_of_a_job_with_another_number_of_ranks_are_used_as_far_as_they_go(group, run_dir, before, after):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            newest = ckpt.latest_step() or 0
            for step in range(newest + 1, newest + 4):
                ckpt.save(step, state(step)).result()

    group(before, body)
    group(after, body)
    step = run_dir / layout.step_dirname(6)
    names = sorted(path.name for path in (step / layout.DATA).iterdir())
    assert names == [Path(backend.file_path(rank)).name for rank in range(after)]
    assert values(run_dir, 6) == [6.0 + k for k in range(4000)]


# -- others who look at the files ------------------------------------------------------------------


def test_a_file_that_has_another_name_is_never_written_over(ranks, run_dir, tmp_path):
    """A user's ``cp -al`` of a step stays as it is, whenever it was made."""
    copies = run_dir.with_name("copies")

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            for step in range(1, 6):
                ckpt.save(step, state(step)).result()
                if comm.is_root:
                    copies.mkdir(exist_ok=True)
                    source = run_dir / layout.step_dirname(step)
                    subprocess.run(["cp", "-al", source, copies], check=True)
                comm.barrier()

    ranks(body)
    for step in range(1, 6):
        assert values(copies, step) == [step + k for k in range(4000)]


@pytest.mark.parametrize("n_links", [1, 2])
def test_a_link_that_is_made_just_before_a_file_is_opened_is_noticed(run_dir, tmp_path, n_links):
    """The last look at the count is at the open file."""
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).result()
        (prepared,) = ckpt._session.rundir.workspace.reserved(ckpt._session.rundir)
        file = run_dir / prepared / backend.file_path(0)
        inode, before = file.stat().st_ino, file.read_bytes()
        if n_links == 2:
            os.link(file, tmp_path / "other")
        ckpt.save(3, state(3)).result()
    assert (inodes(run_dir, 3) == {inode}) == (n_links == 1)
    assert values(run_dir, 3)[0] == 3.0
    if n_links == 2:
        assert (tmp_path / "other").read_bytes() == before


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a directory"])
def test_something_else_in_the_place_of_a_file_is_not_written_to(run_dir, tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious", encoding="utf-8")
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).result()
        (prepared,) = ckpt._session.rundir.workspace.reserved(ckpt._session.rundir)
        file = run_dir / prepared / backend.file_path(0)
        file.unlink()
        {"a link": lambda: file.symlink_to(elsewhere), "a pipe": lambda: os.mkfifo(file), "a directory": file.mkdir}[
            kind
        ]()
        with contextlib.suppress(errors.StorageError):
            ckpt.save(3, state(3)).result()
        assert 2 in step_numbers(run_dir) or 3 in step_numbers(run_dir)
        ckpt.save(4, state(4)).result()
    assert elsewhere.read_text(encoding="utf-8") == "precious"
    assert values(run_dir, 4)[0] == 4.0


def test_what_users_put_into_a_step_does_not_come_back_in_a_later_one(ranks, run_dir):
    def put(step: int) -> None:
        path = run_dir / layout.step_dirname(step)
        (path / "notes.txt").write_text("mine", encoding="utf-8")
        (path / "manifest.json.bad-0123456789ab").write_text("evidence", encoding="utf-8")
        (path / "plots").mkdir()
        (path / "plots" / "a.png").write_text("mine", encoding="utf-8")
        (path / layout.DATA / "rank-00000.frozen-7.safetensors").write_text("other", encoding="utf-8")

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            for step in (1, 2, 3, 4, 5):
                ckpt.save(step, state(step)).result()
                if comm.is_root and step <= 2:
                    put(step)
                comm.barrier()

    ranks(body)
    step = run_dir / layout.step_dirname(5)
    assert sorted(path.name for path in step.iterdir()) == [layout.DATA, layout.MANIFEST]
    assert len(list((step / layout.DATA).iterdir())) == ranks.size


def test_a_reader_whose_step_is_written_over_is_told_that_it_was_retired(run_dir):
    """It has the step open from before it was retired; what it would read are other bytes, in the same file."""
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, state(1)).result()
        reader = open_step(run_dir / layout.step_dirname(1))
        for step in (2, 3):
            ckpt.save(step, state(step)).result()
        with pytest.raises(errors.RetiredError, match="retired while being read"):
            reader.load("w")


@pytest.mark.parametrize("n_saves", [1, 2])
def test_a_reader_whose_open_file_is_written_over_gets_its_bytes_or_an_error(run_dir, monkeypatch, n_saves):
    """Between the opening of the file and the reading of its blocks the file is retired, and then written over."""
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle="always") as ckpt:
        ckpt.save(1, state(1)).result()
        reader = open_step(run_dir / layout.step_dirname(1))
        inode = inodes(run_dir, 1)
        open_regular = spans.open_regular

        def open_and_lose(path):
            fd = open_regular(path)
            monkeypatch.setattr(spans, "open_regular", open_regular)
            for step in range(2, 2 + n_saves):
                ckpt.save(step, state(step)).result()
            return fd

        monkeypatch.setattr(spans, "open_regular", open_and_lose)
        with pytest.raises(errors.RetiredError, match="retired while being read") if n_saves > 1 else after_all():
            assert reader.load("w").tolist() == state(1)["w"].tolist()
        assert n_saves == 1 or inodes(run_dir, 3) == inode


def after_all() -> contextlib.AbstractContextManager[None]:
    """A retired step whose file is open already may still be read, if its bytes are right."""
    return contextlib.suppress(errors.RetiredError)


# -- programs that have a file open ------------------------------------------------------------------


def _by_h5py(path: Path) -> tuple[Any, Callable[[], list[float]]]:
    h5py = pytest.importorskip("h5py")
    file = h5py.File(path, "r")
    return file, lambda: file["w"][:].tolist()


def _by_safetensors(path: Path) -> tuple[Any, Callable[[], list[float]]]:
    file = pytest.importorskip("safetensors").safe_open(path, "numpy")
    return contextlib.nullcontext(), lambda: file.get_tensor("w").tolist()


def _by_mmap(path: Path) -> tuple[Any, Callable[[], list[float]]]:
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return contextlib.closing(pages), lambda: pages[:]


READERS = {
    "h5py": ({"backend": "hdf5"}, f"{layout.DATA}/checkpoint.h5", _by_h5py),
    "h5py, a rank's file": (
        {"backend": "hdf5", "backend_options": {"driver": "per-rank"}},
        f"{layout.DATA}/rank-00000.h5",
        _by_h5py,
    ),
    "safetensors": ({}, backend.file_path(0), _by_safetensors),
    "mmap": ({}, backend.file_path(0), _by_mmap),
}


@pytest.fixture
def leases(tmp_path: Path) -> None:
    """A file system with leases."""
    with (tmp_path / "file").open("w+b") as file:
        if not reusing.is_unused(file.fileno()):
            pytest.skip("no leases here")


@pytest.mark.parametrize("kind", READERS)
def test_a_program_that_is_started_during_a_save_inherits_no_file_of_it(run_dir, kind):
    options, name, _ = READERS[kind]
    found: dict[str, str] = {}

    def start(phase: str, _rank: int) -> None:
        if phase != "0-plan":
            command = ["ls", "-l", "/proc/self/fd"]
            found[phase] = subprocess.run(
                command, check=True, close_fds=False, stdout=subprocess.PIPE, text=True
            ).stdout
            if phase == "2-written":  # what the child could have inherited
                found["own"] = " ".join(path for path in open_files() if path.endswith(Path(name).name))

    with hc.Checkpointer(run_dir, **options) as ckpt:
        failpoints.install_hook(start)
        try:
            ckpt.save(1, state(1)).result()
        finally:
            failpoints.install_hook(None)
    assert found.pop("own")
    assert len(found) > 5
    assert not [text for text in found.values() if str(run_dir) in text]


@pytest.mark.usefixtures("leases")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_has_a_file_open_costs_new_files_and_no_values(run_dir, opened):
    source, target = os.pipe()
    children: list[int] = []

    def fork(phase: str, _rank: int) -> None:
        if phase == "2-written" and not children:
            children.append(os.fork())
            if not children[0]:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)  # not for ever, if the test fails
                os.read(source, 1)
                os._exit(0)

    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        failpoints.install_hook(fork)
        try:
            for step in range(1, 6):
                ckpt.save(step, state(step)).result()
                assert values(run_dir, step) == [step + k for k in range(4000)]
        finally:
            failpoints.install_hook(None)
            os.write(target, b" ")
            os.waitpid(children[0], 0)
            os.close(source)
            os.close(target)
    assert opened == [True, True, True, False, False]


@pytest.mark.usefixtures("leases")
@pytest.mark.parametrize("kind", READERS)
def test_a_program_that_opened_a_step_keeps_reading_its_values(run_dir, kind):
    options, name, open_file = READERS[kind]
    with hc.Checkpointer(run_dir, max_to_keep=1, **options) as ckpt:
        ckpt.save(1, state(1)).result()
        closing, read = open_file(run_dir / layout.step_dirname(1) / name)
        with closing:
            before = read()
            for step in range(2, 7):
                ckpt.save(step, state(step)).result()
                assert read() == before
    assert values(run_dir, 6) == [6.0 + k for k in range(4000)]


@pytest.mark.usefixtures("leases")
@pytest.mark.parametrize("kind", ["h5py", "safetensors"])
def test_a_file_is_written_over_again_when_it_was_closed(run_dir, kind):
    options, name, _ = READERS[kind]
    with hc.Checkpointer(run_dir, max_to_keep=1, **options) as ckpt:
        found = []
        for step in range(1, 8):
            ckpt.save(step, state(step)).result()
            path = run_dir / layout.step_dirname(step) / name
            if step == 2:
                reader = path.open("rb")
            if step == 5:
                reader.close()
            found.append(path.stat().st_ino)
    assert found[2] == found[0], "not open"
    assert found[3] != found[1], "open"
    assert found[4] == found[2]
    assert found[5] == found[3]


@pytest.mark.parametrize("kind", ["h5py", "safetensors"])
def test_files_are_written_over_without_asking_where_the_user_wants_that(run_dir, kind):
    options, name, _ = READERS[kind]
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle="always", **options) as ckpt:
        ckpt.save(1, state(1)).result()
        path = run_dir / layout.step_dirname(1) / name
        with path.open("rb"):
            inode = path.stat().st_ino
            for step in (2, 3):
                ckpt.save(step, state(step)).result()
        assert (run_dir / layout.step_dirname(3) / name).stat().st_ino == inode


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EPERM])
def test_without_a_lease_files_are_not_written_over(ranks, run_dir, opened, monkeypatch, code):
    """They are in use; or there are no leases here, or not on files of another user."""
    control = fcntl.fcntl

    def refuse(fd: Any, command: int, *args: Any) -> Any:
        if command == fcntl.F_SETLEASE:
            raise OSError(code, os.strerror(code))
        return control(fd, command, *args)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    save(ranks, run_dir, 1, 2, 3, 4)
    assert set(opened) == {True}
    assert values(run_dir, 4)[0] == 4.0


@pytest.mark.parametrize(("recycle", "is_new"), [(True, True), ("always", False)])
def test_where_readers_may_be_elsewhere_files_are_written_over_only_if_asked_for(
    run_dir, opened, monkeypatch, recycle, is_new
):
    monkeypatch.setattr(run_directory, "knows_readers", lambda _path: False)
    with hc.Checkpointer(run_dir, max_to_keep=1, recycle=recycle) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state(step)).result()
    assert opened == [True, True, is_new]


@pytest.mark.usefixtures("leases")
def test_opening_a_file_during_the_lease_waits_and_no_signal_ends_the_job(tmp_path):
    """A child takes and returns leases all the time, while this process opens the file."""
    path = tmp_path / "file"
    path.touch()
    code = (
        "import os, sys; from hpcckpt.backends.reusing import is_unused\n"
        "fd = os.open(sys.argv[1], os.O_RDWR); print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[1] + '.end'): is_unused(fd)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(3000):
            path.open("rb").close()
        path.with_name("file.end").touch()
    assert child.returncode == 0


def test_recycle_takes_true_false_and_always(run_dir):
    with pytest.raises(errors.OptionError, match=r"recycle.*'always'"):
        hc.Checkpointer(run_dir, recycle="sometimes")


@pytest.mark.parametrize(
    ("type_", "is_known"),
    [
        ("ext4", True),
        ("tmpfs", True),
        ("xfs", True),
        ("nfs4", False),
        ("lustre", False),
        ("fuse.sshfs", False),
        ("overlay", False),
        ("gpfs", False),
    ],
)
def test_who_has_a_file_open_is_known_on_local_file_systems_only(monkeypatch, tmp_path, type_, is_known):
    monkeypatch.setattr(mounts, "mount_of", lambda _path: mounts.Mount("/", type_, "source", ""))
    assert mounts.knows_readers(tmp_path) == is_known


# -- kept from being taken for something whole -----------------------------------------------------


def test_a_header_is_invalid_on_storage_before_the_first_byte_is_written_over(ranks, run_dir, monkeypatch):
    """Else a power loss in between could leave a file whose header vouches for bytes that are gone."""
    calls: dict[str, list[str]] = {}

    def watch(name: str, what: Any) -> None:
        call = getattr(native, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            path = kwargs.get("path") or args[-1]
            calls.setdefault(str(path), []).append(what(*args))
            return call(*args, **kwargs)

        monkeypatch.setattr(native, name, watched)

    def what_is_written(_fd, pieces, *_args):
        if isinstance(pieces, list) and pieces[0][1] == 0:  # the data is handed over piece by piece
            return "header" if any(pieces[0][0]) else "zeros"
        return "data"

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            for step in (1, 2):
                ckpt.save(step, state(step)).result()
            comm.barrier()
            if comm.rank == 0 or not hasattr(comm, "_group"):
                calls.clear()
                watch("write_blocks", what_is_written)
                watch("fdatasync", lambda *_: "sync")
                watch("preallocate", lambda *_: "resize")
            comm.barrier()
            ckpt.save(3, state(3)).result()
            comm.barrier()
            return {Path(path).name: list(did) for path, did in calls.items() if path.endswith(".safetensors")}

    for found in ranks(body):
        assert found
        assert set(map(tuple, found.values())) == {("zeros", "sync", "data", "header", "sync")}


@pytest.mark.parametrize("phase", ["2-write", "2-written", "2-synced", "4-durable"])
def test_a_save_that_fails_on_files_used_again_loses_nothing(ranks, run_dir, debris, phase):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            for step in (1, 2):
                ckpt.save(step, state(step)).result()
            with pytest.raises(errors.NoSpaceError):
                ckpt.save(3, state(3)).result()
            left = debris(ckpt)
            target = state(0)
            steps = ckpt.restore(target).step, ckpt.all_steps()
            for step in (4, 5, 6):
                ckpt.save(step, state(step)).result()
            return left, steps, target["w"][0]

    with armed(Fault(phase, "raise", 0, 3, error=OSError(errno.ENOSPC, "full"))):
        assert ranks(body) == [([], (2, [2]), 2.0)] * ranks.size
    assert values(run_dir, 6)[0] == 6.0


# -- room on the disk ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with disk_of_size(tmp_path / "disk", "8m") as where:
        yield where


def filled(nbytes: int, value: int) -> dict[str, Any]:
    return {"w": np.full(nbytes, value, np.uint8)}


def test_bytes_that_are_written_over_are_not_asked_of_the_disk_again(small_disk):
    run_dir = small_disk / "run"
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        for step in range(1, 6):
            ckpt.save(step, filled(3 * MIB, step)).result()  # two of them, and less than a third
        with pytest.raises(errors.NoSpaceError, match="nothing was written or removed"):
            ckpt.save(6, filled(6 * MIB, 6)).result()
        assert ckpt.all_steps() == [5]
        ckpt.save(7, filled(3 * MIB, 7)).result()
    assert hc.load(run_dir)["w"].tolist() == [7] * 3 * MIB


def test_bytes_of_files_that_have_another_name_are_asked_of_the_disk(small_disk):
    """They cannot be written over: the copy keeps them."""
    run_dir = small_disk / "run"
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        ckpt.save(1, filled(3 * MIB, 1)).result()
        subprocess.run(["cp", "-al", run_dir / layout.step_dirname(1), small_disk / "copy"], check=True)
        ckpt.save(2, filled(3 * MIB, 2)).result()
        begun = Fault("2-write", "raise", error=AssertionError("begun all the same"))
        with armed(begun), pytest.raises(errors.NoSpaceError):
            ckpt.save(3, filled(3 * MIB, 3)).result()
        assert ckpt.all_steps() == [2]
    assert hc.load(small_disk / "copy")["w"].tolist() == [1] * 3 * MIB


def test_a_disk_that_fills_up_while_files_are_written_over_loses_nothing(small_disk, monkeypatch):
    run_dir, filler = small_disk / "run", small_disk / "filler"
    with hc.Checkpointer(run_dir, max_to_keep=1) as ckpt:
        for step in (1, 2):
            ckpt.save(step, filled(2 * MIB, step)).result()
        with monkeypatch.context() as patch:
            patch.setattr("hpcckpt.rundir.commit.check_space", lambda *_: filler.write_bytes(bytes(4 * MIB - 65536)))
            with pytest.raises(errors.NoSpaceError, match=r"rank-00000\.safetensors"):
                ckpt.save(3, filled(3 * MIB, 3)).result()
        assert ckpt.all_steps() == [2]
        assert hc.load(run_dir)["w"].tolist() == [2] * 2 * MIB
        filler.unlink()
        ckpt.save(4, filled(3 * MIB, 4)).result()
    assert hc.load(run_dir)["w"].tolist() == [4] * 3 * MIB
