"""Checkpoints of `hdf5` from real ranks: by each driver bit-exact on any number of ranks, and HDF5 for all others."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.cli import main as cli
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from tests.support.mpi.hdf5_states import CASES, LARGE, SAVED_ON, Case, replicated, whole
from tests.support.mpi.kills import check_goes_on, kill_at
from tests.support.mpi.launch import PROGRAMS, mpirun, run_program
from tests.support.mpi.states import SHARDED, values

h5py = pytest.importorskip("h5py")
HAS_MPI = bool(h5py.get_config().mpi)
needs_parallel_hdf5 = pytest.mark.skipif(not HAS_MPI, reason="h5py was built without MPI")
pytestmark = [pytest.mark.one_case, needs_parallel_hdf5, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that has a run of each case, and what restoring it found."""
    directory = tmp_path_factory.mktemp("runs")
    ended = mpirun(5, str(PROGRAMS / "job_hdf5.py"), str(directory), timeout_s=450)
    assert ended.code == 0, ended.err
    return directory


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """Return one way to save."""
    return request.param


@pytest.fixture
def step(runs: Path, case: Case) -> Path:
    """Return the step directory of a case."""
    return runs / case.name / layout.step_dirname(3)


@pytest.fixture
def file(step: Path) -> Path:
    """Return the file of a case that other programs open."""
    return step / "data" / "checkpoint.h5"


def expected(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """Return all tensors of a case."""
    if case.is_bare:
        return {"w": values("w", (3,), 3), "none": np.empty((0, 2))}
    return {
        "w": values("w", (37, 5), 3),
        "empty": np.empty((0, 4), np.float32),
        "own": values("own", (SAVED_ON, 4), 3, "int8"),
        **{f"sharded/{name}": values(name, shape, 3, "int16") for name, (shape, _) in SHARDED.items()},
        **{name: whole(name, 3) for name in LARGE},
        **replicated(3),
    }


# -- what goes in comes out ------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_saved_on_three_ranks_it_is_restored_to_the_bit(runs: Path, case: Case, n_ranks: int) -> None:
    found = json.loads((runs / "found.json").read_text(encoding="utf-8"))
    assert found[case.name][str(n_ranks)] == []


def test_it_is_read_without_ranks_and_verified(step: Path, case: Case) -> None:
    loaded = hc.load(step)
    for name, array in expected(case).items():
        assert loaded[name].dtype == array.dtype, name
        assert loaded[name].tobytes() == array.tobytes(), name
    assert open_step(step).verify() == []


def test_the_manifest_names_the_driver(step: Path, case: Case) -> None:
    options = discovery.read_manifest(step).backend_options
    assert options["driver"] == case.driver
    assert ("chosen" in options) == (case.options.get("driver") == "auto")


@pytest.mark.parametrize("verb", ["list", "info", "tensors", "verify"])
def test_the_command_line_reads_it(runs: Path, case: Case, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli([verb, str(runs / case.name)]) == 0
    assert capsys.readouterr().out


# -- for everybody else ----------------------------------------------------------------------------


def test_h5py_finds_every_tensor_under_its_name(file: Path, case: Case) -> None:
    with h5py.File(file, "r") as opened:
        assert opened.attrs["step"] == 3
        for name, array in expected(case).items():
            dataset = opened[name]
            assert dataset.shape == array.shape
            assert dataset.attrs["dtype"].decode() == array.dtype.name
            if name in {"narrow/bfloat16", "narrow/float8_e5m2"}:  # h5py reads them as wider floats of the same values
                assert np.array_equal(dataset[()].astype("f8"), array.astype("f8"), equal_nan=True)
            else:
                assert dataset[()].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("command", [["h5ls", "-r"], ["h5dump", "-H"], ["h5dump", "-d", "/w"]], ids=" ".join)
def test_the_tools_of_hdf5_read_it(file: Path, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: apt-get install hdf5-tools")
    done = subprocess.run([*command, str(file)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "w" in done.stdout


def test_alignment_is_kept(runs: Path) -> None:
    for name, alignment in (("direct", 4096), ("mpio-hints", 1 << 16)):
        index = open_step(runs / name).index
        large = [entry.offset for entry in index["large/whole"] if entry.item.start == 0]
        assert large
        assert all(offset % alignment == 0 for offset in large)


def test_chunks_and_filters_are_those_asked_for(runs: Path) -> None:
    with h5py.File(runs / "mpio-gzip" / layout.step_dirname(3) / "data" / "checkpoint.h5", "r") as opened:
        dataset = opened["large/rows"]
        assert (dataset.compression, dataset.compression_opts, dataset.shuffle) == ("gzip", 1, True)
        assert 20_000 < np.prod(dataset.chunks) * 2 <= 30_000
    with h5py.File(runs / "mpio-chunks" / layout.step_dirname(3) / "data" / "checkpoint.h5", "r") as opened:
        assert opened["large/rows"].chunks is not None
        assert opened["large/rows"].compression is None
        assert opened["w"].chunks is None


# -- whatever happens ------------------------------------------------------------------------------

KILLS = [
    ("mpio", "2-write", "last"),
    ("mpio", "2-written", "all"),
    ("mpio", "2-synced", "last"),
    ("mpio", "4-sealed", "all"),
    ("direct", "2-written", "last"),
    ("per-rank", "2-synced", "last"),
]
"""Killed at every phase each driver is too by BackendSuite, on one rank."""


@pytest.mark.parametrize(("driver", "phase", "who"), KILLS)
def test_killed_the_step_before_stands(tmp_path: Path, driver: str, phase: str, who: str) -> None:
    check_killed(tmp_path, driver, phase, [SAVED_ON - 1] if who == "last" else list(range(SAVED_ON)))


def check_killed(directory: Path, driver: str, phase: str, victims: list[int]) -> None:
    """Kill ranks at a phase of a save by a driver; check that the step before is kept, and the next job goes on."""
    options = {"backend": "hdf5", "backend_options": {"driver": driver}}
    kill_at(directory, SAVED_ON, phase, victims, options=options)
    is_published = phase[0] in "5678"
    expected = {1: 1, 2: 2} if 0 not in victims else {2: 2} if is_published else {1: 1}  # root may have gone on
    newest = hc.latest_checkpoint(directory)
    assert newest is not None
    assert newest.name in {layout.step_dirname(number) for number in expected}
    check_goes_on(directory, 2, expected)


def check_whole(run: Path, step: int, seed: int) -> None:
    """Check that a step is the newest, and has the state of a seed."""
    newest = hc.latest_checkpoint(run)
    assert newest is not None
    assert newest.name == layout.step_dirname(step)
    assert hc.load(newest)["large/whole"].tobytes() == replicated(seed)["large/whole"].tobytes()


def test_a_rank_killed_amid_a_collective_write_leaves_the_step_before(tmp_path: Path) -> None:
    ended = run_program(SAVED_ON, "job_hdf5_amid", {"directory": str(tmp_path), "ways": ["kill"]})
    assert ended.code != 0
    check_whole(tmp_path / "run", 1, 1)


@pytest.fixture(scope="module")
def amid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a job in which collective writes went wrong."""
    directory = tmp_path_factory.mktemp("amid")
    asked = {"directory": str(directory), "ways": ["raise", "full", "lost", "close", "sum"]}
    ended = run_program(SAVED_ON, "job_hdf5_amid", asked)
    assert ended.code == 0, ended.err
    return directory


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("raise", ["rank 1]", "disk on fire"]),
        ("full", ["NoSpaceError", "rank 0]", "free space"]),
        ("lost", ["StorageError", "rank 1]", "large/whole", "other bytes are in the file"]),
        ("close", ["rank 1]", "no word from the server"]),
        ("sum", ["rank 1]", "no room for checksums"]),
    ],
)
def test_what_goes_wrong_amid_a_collective_write_is_told_to_all_ranks(amid: Path, way: str, words: list[str]) -> None:
    told = [(amid / f"{way}-{rank}").read_text(encoding="utf-8") for rank in range(SAVED_ON)]
    assert len(set(told)) == 1
    assert [word for word in words if word not in told[0]] == []


def test_after_that_the_next_save_is_whole(amid: Path) -> None:
    check_whole(amid / "run", 9, 9)
    assert sorted(path.name for path in (amid / "run").glob("step-*")) == [layout.step_dirname(n) for n in (1, 9)]
