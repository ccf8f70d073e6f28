"""Any name of a tensor works in every backend, also for other programs, or is refused before the first byte."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import hpcckpt as hc
from hpcckpt.backends.hdf5.arrangement import own_name
from hpcckpt.core.tensors import name_problem
from hpcckpt.errors import StateError
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.testing.ranks import run_ranks

BACKENDS: dict[str, dict[str, Any]] = {
    "rankfile": {"backend": "rankfile"},
    "hdf5": {"backend": "hdf5"},
    "hdf5 per rank": {"backend": "hdf5", "backend_options": {"driver": "per-rank"}},
    "plugin": {"backend": "plugin:posix"},
}
MPIO = "hdf5 by MPI-IO"
BACKENDS[MPIO] = {"backend": "hdf5", "backend_options": {"driver": "mpio"}}
every_backend = pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.mpi) if name == MPIO else name for name in BACKENDS]
)
ODD = [
    "95%", "q%d", "p%b", "%0b", "a%%b", "a%b", "%", "%%", "50% of %s/x%n", "a/b%", "a%/b",
    "with space", " ", "x y/ z", "é", "e\u0301", "\u212b", "日本/語", "😀", "a.b", "a..b", "...", "~", "a~", "-", "*",
    "a[0]", "a:0",
    "w#1", "#", "x" * 300, "y" * 4096, "/".join(["deep"] * 100), "__hpcckpt", "data", "manifest.json", "\\",
    "\"'", "$HOME",
    "\u202e", "\ufeff", "\u2028", "\x80",
]  # fmt: skip
COLLIDING = ["a", "a/b", "a/b/c", "a~", "a/b~", "a%", "a%%", "A", "a#0", "a/b#1"]
REFUSED = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "./a",
    "a\0b",
    "a\nb",
    "\x7f",
    "\ud800",
    "z" * 4097,
    "__metadata__",
]


@pytest.fixture
def run_dir(tmp_path):
    """A run directory of this process alone."""
    return tmp_path / "run"


def on_ranks(backend: str, body: Any) -> list[Any]:
    """Run a body on two ranks as threads, or on this process where the backend needs MPI itself."""
    if backend != MPIO:
        return run_ranks(2, body)
    from mpi4py import MPI

    return [body(MPI.COMM_SELF)]


def state_of(names: list[str], comm: Any, fill: float = 0.0) -> dict[str, Any]:
    """Return replicated tensors, every third one in shards, with values of their own."""
    state: dict[str, Any] = {}
    for number, name in enumerate(names):
        full = np.arange(8.0) + 100 * number + 1 if not fill else np.full(8, fill)
        own = slice(4 * comm.rank, 4 * comm.rank + 4) if comm.size == 2 else slice(0, 8)
        state[name] = hc.Sharded(full[own].copy(), (8,), (own.start,)) if number % 3 == 2 else full
    return state


def check_names(directory: Any, names: list[str], backend: str) -> None:
    """Check that tensors of these names are saved, restored, and seen by other programs."""

    def body(comm: Any) -> list[list[float]]:
        with hc.Checkpointer(directory, comm=comm, **BACKENDS[backend]) as ckpt:
            ckpt.save(1, state_of(names, comm)).result()
            state = state_of(names, comm, fill=-1.0)
            ckpt.restore(state)
        return [[float(x) for x in getattr(value, "array", value)] for value in state.values()]

    restored = on_ranks(backend, body)
    for rank, values in enumerate(restored):
        for number, found in enumerate(values):
            start = 4 * rank if len(found) == 4 else 0
            assert found == (np.arange(8.0)[start : start + len(found)] + 100 * number + 1).tolist()
    loaded = hc.load(directory)
    expected = {name: (np.arange(8.0) + 100 * number + 1).tolist() for number, name in enumerate(names)}
    assert {name: array.tolist() for name, array in loaded.items()} == expected
    master = directory / "step-0000000001/data/checkpoint.h5"
    if master.exists():
        assert read_by_h5py(master) == expected


def read_by_h5py(path: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("__hpcckpt__/"):
            own = item.attrs.get("name", name)
            found[own.decode() if isinstance(own, bytes) else own] = item[...].tolist()

    with h5py.File(path, "r") as file:
        file.visititems(take)
    return found


@every_backend
@pytest.mark.parametrize("names", [ODD, COLLIDING], ids=["odd", "colliding"])
def test_odd_names_work_in_every_backend_and_for_h5py(run_dir, names, backend):
    check_names(run_dir, names, backend)


part = st.text(st.one_of(st.sampled_from("%~#. \\b0d"), st.characters(codec="utf-8")), min_size=1, max_size=6)
all_names = st.lists(st.lists(part, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8, unique=True)


@every_backend
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(names=all_names)
def test_any_names_that_are_not_refused_work_in_every_backend(tmp_path_factory, names, backend):
    kept = [name for name in names if name_problem(name) is None]
    if kept:
        check_names(tmp_path_factory.mktemp("run") / "run", kept, backend)


@every_backend
@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_name_that_cannot_be_is_refused_before_the_first_byte(run_dir, name, backend):
    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, **BACKENDS[backend]) as ckpt, pytest.raises(StateError):
            ckpt.save(1, {name: np.zeros(3), "w": np.zeros(3)})

    on_ranks(backend, body)
    assert not run_dir.exists() or step_numbers(run_dir) == []


@pytest.mark.parametrize("backend", ["hdf5", "hdf5 per rank"])
def test_the_reserved_group_of_hdf5_is_refused_before_the_first_byte(run_dir, backend):
    with hc.Checkpointer(run_dir, **BACKENDS[backend]) as ckpt, pytest.raises(StateError, match="rename the tensor"):
        ckpt.save(1, {"__hpcckpt__/x": np.zeros(3)})


@every_backend
def test_values_of_each_rank_have_odd_names_too(run_dir, backend):
    def body(comm: Any) -> list[float]:
        with hc.Checkpointer(run_dir, comm=comm, **BACKENDS[backend]) as ckpt:
            ckpt.save(1, {name: hc.PerRank(np.array([comm.rank + 0.5])) for name in ODD}).result()
            state = {name: hc.PerRank(np.zeros(1)) for name in ODD}
            ckpt.restore(state)
        return [float(value.value[0]) for value in state.values()]

    found = on_ranks(backend, body)
    assert found == [[rank + 0.5] * len(ODD) for rank in range(len(found))]
    assert set(hc.load(run_dir)) == {own_name(name, rank) for name in ODD for rank in range(len(found))}


def test_a_name_that_readers_give_to_one_ranks_part_is_refused(run_dir):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError, match=r"rank 0's part of 'x'"):
        ckpt.save(1, {"x": hc.PerRank(np.ones(1)), "x#0": np.zeros(3)})
