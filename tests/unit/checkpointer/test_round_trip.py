"""What is saved comes back, bit for bit, whatever its shape, dtype and memory layout."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.tensors import ITEMSIZE

TOKENS = [
    *(token for token in ITEMSIZE if token == "bool" or hasattr(np, token) or hasattr(ml_dtypes, token)),
    *("<U5", "|S3", "<M8[ns]", "<m8[D]", "|V16", np.dtype(np.longdouble).str, np.dtype(np.clongdouble).str),
]


def any_bits(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return an array of any bit patterns the dtype has: NaNs with payloads, infinities, subnormals."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        return rng.integers(0, 10**4, shape).astype(dtype)
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()


def save_and_restore(ranks: Any, run_dir: Any, state: Any, blank: Any) -> list[Any]:
    """Save what `state(comm)` returns and restore it into what `blank(comm)` returns."""

    def body(comm: Any) -> Any:
        target = blank(comm)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(comm)).result()
            restored = ckpt.restore(target)
        assert restored.warnings == ()
        return target

    return ranks(body)


def assert_same_bits(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("token", TOKENS)
def test_every_dtype_comes_back_bit_exact(ranks, run_dir, token):
    dtype = numpy_dtype(token)
    expected = any_bits(dtype, (13, 7))
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {"x": expected.copy()}, lambda comm: {"x": np.zeros((13, 7), dtype)}
    ):
        assert_same_bits(target["x"], expected)
    assert_same_bits(hc.load(run_dir)["x"], expected)


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16", ">U4", ">M8[s]", ">f2"])
def test_big_endian_arrays_come_back_in_their_own_byte_order(ranks, run_dir, dtype):
    expected = any_bits(np.dtype(dtype), (5, 3))

    def body(comm):
        target = {"x": np.zeros((5, 3), dtype)}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"x": expected}).result()
            ckpt.restore(target)
        assert_same_bits(target["x"], expected)

    ranks(body)


def test_nan_payloads_survive(ranks, run_dir):
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x7FBFFFFF, 0x80000000], np.uint32)
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {"x": bits.view(np.float32)}, lambda comm: {"x": np.zeros(5, np.float32)}
    ):
        assert target["x"].view(np.uint32).tolist() == bits.tolist()


LAYOUTS = {
    "transposed": lambda a: a.T,
    "every second": lambda a: a[::2, ::3],
    "reversed": lambda a: a[::-1],
    "broadcast": lambda a: np.broadcast_to(a[0], a.shape),
    "fortran": np.asfortranarray,
    "inner slice": lambda a: a[1:-1, 2:-2],
    "zero-dimensional": lambda a: a[2, 3, ...],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_layout_can_be_saved(ranks, run_dir, layout):
    array = LAYOUTS[layout](np.arange(12 * 10, dtype=np.float64).reshape(12, 10))
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {"x": array}, lambda comm: {"x": np.zeros(array.shape)}
    ):
        np.testing.assert_array_equal(target["x"], array)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "broadcast"])
def test_any_memory_layout_can_be_restored_into(ranks, run_dir, layout):
    base = np.arange(12 * 10, dtype=np.float64).reshape(12, 10)
    expected = LAYOUTS[layout](base).copy()
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {"x": expected}, lambda comm: {"x": LAYOUTS[layout](np.zeros((12, 10)))}
    ):
        np.testing.assert_array_equal(target["x"], expected)


def test_an_array_is_restored_in_its_own_memory(ranks, run_dir):
    def body(comm):
        held = np.zeros(1000)
        state = {"x": held, "view": held[:10].reshape(2, 5)}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"x": np.ones(1000), "view": np.ones((2, 5))}).result()
            ckpt.restore(state)
        return state["x"] is held, held.sum(), state["view"].base is held

    assert ranks(body) == [(True, 1000.0, True)] * ranks.size


def test_a_read_only_array_is_replaced_in_its_container(ranks, run_dir):
    def frozen(value):
        array = np.full(4, value)
        array.flags.writeable = False
        return array

    for target in save_and_restore(ranks, run_dir, lambda comm: {"x": frozen(7.0)}, lambda comm: {"x": frozen(0.0)}):
        assert target["x"].tolist() == [7.0] * 4


def test_nested_dicts_lists_and_scalars_come_back(ranks, run_dir):
    def state(value):
        return {
            "model": {"dense": {"kernel": np.full((3, 4), value), "bias": np.float32(value)}, "n": np.int64(value)},
            "moments": [np.full(2, value), {"v": np.full(5, value, np.int8)}],
            "flag": np.bool_(value),
            "z": np.array(value + 1j),
        }

    for target in save_and_restore(ranks, run_dir, lambda comm: state(5), lambda comm: state(0)):
        assert target["model"]["dense"]["kernel"].tolist() == np.full((3, 4), 5).tolist()
        assert target["model"]["dense"]["bias"] == np.float32(5)
        assert type(target["model"]["dense"]["bias"]) is np.float32
        assert target["model"]["n"] == 5
        assert target["moments"][0].tolist() == [5, 5]
        assert target["moments"][1]["v"].tolist() == [5] * 5
        assert target["flag"]
        assert target["z"] == 5 + 1j


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5, 2), ()])
def test_empty_and_zero_dimensional_tensors_come_back(ranks, run_dir, shape):
    expected = np.full(shape, 3.5)
    for target in save_and_restore(
        ranks,
        run_dir,
        lambda comm: {"x": expected, "y": np.ones(3)},
        lambda comm: {"x": np.zeros(shape), "y": np.zeros(3)},
    ):
        assert_same_bits(target["x"], expected)
        assert target["y"].tolist() == [1, 1, 1]


def test_a_state_of_nothing_but_empty_tensors_comes_back(ranks, run_dir):
    names = {"a": (0,), "b": (2, 0), "c": (0, 0)}
    for target in save_and_restore(
        ranks,
        run_dir,
        lambda comm: {n: np.zeros(s) for n, s in names.items()},
        lambda comm: {n: np.zeros(s) for n, s in names.items()},
    ):
        assert {n: a.shape for n, a in target.items()} == names


def test_a_state_with_no_tensors_comes_back(ranks, run_dir):
    for target in save_and_restore(ranks, run_dir, lambda comm: {"epoch": 3}, lambda comm: {"epoch": 0}):
        assert target == {"epoch": 3}


def test_one_array_can_be_a_state(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.arange(10)}).result()
            state = {"w": np.zeros(10, int)}
            ckpt.restore(state)
        return state["w"].tolist()

    assert ranks(body) == [list(range(10))] * ranks.size


def test_json_values_come_back_as_they_were(ranks, run_dir):
    value = {
        "none": None, "true": True, "int": -(2**70), "float": 0.1, "text": "ä€😀\"\\\n", "list": [1, [2.5, None], {}],
        "dict": {"$float": "not one", "": 0}, "nan": math.nan, "inf": -math.inf, "empty": [],
    }  # fmt: skip

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.zeros(2)}, objects=value).result()
            return ckpt.restore({"w": np.zeros(2)}).objects

    for found in ranks(body):
        assert math.isnan(found.pop("nan"))
        assert found == {k: v for k, v in value.items() if k != "nan"}


def test_objects_of_the_state_come_back_in_their_places(ranks, run_dir):
    def state(epoch, words):
        return {"epoch": epoch, "deep": {"words": words, "none": None}, "w": np.zeros(1)}

    for target in save_and_restore(ranks, run_dir, lambda comm: state(7, ["a", {"b": 1.5}]), lambda comm: state(0, [])):
        assert target["epoch"] == 7
        assert target["deep"] == {"words": ["a", {"b": 1.5}], "none": None}


def test_metrics_come_back_with_nan_and_infinities(ranks, run_dir):
    metrics = {"loss": math.nan, "up": math.inf, "down": -math.inf, "acc": np.float32(0.5), "n": 3}

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.zeros(2)}, metrics=metrics).result()
            return ckpt.restore({"w": np.zeros(2)}).metrics

    for found in ranks(body):
        assert math.isnan(found.pop("loss"))
        assert found == {"up": math.inf, "down": -math.inf, "acc": 0.5, "n": 3.0}


class Counter:
    """Anything with state_dict() and load_state_dict()."""

    def __init__(self, value):
        self.value = value
        self.weights = np.full(3, float(value))

    def state_dict(self):
        return {"value": self.value, "weights": self.weights.copy()}

    def load_state_dict(self, state):
        self.value, self.weights = state["value"], state["weights"]


@pytest.mark.counts(1, 2, 5)
def test_an_object_with_a_state_dict_gets_it_back_whole(ranks, run_dir):
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {"counter": Counter(9)}, lambda comm: {"counter": Counter(0)}
    ):
        assert target["counter"].value == 9
        assert target["counter"].weights.tolist() == [9.0] * 3


@pytest.mark.counts(1, 2, 5)
def test_root_only_values_are_rank_0s_on_every_rank(ranks, run_dir):
    def body(comm):
        held = hc.RootOnly(np.zeros(4))
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"mean": hc.RootOnly(np.full(4, float(comm.rank + 1))), "w": np.ones(2)}).result()
            ckpt.restore({"mean": held, "w": np.zeros(2)})
        return held.value.tolist()

    assert ranks(body) == [[1.0] * 4] * ranks.size


@pytest.mark.counts(2)
def test_root_only_without_an_array_says_what_other_ranks_need(ranks, run_dir):
    def body(comm):
        state = {"mean": hc.RootOnly(None if comm.rank else np.zeros(4))}
        text = r"\[ranks? 1(, \d+)*\] .*mean: RootOnly\(None\): every rank needs an array of the shape and dtype"
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StateError, match=text):
            ckpt.save(1, state).result()

    ranks(body)


@pytest.mark.counts(1, 2, 5)
def test_a_large_tensor_of_many_blocks_comes_back(ranks, run_dir):
    expected = np.random.default_rng(1).integers(0, 255, 3 * 2**20 + 17, np.uint8)
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {"x": expected}, lambda comm: {"x": np.zeros_like(expected)}
    ):
        assert_same_bits(target["x"], expected)


@pytest.mark.parametrize(
    "name", ["a/b/c", "ünï/€", "with space", "a[0:3]", "x@0:5", "x" * 4096, "'\"\\", "#1", "." * 3]
)
def test_names_are_free_text(ranks, run_dir, name):
    for target in save_and_restore(
        ranks, run_dir, lambda comm: {name: np.arange(50)}, lambda comm: {name: np.zeros(50, int)}
    ):
        assert target[name].tolist() == list(range(50))


def test_names_that_look_like_another_tensors_parts_do_not_collide(ranks, run_dir):
    """A part of `x` is stored under a name like ``x@48:100``; a tensor of that very name must not meet it."""

    def state(fill):
        names = ["x", *(f"x@0:{k}" for k in range(0, 1000, 8)), *(f"x@{k}:1000" for k in range(0, 1000, 8))]
        names += ["m", "m[0:6]", *(f"m[0:6]@{k}:6" for k in range(7))]
        sizes = {name: 1000 if name == "x" else 1 for name in names}
        return {name: np.full(sizes[name], number + 1.0 if fill else 0.0) for number, name in enumerate(names)}

    for target in save_and_restore(ranks, run_dir, lambda comm: state(fill=True), lambda comm: state(fill=False)):
        wrong = [name for name, expected in state(fill=True).items() if target[name].tolist() != expected.tolist()]
        assert wrong == []
