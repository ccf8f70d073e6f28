"""A state that does not fit is refused whole, with every difference named; or restored as far as it fits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.format import manifest
from hpcckpt.rundir import journal

SAVED = {
    "same": np.full(6, 1.0),
    "shape": np.full((2, 3), 2.0),
    "dtype": np.full(4, 3.0),
    "gone": np.full(2, 4.0),
    "kind": np.full(3, 5.0),
    "epoch": 6,
}


def other() -> dict[str, Any]:
    """Return a state that differs from SAVED in every way there is."""
    return {
        "same": np.zeros(6),
        "shape": np.zeros((3, 2)),
        "dtype": np.zeros(4, np.float32),
        "new": np.zeros(2),
        "kind": hc.PerRank(np.zeros(3)),
        "epoch": 0,
    }


@pytest.fixture
def saved(ranks, run_dir):
    """A run directory with a step that holds SAVED."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, SAVED)

    ranks(body)
    return run_dir


def test_a_mismatch_lists_every_difference_and_changes_nothing(ranks, saved):
    def body(comm):
        state = other()
        with hc.Checkpointer(saved, comm=comm) as ckpt, pytest.raises(errors.StateMismatchError) as caught:
            ckpt.restore(state)
        assert all(not np.any(state[name]) for name in ("same", "shape", "dtype", "new"))
        assert state["epoch"] == 0
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    for part in (
        "'shape': has shape (2, 3) in the checkpoint and (3, 2) in the state",
        "'dtype': is float64 in the checkpoint and float32 in the state",
        "'kind': is replicated in the checkpoint and per-rank in the state",
        "'new': is in the state but not in the checkpoint",
        "'gone': is in the checkpoint but not in the state",
        "strict=False",
    ):
        assert part in results[0]


def test_restored_as_far_as_it_fits_with_everything_else_named(ranks, saved):
    def body(comm):
        state = other()
        with hc.Checkpointer(saved, comm=comm) as ckpt:
            restored = ckpt.restore(state, strict=False)
        assert state["same"].tolist() == [1.0] * 6
        assert state["epoch"] == 6
        assert all(not np.any(state[name]) for name in ("shape", "dtype", "new"))
        assert not np.any(state["kind"].value)
        return restored.missing, restored.unexpected, restored.warnings

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    missing, unexpected, warnings = results[0]
    assert (missing, unexpected) == (("new",), ("gone",))
    text = "\n".join(warnings)
    assert all(f"'{name}'" in text or name in text for name in ("shape", "dtype", "kind", "new", "gone"))


def test_a_state_of_which_nothing_fits_is_refused_even_then(ranks, saved):
    def body(comm):
        with hc.Checkpointer(saved, comm=comm) as ckpt, pytest.raises(errors.StateMismatchError):
            ckpt.restore({"shape": np.zeros(1), "dtype": np.zeros(4, np.int8)}, strict=False)

    ranks(body)


def test_a_state_with_no_name_in_common_is_refused_even_then(ranks, saved):
    """Going on from fresh weights as if they had been restored is the worst outcome."""

    def body(comm):
        with hc.Checkpointer(saved, comm=comm) as ckpt, pytest.raises(errors.StateMismatchError):
            ckpt.restore({"model/w": np.zeros(1)}, strict=False)

    ranks(body)


def test_a_tensor_that_became_an_object_is_named(ranks, saved):
    def body(comm):
        state = {
            **{name: np.zeros_like(value) for name, value in SAVED.items() if name != "epoch"},
            "epoch": np.zeros(1),
        }
        with hc.Checkpointer(saved, comm=comm) as ckpt, pytest.raises(errors.StateMismatchError, match="epoch"):
            ckpt.restore(state)

    ranks(body)


def test_a_value_of_each_rank_that_became_an_array_is_one_difference(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"a": hc.PerRank({"n": 1}), "b": np.zeros(2)}).result()
        with pytest.raises(errors.StateMismatchError) as caught:
            ckpt.restore({"a": np.zeros(3), "b": hc.PerRank(None)})
    text = str(caught.value)
    assert "'a': is a JSON value of each rank in the checkpoint and something else in the state; " in text
    assert "'b': is a JSON value of each rank in the state and something else in the checkpoint; " in text
    assert "json'" not in text


@pytest.mark.counts(1, 2, 5)
def test_a_mismatch_on_one_rank_is_raised_on_all(ranks, saved):
    def body(comm):
        state = {name: np.zeros_like(value) for name, value in SAVED.items() if name != "epoch"} | {"epoch": 0}
        if comm.rank == comm.size - 1:
            state["shape"] = np.zeros((3, 2))
        with hc.Checkpointer(saved, comm=comm) as ckpt, pytest.raises(errors.StateMismatchError) as caught:
            ckpt.restore(state)
        return dict(caught.value.failures).keys() == {comm.size - 1}, float(np.sum(state["same"]))

    assert ranks(body) == [(True, 0.0)] * ranks.size


def test_an_object_that_was_saved_and_is_wanted_is_the_only_difference_that_fits(ranks, saved):
    def body(comm):
        state = {name: np.zeros_like(value) for name, value in SAVED.items() if name != "epoch"}
        with hc.Checkpointer(saved, comm=comm) as ckpt:
            restored = ckpt.restore(state, strict=False)
        return restored.unexpected, restored.missing

    assert ranks(body) == [(("epoch",), ())] * ranks.size


# -- states that cannot be saved -----------------------------------------------------------------


class Opaque:
    """Nothing that can be saved."""


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNFIT = {
    "an object of no known kind": ({"a": Opaque()}, "Opaque cannot be saved"),
    "an array of objects": ({"a": np.array([None])}, "dtype object"),
    "a structured array": ({"a": np.zeros(2, [("x", "i4")])}, "cannot be saved"),
    "a NumPy generator": ({"a": np.random.default_rng(1)}, "pass PerRank(rng.bit_generator.state), and after"),
    "a RandomState": ({"a": np.random.RandomState(1)}, "default_rng(seed), and pass PerRank(rng.bit_generator.state)"),
    "a function": ({"a": len}, "cannot be saved"),
    "a set": ({"a": {1, 2}}, "cannot be saved"),
    "bytes": ({"a": b"x"}, "cannot be saved"),
    "a key that is no string": ({"a": {1: np.zeros(1)}}, "key 1 is not a string"),
    "a name with an empty part": ({"a": {"": np.zeros(1)}}, "empty"),
    "a name that climbs": ({"..": {"x": np.zeros(1)}}, "'..'"),
    "a name with a control character": ({"a\n": np.zeros(1)}, "control character"),
    "a name with half a character": ({"\ud800": np.zeros(1)}, "Unicode"),
    "text with half a character": ({"a": "\ud800"}, "cannot be saved"),
    "a name of safetensors": ({"__metadata__": np.zeros(1)}, "reserved"),
    "a name too long": ({"x" * 5000: np.zeros(1)}, "longer than"),
    "a name twice": ({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, "twice"),
    "a per-rank object that is no JSON": ({"a": hc.PerRank(Opaque())}, "per-rank"),
    "a list in itself": ({"a": circular()}, "nested too deep"),
    "an array of elements without bytes": ({"a": np.zeros(2, "V0")}, "a: dtype |V0"),
    "per-rank elements without bytes": ({"a": hc.PerRank(np.zeros(2, "V0"))}, "a: dtype |V0"),
    "a shard of elements without bytes": ({"a": hc.Sharded(np.zeros(2, "V0"), (2,), (0,))}, "a: dtype |V0"),
    "an empty array of a shape that no file has": ({"a": np.zeros((0, 1 << 58))}, "'a'"),
    "an int4 array": ({"a": np.zeros(2, __import__("ml_dtypes").int4)}, "int4"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_saved_is_named_on_every_rank_before_anything_is_written(ranks, run_dir, case):
    state, text = UNFIT[case]

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StateError) as caught:
            ckpt.save(1, state if comm.rank == comm.size - 1 else {"fine": np.zeros(1)})
        return str(caught.value)

    for message in ranks(body):
        assert text in message
        assert f"rank {ranks.size - 1}" in message
    assert os.listdir(run_dir) == [journal.NAME]  # which has the failure


def test_a_state_too_large_for_a_manifest_is_refused_and_the_last_step_stays(ranks, run_dir, monkeypatch):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1) as ckpt:
            ckpt.save(1, {"w": np.zeros(1), "log": ""}).result()
            with pytest.raises(errors.StateError, match="'log' of the state"):
                ckpt.save(2, {"w": np.zeros(1), "log": "x" * 20_000}).result()
            return ckpt.restore({"w": np.zeros(1), "log": ""}).step

    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", 20_000)
    assert ranks(body) == [1] * ranks.size


def test_every_value_that_cannot_be_saved_is_named_at_once(run_dir):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(errors.StateError) as caught:
        ckpt.save(1, {"one": Opaque(), "deep": {"two": {1}, "three": [Opaque(), np.zeros(1)]}})
    assert all(name in str(caught.value) for name in ("one", "deep/two", "deep/three/0"))


@pytest.mark.parametrize(
    "objects", [{"a": Opaque()}, {"a": {1: 2}}, {"a": "\ud800"}, {"a": np.zeros(1)}, {"a": 10**5000}]
)
def test_objects_that_are_no_json_are_refused_on_every_rank(ranks, run_dir, objects):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StateError, match="JSON"):
            ckpt.save(1, {"w": np.zeros(1)}, objects=objects)

    ranks(body)
    assert os.listdir(run_dir) == [journal.NAME]  # which has the failure


@pytest.mark.parametrize("metrics", [{"a": "high"}, {"a": None}, {1: 1.0}, {"a": [1]}, {"a": 10**400}, {"\ud800": 1.0}])
def test_metrics_that_are_no_numbers_are_refused_on_every_rank(ranks, run_dir, metrics):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StateError, match="metrics"):
            ckpt.save(1, {"w": np.zeros(1)}, metrics=metrics)

    ranks(body)
    assert os.listdir(run_dir) == [journal.NAME]  # which has the failure


# -- two names, one memory -------------------------------------------------------------------------


def _saved_pair(ranks, run_dir, a, b):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, backend="rankfile") as ckpt:
            ckpt.save(1, {"a": a, "between": np.zeros(5), "b": b})

    ranks(body)


@pytest.mark.counts(1, 2, 3)
@pytest.mark.parametrize("shape", [(), (7,), (4, 3)])
def test_names_that_share_memory_are_refused_if_their_values_differ(ranks, run_dir, shape):
    _saved_pair(ranks, run_dir, np.full(shape, 1.0), np.full(shape, 2.0))

    def body(comm):
        x, other = np.zeros(shape), np.zeros(5)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            with pytest.raises(errors.StateMismatchError, match=r"'b': has the memory of 'a' .* give each its own"):
                ckpt.restore({"a": x, "between": other, "b": x})
            assert not x.any()
            warnings = ckpt.restore({"a": x, "between": other, "b": x}, strict=False).warnings
        assert (x == 1).all()
        return any("'b' has the memory of 'a' in the state" in text for text in warnings)

    assert all(ranks(body))


@pytest.mark.counts(1, 2, 3)
@pytest.mark.parametrize("box_nbytes", [8, 50, 1 << 20])
def test_names_that_share_memory_are_restored_if_their_values_are_equal(ranks, run_dir, monkeypatch, box_nbytes):
    monkeypatch.setattr("hpcckpt.restoring.aliases._BOX_BYTES", box_nbytes)
    values = np.arange(21.0).reshape(7, 3)
    _saved_pair(ranks, run_dir, values, values.copy())

    def body(comm):
        x = np.zeros_like(values)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore({"a": x, "between": np.zeros(5), "b": x})
        return np.array_equal(x, values)

    assert all(ranks(body))


def _views(x, pair):
    """Return two arrays that share a part of their memory."""
    pairs = {
        "parts": (x[:5], x[3:]),
        "whole and part": (x, x[2:6]),
        "reversed": (x, x[::-1]),
        "transposed": (x[:4].reshape(2, 2), x[:4].reshape(2, 2).T),
        "shards": (hc.Sharded(x, (8,), (0,)), hc.Sharded(x, (8,), (0,))),
        "another type": (x, x.view(np.int64)),
    }
    return pairs[pair]


@pytest.mark.parametrize(
    "pair", ["parts", "whole and part", "reversed", "transposed", "shards", "another type"], ids=str
)
def test_arrays_that_share_a_part_of_their_memory_get_their_values_or_are_refused(run_dir, pair):
    x = np.arange(8.0)
    one, other = (_views(source, pair)[n] for n, source in enumerate((x, x + 1)))
    now = np.zeros(8)
    a, b = _views(now, pair)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"a": one, "b": other}).result()
        with pytest.raises(errors.StateMismatchError, match=r"has the memory of .*give each its own"):
            ckpt.restore({"a": a, "b": b})
        assert not now.any()
        same = _views(x, pair)
        ckpt.save(2, {"a": same[0], "b": same[1]}).result()
        ckpt.restore({"a": a, "b": b})
    np.testing.assert_array_equal(now[:4], x[:4])


class Counter:
    """An object with a state."""

    def __init__(self, n: int) -> None:
        self.n, self.history = n, np.full(3, float(n))

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n, "deep": {"history": self.history}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n, self.history = state["n"], state["deep"]["history"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and (self.n, *self.history) == (other.n, *other.history)

    __hash__ = None


def _same(one: Any, other: Any) -> bool:
    return np.all(one.value == other.value) if isinstance(one, hc.PerRank | hc.RootOnly) else one == other


@pytest.mark.counts(1, 2, 3)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"n": n, "name": "x"},
        lambda n: {"in": {"deep": {"n": np.float32(n)}}},
        lambda n: [np.int64(n), np.int64(3)],
        lambda n: hc.PerRank({"n": [n]}),
        lambda n: hc.PerRank(np.float64(n)),
        lambda n: hc.PerRank(np.full(3, n)),
        lambda n: hc.RootOnly(np.float64(n)),
        Counter,
    ],
    ids=["dict", "deep", "list", "PerRank JSON", "PerRank scalar", "PerRank array", "RootOnly", "state_dict"],
)
def test_one_object_under_two_names_gets_its_value_or_is_refused(ranks, run_dir, make):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"a": make(1), "b": make(1)}).result()
            ckpt.save(2, {"a": make(1), "b": make(2)}).result()
            held = make(0)
            for strict in (True, False):
                with pytest.raises(errors.StateMismatchError, match=r"'b.*': has the memory of 'a.* give each its own"):
                    ckpt.restore({"a": held, "b": held}, step=2, strict=strict)
            assert _same(held, make(0))
            ckpt.restore({"a": held, "b": held}, step=1)
            assert _same(held, make(1))
            one, other = make(0), make(0)
            ckpt.restore({"a": one, "b": other}, step=2)
            return _same(one, make(1)) and _same(other, make(2))

    assert all(ranks(body))


@pytest.mark.parametrize(
    ("saved", "held"),
    [
        ({"a": {}, "b": {"x": 1}}, {}),
        ({"a": {"x": 1}, "b": {"x": 1, "y": 2}}, {}),
        ({"a": {"y": 1}, "b": {"x": 1}}, {}),
        ({"b": {"x": 1}, "c": {"x": 2}}, {"x": 0}),
    ],
    ids=["nothing and one", "one and two", "others", "two of three"],
)
def test_an_object_with_other_parts_under_each_name_is_refused(run_dir, saved, held):
    before = dict(held)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, saved).result()
        with pytest.raises(errors.StateMismatchError, match="has the memory of"):
            ckpt.restore(dict.fromkeys("abc" if "c" in saved else "ab", held), strict=False)
    assert held == before


def test_an_object_under_two_names_is_read_once(run_dir):
    """So that what changes with each reading is the same under both."""

    class Clock:
        def __init__(self) -> None:
            self.n = 0

        def state_dict(self) -> dict[str, Any]:
            self.n += 1
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n = state["n"]

    clock = Clock()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"a": clock, "b": {"clock": clock}}).result()
        ckpt.restore({"a": clock, "b": {"clock": clock}})
    assert clock.n == 1


def test_a_list_under_two_names_that_is_replaced_as_a_whole_gets_both_values(run_dir):
    held = [np.float64(0)]
    state = {"a": held, "b": held}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"a": [np.float64(1)] * 3, "b": [np.float64(2)] * 3}).result()
        ckpt.restore(state)
    assert state == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_views_of_one_array_that_do_not_share_elements_are_restored(run_dir):
    x = np.arange(8.0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"even": x[::2], "odd": x[1::2]}).result()
        now = np.zeros(8)
        ckpt.restore({"even": now[::2], "odd": now[1::2]})
    np.testing.assert_array_equal(now, x)
