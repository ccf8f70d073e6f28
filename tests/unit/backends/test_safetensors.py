"""Data files are ordinary safetensors files: another reader opens them and finds the same values."""

from __future__ import annotations

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.testing.ranks import run_ranks

safetensors = pytest.importorskip("safetensors")
from safetensors.numpy import load_file  # noqa: E402

KNOWN = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def save(run_dir, n_ranks, state):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(1, state(comm)).result().path

    return sorted((run_ranks(n_ranks, body)[0] / "data").iterdir())


@pytest.mark.parametrize("dtype", KNOWN)
def test_whole_tensors_are_found_under_their_names_with_equal_values(run_dir, dtype):
    expected = np.random.default_rng(0).integers(0, 2, (13, 5)).astype(dtype)
    (path,) = save(
        run_dir, 1, lambda comm: {"deep": {"x": expected}, "scalar": np.float32(1.5), "empty": np.zeros((0, 3))}
    )
    found = load_file(path)
    assert found.keys() == {"deep/x", "scalar", "empty"}
    assert found["deep/x"].dtype == expected.dtype
    np.testing.assert_array_equal(found["deep/x"], expected)
    assert (found["scalar"].shape, float(found["scalar"])) == ((), 1.5)
    assert found["empty"].shape == (0, 3)


@pytest.mark.parametrize(
    ("dtype", "code"), [("bfloat16", "BF16"), ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2")]
)
def test_narrow_floats_have_the_codes_of_safetensors(run_dir, dtype, code):
    import ml_dtypes

    (path,) = save(run_dir, 1, lambda comm: {"x": np.arange(6).astype(getattr(ml_dtypes, dtype)).reshape(2, 3)})
    with safetensors.safe_open(path, "numpy") as file:
        found = file.get_slice("x")
        assert (found.get_dtype(), found.get_shape()) == (code, [2, 3])


@pytest.mark.parametrize("value", [np.array([1 + 2j, 3j]), np.array(["ab", "c"]), np.array([1], "M8[ns]")])
def test_what_safetensors_does_not_know_is_stored_as_bytes(run_dir, value):
    (path,) = save(run_dir, 1, lambda comm: {"x": value})
    found = load_file(path)["x"]
    assert (found.dtype, found.shape) == (np.uint8, (*value.shape, value.itemsize))
    assert found.tobytes() == value.tobytes()


def test_parts_of_tensors_say_which_in_their_names(run_dir):
    full = np.arange(4 * 1000.0).reshape(4, 1000)

    def state(comm):
        return {
            "table": hc.Sharded(
                full[:, comm.rank * 500 : (comm.rank + 1) * 500].copy(), full.shape, (0, comm.rank * 500)
            ),
            "w": np.arange(2000, dtype=np.float32),
            "rng": hc.PerRank(np.full(comm.rank + 1, comm.rank)),
        }

    one, two = (load_file(path) for path in save(run_dir, 2, state))
    np.testing.assert_array_equal(one["table[0:4,0:500]"], full[:, :500])
    np.testing.assert_array_equal(two["table[0:4,500:1000]"], full[:, 500:])
    (first,), (second,) = ([name for name in file if name.startswith("w@")] for file in (one, two))
    cut = first.removeprefix("w@0:")
    assert second == f"w@{cut}:2000"
    np.testing.assert_array_equal(np.concatenate([one[first], two[second]]), np.arange(2000, dtype=np.float32))
    assert (one["rng"].tolist(), two["rng"].tolist()) == ([0], [1, 1])


def test_every_file_of_any_number_of_ranks_is_opened(run_dir):
    paths = save(run_dir, 5, lambda comm: {"tiny": np.zeros(3), "e": np.zeros(0), "epoch": 1})
    assert len(paths) == 5
    names = [name for path in paths for name in load_file(path)]
    assert len(names) == len(set(names))
    for path in paths:
        with safetensors.safe_open(path, "numpy") as file:
            assert {"hpcckpt", "hpcckpt.header_crc32c"} == set(file.metadata())


def test_names_that_look_like_parts_are_opened_too(run_dir):
    names = ["x", *(f"x@0:{k}" for k in range(0, 1000, 8)), *(f"x@{k}:1000" for k in range(0, 1000, 8))]
    paths = save(run_dir, 2, lambda comm: {name: np.zeros(1000 if name == "x" else 1) for name in names})
    found = [name for path in paths for name in load_file(path)]
    assert set(names) - {"x"} <= set(found)
    assert sum(name.startswith("x@") and name.endswith("~") for name in found) >= 1
