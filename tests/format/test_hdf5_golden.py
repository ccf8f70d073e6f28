"""Checkpoints of `hdf5`, as they were committed, stay readable by each driver; the writer writes what the page says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.backends.hdf5.table import TRAILER_BYTES, read_trailer
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from hpcckpt.testing.ranks import run_ranks
from tests.format.make_golden import N_RANKS, STEP, replicated, table
from tests.format.make_golden_hdf5 import CASES, many, packed, save, state_of

pytestmark = pytest.mark.stack_b
GOLDEN = Path(__file__).parent / "hdf5-golden-1"


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def golden(case: str) -> Path:
    return GOLDEN / case


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def all_values() -> dict[str, Any]:
    found = {**replicated(), "table": table(), "packed": packed(), "moving": np.zeros(3, np.float32)}
    for rank in range(N_RANKS):
        found[f"own#{rank}"] = np.full(rank + 1, rank, np.uint16)
        found[f"much#{rank}"] = many(rank)
    return found


def test_it_is_read_bit_for_bit(golden: Path) -> None:
    loaded = hc.load(golden)
    for name, value in all_values().items():
        assert bits(loaded[name]) == bits(value), name
        assert loaded[name].dtype == np.asarray(value).dtype
        assert loaded[name].shape == np.shape(value)
    assert json.loads(loaded["rng/json#1"].tobytes()) == {"seed": 1}


def test_it_verifies(golden: Path) -> None:
    assert open_step(golden).verify() == []


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_it_is_restored_on_any_number_of_ranks(golden: Path, n_ranks: int, tmp_path: Path) -> None:
    def body(comm: Any) -> None:
        state = state_of(comm.rank, comm.size)
        expected = state["table"].array.copy()
        state["table"].array[:] = -1
        state["packed"][:] = -1
        with hc.Checkpointer(golden, comm=comm) as ckpt:
            assert ckpt.restore(state).step == STEP
        assert bits(state["table"].array) == bits(expected)
        assert bits(state["packed"]) == bits(packed())

    run_ranks(n_ranks, body)


def test_h5py_reads_it(golden: Path, case: str) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(golden / layout.step_dirname(STEP) / "data" / "checkpoint.h5", "r") as file:
        for name, value in all_values().items():
            if name not in {"half", "words"}:  # of other types there
                assert bits(file[name][()]) == bits(value), name
        assert np.array_equal(file["half"][()], replicated()["half"].astype("f4"))
        assert file["packed"].compression == ("gzip" if case == "mpio-gzip" else None)


def tables(step: Path) -> Iterator[Any]:
    """Yield what the table of each file says, without what differs from save to save, and from HDF5 to HDF5."""
    for record in discovery.read_manifest(step).files:
        content = (step / record.path).read_bytes()
        trailer = read_trailer(content[-TRAILER_BYTES:], len(content), record.path)
        document = json.loads(content[trailer.at : trailer.at + trailer.nbytes])
        del document["save_id"], document["structure"]
        for entry in document["entries"]:
            del entry["at"]
        yield record.path, document


def names(step: Path) -> list[Any]:
    """Return all that h5py finds in each file."""
    import h5py

    found: list[Any] = []
    for record in discovery.read_manifest(step).files:
        with h5py.File(step / record.path, "r") as file:
            file.visititems(
                lambda name, thing: found.append((name, getattr(thing, "shape", None), sorted(thing.attrs)))
            )
    return found


@pytest.mark.parametrize("case", ["direct", "per-rank"])
def test_the_writer_still_writes_the_same(case: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    run_ranks(N_RANKS, lambda comm: save(tmp_path, comm, case))
    new, old = (run / layout.step_dirname(STEP) for run in (tmp_path, GOLDEN / case))
    assert list(tables(new)) == list(tables(old))
    assert names(new) == names(old)


def test_a_step_stays_whole_wherever_it_is_copied(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / layout.step_dirname(STEP), tmp_path / layout.step_dirname(STEP))
    assert open_step(tmp_path).verify() == []
