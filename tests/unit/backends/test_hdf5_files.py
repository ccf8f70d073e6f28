"""What the files of `hdf5` are for others, and what its options do; by the drivers that need no MPI."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.backends.hdf5 import library, options
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from hpcckpt.testing.backends import DTYPES, any_bits, strip
from hpcckpt.testing.ranks import run_ranks
from tests.support.paths import TESTS

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.stack_b
N_RANKS = 3
OWN = 100_000
"""Bytes of a rank's own value that is too large to come with its report."""


def state_of(comm: Any, step: int) -> dict[str, Any]:
    return {
        "model/conv2d_1/kernel": np.full((50, 40), step, np.float32),
        "rows": strip(np.arange(2300, dtype=np.int64).reshape(100, 23) * step, comm, 0),
        "columns": strip(np.arange(2300, dtype=np.int64).reshape(100, 23) * step, comm, 1),
        "own": hc.PerRank(np.full(3 + comm.rank + step, comm.rank, np.uint8)),
        "much": hc.PerRank(np.full(OWN * step, comm.rank, np.uint8)),
    }


def save(run: Path, n_steps: int = 1, make: Callable[[Any, int], Any] = state_of, **given: Any) -> Path:
    """Save steps on three ranks; return the directory of the last one."""

    def body(comm: Any) -> None:
        with hc.Checkpointer(run, comm=comm, backend="hdf5", backend_options=given, max_to_keep=1) as ckpt:
            for step in range(1, n_steps + 1):
                ckpt.save(step, make(comm, step)).result()

    run_ranks(N_RANKS, body)
    return run / layout.step_dirname(n_steps)


@pytest.fixture(params=["direct", "per-rank"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


# -- for everybody else ----------------------------------------------------------------------------


def test_names_are_paths_and_values_are_there(tmp_path: Path, driver: str) -> None:
    step = save(tmp_path, 3, driver=driver)
    with h5py.File(step / "data" / "checkpoint.h5", "r") as file:
        assert np.all(file["model/conv2d_1/kernel"][()] == 3)
        full = np.arange(2300).reshape(100, 23) * 3
        assert np.array_equal(file["rows"][()], full)
        assert np.array_equal(file["columns"][()], full)
        for rank in range(N_RANKS):
            assert file[f"own#{rank}"][()].tolist() == [rank] * (6 + rank)
            assert np.array_equal(file[f"much#{rank}"][()], np.full(3 * OWN, rank))


def test_attributes_say_what_each_dataset_is(tmp_path: Path, driver: str) -> None:
    step = save(tmp_path, driver=driver)
    manifest = discovery.read_manifest(step)
    with h5py.File(step / "data" / "checkpoint.h5", "r") as file:
        assert file.attrs["save_id"].decode() == manifest.save_id
        assert (file.attrs["step"], file.attrs["ranks"], file.attrs["format"]) == (1, N_RANKS, 1)
        attributes = file["columns"].attrs
        assert (attributes["kind"], attributes["dtype"]) == (b"sharded", b"int64")
        assert attributes["global_shape"].tolist() == [100, 23]
        assert file["own#2"].attrs["rank"] == 2


@pytest.mark.parametrize("token", DTYPES)
def test_every_dtype_has_a_type_that_h5py_opens(tmp_path: Path, token: str) -> None:
    array = any_bits(token, (6, 5))
    step = save(tmp_path, make=lambda comm, step: {"x": array})
    with h5py.File(step / "data" / "checkpoint.h5", "r") as file:
        found = file["x"][()]
        assert file["x"].attrs["dtype"].decode() == token
    if found.dtype.itemsize == array.dtype.itemsize:
        assert found.tobytes() == array.tobytes()
    else:  # HDF5 knows the format of the narrow float, and h5py reads it as a wider one
        assert np.array_equal(found.astype("f8"), array.astype("f8"), equal_nan=True)


def test_names_that_hdf5_cannot_have_side_by_side_get_another_one(tmp_path: Path) -> None:
    step = save(tmp_path, make=lambda comm, step: {name: np.full(2, len(name)) for name in ("a", "a/b")})
    with h5py.File(step / "data" / "checkpoint.h5", "r") as file:
        assert file["a/b"][()].tolist() == [3, 3]
        assert file["a~"][()].tolist() == [1, 1]
        assert file["a~"].attrs["name"] == b"a"


def test_a_name_that_is_reserved_is_refused(tmp_path: Path, driver: str) -> None:
    with pytest.raises(errors.StateError, match=r"'__hpcckpt__/x'.*reserve|keeps its own"):
        save(tmp_path, make=lambda comm, step: {"__hpcckpt__/x": np.ones(2)}, driver=driver)


def test_the_first_page_is_written_last(tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the file is not HDF5: no program takes it for a checkpoint."""
    seen: list[tuple[str, bool]] = []

    def look(fd: int, where: str) -> None:
        seen.append((os.path.basename(where), os.pread(fd, 8, 0) == b"\x89HDF\r\n\x1a\n"))

    write_blocks = native.write_blocks

    def spy(fd: int, pieces: Any, **given: Any) -> Any:
        found = write_blocks(fd, pieces, **given)
        if str(given.get("path", "")).endswith(".h5"):
            look(fd, str(given["path"]))
        return found

    monkeypatch.setattr(native, "write_blocks", spy)
    save(tmp_path, 1, driver=driver)
    assert seen
    for name in {name for name, _ in seen}:
        states = [is_hdf5 for other, is_hdf5 in seen if other == name]
        assert states[-1]
        assert not any(states[:-1])


# -- in place --------------------------------------------------------------------------------------


def inodes(step: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (step / "data").iterdir()}


def test_files_are_written_over_in_place(tmp_path: Path, driver: str) -> None:
    seen = []

    def body(comm: Any) -> None:
        options = {"driver": driver}
        with hc.Checkpointer(tmp_path, comm=comm, backend="hdf5", backend_options=options, max_to_keep=1) as ckpt:
            for step in range(1, 6):
                ckpt.save(step, {"x": np.full(70_000, step)}).result()
                if comm.is_root:
                    seen.append(inodes(tmp_path / layout.step_dirname(step)))
                comm.barrier()

    run_ranks(N_RANKS, body)
    name = "checkpoint.h5" if driver == "direct" else "rank-00000.h5"
    assert seen[4][name] == seen[2][name]
    assert seen[4][name] != seen[3][name]


def test_a_file_with_another_name_is_not_written_over(tmp_path: Path, driver: str) -> None:
    name = "checkpoint.h5" if driver == "direct" else "rank-00001.h5"
    kept = tmp_path / "kept.h5"
    content = []

    def body(comm: Any) -> None:
        given = {"driver": driver}
        with hc.Checkpointer(tmp_path / "r", comm=comm, backend="hdf5", backend_options=given, max_to_keep=1) as ckpt:
            for step in range(1, 6):
                ckpt.save(step, {"x": np.full(70_000, step)}).result()
                if step == 1 and comm.is_root:
                    os.link(tmp_path / "r" / layout.step_dirname(1) / "data" / name, kept)
                    content.append(kept.read_bytes())
                comm.barrier()

    run_ranks(N_RANKS, body)
    assert [kept.read_bytes()] == content


# -- options ---------------------------------------------------------------------------------------


def test_all_that_is_wrong_with_options_is_said_at_once() -> None:
    wrong = {"driver": "posix", "alignment": 0, "stripe_size": 1000, "chunks": "x", "compression": "lz4", "level": 3}
    with pytest.raises(errors.OptionError) as caught:
        options.parse(wrong)
    assert [name for name in wrong if f"backend_options.{name}" not in str(caught.value)] == []


@pytest.mark.parametrize("given", [{"chunks": 4096}, {"compression": "gzip"}])
def test_chunks_need_mpio(given: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError, match="needs driver='mpio'"):
        options.parse(given)


def test_mpio_without_mpi_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(errors.MpiError, match=r"mpirun.*driver='direct'"):
        save(tmp_path, driver="mpio")


@pytest.mark.parametrize(
    ("given", "expected"), [({}, 4096), ({"alignment": 1 << 16}, 1 << 16), ({"stripe_size": 1 << 17}, 1 << 17)]
)
def test_tensors_are_aligned(tmp_path: Path, driver: str, given: dict[str, Any], expected: int) -> None:
    array = np.ones(1 << 17)
    step = save(tmp_path, make=lambda comm, step: {"a": np.ones(3), "x": array, "y": array}, driver=driver, **given)
    index = open_step(step).index
    begins = [entry.offset for name in "xy" for entry in index[name] if entry.nbytes >= expected]
    begins = [entry for entry in begins if driver == "per-rank" or entry in (min(begins), max(begins))]
    firsts = [entry.offset for name in "xy" for entry in index[name] if entry.item.start == 0]
    assert firsts
    assert all(at % expected == 0 for at in firsts)


@pytest.mark.parametrize(("kind", "expected"), [("lustre", 1 << 20), ("gpfs", 1 << 20), ("ext4", 4096)])
def test_the_default_alignment_depends_on_the_file_system(
    kind: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_mount(monkeypatch, kind)
    assert options.parse({}).alignment_at(Path("/scratch")) == expected


def on_mount(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    """Let every directory be on a file system of this type."""

    def mount_of(path: Path) -> Any:
        return None if kind is None else type("AMount", (), {"type": kind})()

    monkeypatch.setattr(options, "mount_of", mount_of)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("lustre", "direct"), ("ext4", "direct"), ("nfs4", "per-rank"), ("fuse.sshfs", "per-rank"), (None, "per-rank")],
)
def test_auto_picks_by_the_file_system_logs_why_and_says_so_in_the_manifest(
    tmp_path: Path, kind: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_mount(monkeypatch, kind)
    with caplog.at_level(logging.INFO, logger="hpcckpt"):
        step = save(tmp_path, driver="auto")
    said = [text for text in caplog.messages if "driver=" in text]
    assert len(said) == 1
    assert re.search(f"driver={expected}: .*{kind or 'not known'}", said[0])
    manifest = discovery.read_manifest(step)
    assert manifest.backend_options["driver"] == expected
    assert manifest.backend_options["chosen"] in said[0]
    assert len(manifest.files) == (1 if expected == "direct" else N_RANKS + 1)


def test_stripes_are_asked_of_lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "lfs").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n: > "$6"\n', encoding="utf-8")
    (tools / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    save(tmp_path / "run", stripe_count=4, stripe_size=1 << 20)
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked[0].startswith("setstripe -c 4 -S 1048576 ")
    assert asked[0].endswith("data/checkpoint.h5")


def test_locks_of_others_stop_nobody(tmp_path: Path, driver: str) -> None:
    locked = []

    def body(comm: Any) -> None:
        given = {"driver": driver}
        with hc.Checkpointer(tmp_path, comm=comm, backend="hdf5", backend_options=given, max_to_keep=1) as ckpt:
            for step in range(1, 5):
                ckpt.save(step, {"x": np.full(70_000, step)}).result()
                if comm.is_root:
                    locked.extend(path.open("rb") for path in (tmp_path / layout.step_dirname(step) / "data").iterdir())
                    for file in locked:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                comm.barrier()

    run_ranks(N_RANKS, body)
    assert np.all(hc.load(tmp_path)["x"] == 4)
    for file in locked:
        file.close()


def test_hdf5_never_locks_what_it_opens() -> None:
    version = h5py.version.hdf5_version_tuple
    assert library.without_locks() == ({} if version < (1, 10, 7) or version == (1, 12, 0) else {"locking": False})


def test_reading_needs_no_h5py(tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = save(tmp_path, driver=driver)
    monkeypatch.setattr(library, "load", lambda: pytest.fail("h5py was asked for"))
    assert open_step(step).verify() == []
    assert np.all(hc.load(step)["model/conv2d_1/kernel"] == 1)


def test_packed_tensors_are_read_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TESTS / "format" / "hdf5-golden-1" / "mpio-gzip"
    expected = hc.load(run)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("cannot start a thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loaded = hc.load(run)
    assert {name: array.tobytes() for name, array in loaded.items()} == {n: a.tobytes() for n, a in expected.items()}
