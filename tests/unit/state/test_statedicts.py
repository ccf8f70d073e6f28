"""What a state_dict holds comes back as it was, into an object that may not have it yet."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import CollectiveError, StateError, StateMismatchError
from hpcckpt.state.state_dict import TYPES
from hpcckpt.state.tree import Parts, flatten

pytestmark = pytest.mark.one_case


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = 1
    BLUE = 2


class Box:
    """Holds whatever it is given."""

    def __init__(self, **held: Any) -> None:
        self.held: dict[Any, Any] = held

    def state_dict(self) -> dict[Any, Any]:
        return self.held

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.held = state


def come_back(run_dir: Any, held: dict[Any, Any], now: dict[Any, Any]) -> dict[Any, Any]:
    """Save one state_dict, restore it into an object with another, and return what that got."""
    box = Box()
    box.held = now
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"box": _boxed(held)}).result()
        assert ckpt.restore({"box": box}).warnings == ()
    return box.held


def _boxed(held: dict[Any, Any]) -> Box:
    box = Box()
    box.held = held
    return box


VALUES = {
    "integer keys": {0: {"m": np.arange(3.0)}, 10: {"m": np.ones(2)}, 2: {"m": np.zeros(1)}},
    "keys that look like numbers": {"0": np.arange(3.0), "1": np.ones(2)},
    "keys of any kind": {("a", (1, None)): np.ones(1), None: np.ones(2), True: 1, 2.5: "x", "x": 3},
    "keys with slashes": {"a/b": np.ones(1), "a": {"b": np.ones(2)}, "": 1, ".": 2, "..": 3, "%2F": 4},
    "a list of arrays": [np.ones(2), {"a": np.zeros(3), "b": [np.ones(1)]}, 4],
    "a tuple of arrays": (np.ones(2), (1, 2), None),
    "tuples": {"betas": (0.9, 0.999), "words": ("a", None)},
    "sets and bytes": {"set": {3, 1, 2}, "frozen": frozenset("ab"), "bytes": b"\0\xff", "none": b""},
    "sets of NumPy scalars": {"set": {np.int64(7), np.int64(5)}, "frozen": frozenset({np.float32(0.1), np.str_("a")})},
    "sets of any scalars and tuples": {"mixed": {1, "1", None, 2.5, False}, "tuples": {(1, 2), (3, ("a", np.int8(4)))}},
    "numbers": {"complex": 1 + 2j, "scalar": np.float32(1.5), "large": 2**80, "nan": -np.inf},
    "empty containers": {"dict": {}, "list": [], "tuple": (), "array": np.empty((0, 3))},
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("now", ["nothing", "something else", "the same"])
def test_values_of_any_kind_come_back_into_an_object_that_has(run_dir, kind, now):
    held = {"value": VALUES[kind], "plain": 1}
    value = {"nothing": {}, "something else": {"z": np.ones(7), 0: [1]}, "the same": VALUES[kind]}[now]
    found = come_back(run_dir, held, {"value": value, "plain": 0})
    assert found.keys() == held.keys()
    assert_same(found["value"], VALUES[kind])


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    else:
        assert found == expected


def test_kinds_of_dicts_are_those_that_the_object_has(run_dir):
    held = {"count": Counter({3: 1, 7: 2}), "ordered": OrderedDict(b=1, a=2), "default": defaultdict(list, a=[1])}
    now = {"count": Counter(), "ordered": OrderedDict(), "default": defaultdict(list), "point": Point(0, 0)}
    found = come_back(run_dir, held | {"point": Point(1, 2)}, now)
    assert found["count"] == Counter({3: 1, 7: 2})
    assert type(found["count"]) is Counter
    assert type(found["ordered"]) is OrderedDict
    assert found["default"]["nothing"] == []
    assert found["point"] == Point(1, 2)
    assert type(found["point"]) is Point


def test_an_ordered_dict_and_a_named_tuple_of_arrays_come_back_as_they_were(run_dir):
    held = {"cache": OrderedDict({3: 1, 1: 2}), "names": OrderedDict(b=1, a=np.ones(2)), "point": Point(np.ones(2), 3)}
    now = {"cache": OrderedDict(), "names": OrderedDict(), "point": Point(np.zeros(2), 0)}
    found = come_back(run_dir, held, now)
    assert found["cache"] == held["cache"]
    assert list(found["names"]) == ["b", "a"]
    assert type(found["point"]) is Point
    assert (found["point"].x.tolist(), found["point"].y) == ([1, 1], 3)


def test_an_ordered_dict_keeps_what_the_checkpoint_has_not(run_dir):
    def held(**more):
        return Box(m=OrderedDict(b=np.ones(2), a=np.zeros(1), known=Box(n=1), **more))

    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"o": held()}).result()
    now = held(new=Box(n=2))
    with hc.Checkpointer(run_dir) as ckpt:
        assert any("o/m/new" in warning for warning in ckpt.restore({"o": now}, strict=False).warnings)
    assert list(now.held["m"]) == ["b", "a", "known", "new"]


def test_items_of_a_set_are_in_the_same_order_on_all_ranks():
    small, large = {"b", 2, None, (3, 1)}, {"b", 2, None, (3, 1), *map(str, range(100))} - {*map(str, range(100))}
    stored = [flatten({"box": Box(seen=value)}).objects["box/seen"].read() for value in (small, large)]
    assert stored[0] == stored[1]


def test_tuples_within_json_come_back_where_the_object_has_some(run_dir):
    found = come_back(run_dir, {"a": [{"b": (1, [2, (3,)])}]}, {"a": [{"b": (0, [0, (0,)])}]})
    assert found["a"] == [{"b": (1, [2, (3,)])}]


def test_names_are_paths_and_lists_of_json_are_one_value():
    tree = flatten({"opt": Box(state={0: {"m": np.ones(2)}}, groups=[{"lr": 0.1, "params": [0]}])})
    assert list(tree.tensors) == ["opt/state/0/m"]
    assert list(tree.objects) == ["opt/groups"]


def test_what_names_do_not_show_stands_in_one_more_value():
    tree = flatten({"box": Box(items=[np.ones(2), 3])})
    assert tree.objects[f"box/{TYPES}"].read() == {"items": "list"}


def test_arrays_that_are_there_are_filled_in_place(run_dir):
    held = {"a": np.zeros(5), "deep": {"b": np.zeros(5)}}
    arrays = held["a"], held["deep"]["b"]
    found = come_back(run_dir, {"a": np.ones(5), "deep": {"b": np.ones(5)}}, held)
    assert (found["a"] is arrays[0], found["deep"]["b"] is arrays[1]) == (True, True)
    assert [array.sum() for array in arrays] == [5, 5]


def test_containers_take_the_shape_of_the_checkpoint(run_dir):
    found = come_back(run_dir, {"of": {"x": np.ones(3), "y": 1}}, {"of": {"x": np.zeros(7), "z": np.zeros(2), "w": 5}})
    assert found["of"].keys() == {"x", "y"}
    assert found["of"]["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("now", "complaint"),
    [
        ({"a": np.zeros(3), "new": 1}, "'box/new': is in the state but not in the checkpoint"),
        ({}, "'box/a': is in the checkpoint but not in the state"),
        ({"a": np.zeros(4)}, "'box/a': has shape"),
    ],
)
def test_keys_and_tensors_at_the_top_have_to_be_the_same(run_dir, now, complaint):
    with pytest.raises(StateMismatchError, match=complaint):
        come_back(run_dir, {"a": np.ones(3)}, now)


def test_without_strict_an_object_gets_what_there_is_and_keeps_the_rest(run_dir):
    box = Box(a=np.zeros(3), new=1)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"box": Box(a=np.ones(3), old=2)}).result()
        ckpt.restore({"box": box}, strict=False)
    assert box.held["a"].tolist() == [1, 1, 1]
    assert box.held["new"] == 1


def test_an_object_of_which_the_checkpoint_has_nothing_is_not_loaded(run_dir):
    box = Box(a=1)
    box.load_state_dict = None
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(2)}).result()
        restored = ckpt.restore({"w": np.zeros(2), "box": box}, strict=False)
    assert restored.missing == ("box/a",)


def test_objects_within_a_state_dict_are_asked_themselves(ranks, run_dir):
    def body(comm):
        inner = Box(deep={0: np.zeros(2)})
        outer = Box(inner=inner, own=hc.PerRank(np.zeros(1)), n={})
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            own = hc.PerRank(np.full(1, comm.rank + 1.0))
            ckpt.save(1, {"o": Box(inner=Box(deep={0: np.ones(2), 1: np.ones(3)}), own=own, n={"x": 1})}).result()
            ckpt.restore({"o": outer})
        assert inner.held["deep"][1].tolist() == [1, 1, 1]
        assert outer.held["inner"] is inner
        assert outer.held["n"] == {"x": 1}
        return outer.held["own"].value[0]

    assert ranks(body) == [rank + 1.0 for rank in range(ranks.size)]


class Counting(dict[str, Any]):
    """Counts how many names are read in iterations."""

    n_read = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.n_read += 1
            yield name


@pytest.mark.parametrize(
    "state",
    [
        {str(number): Box(w=np.zeros(2), n=1) for number in range(100)},
        {"box": Box(**{str(number): Box(w=np.zeros(2), n=1) for number in range(100)})},
        {str(number): {} for number in range(100)},
    ],
    ids=["state_dicts", "state_dicts within one", "empty dicts"],
)
def test_the_cost_of_a_restore_grows_with_the_names_not_with_their_square(state):
    def names(kind: str, each: int) -> str:
        return f"{'box/' if 'box' in state else ''}{each}/{kind}"

    specs = Counting({names("w", each): TensorSpec(names("w", each), "float64", (2,)) for each in range(100)})
    objects = Counting({names("n", each): 2 for each in range(100)})
    found = flatten(state).resolved(specs, objects)
    assert {*found.tensors} == {*specs.keys()}
    assert {*found.objects} == {*objects.keys()}
    assert specs.n_read + objects.n_read <= 10 * (len(specs) + len(objects))


def test_a_failing_load_state_dict_fails_alike_on_all_ranks(ranks, run_dir):
    class Fails(Box):
        def load_state_dict(self, state):
            raise KeyError("mine")

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"box": Box(a=1)}).result()
            with pytest.raises(CollectiveError, match="mine"):
                ckpt.restore({"box": Fails(a=0)})

    ranks(body)


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ({"a": {object(): 1}}, "cannot be saved as a key"),
        ({"a": {"1" * 5000: 1}}, "longer than 4096 characters"),
        ({"a": {10**5000: 1}}, "box/a: a int of this size cannot be saved as a key"),
        ({"a": {"b": {Colour.RED, Colour.BLUE}}}, "box/a/b: a Colour cannot be saved as an item of a set"),
        ({"a": {b"x"}}, "box/a: a bytes cannot be saved as an item of a set"),
        ({"a": {np.longdouble(1)}}, "box/a: a longdouble cannot be saved as an item of a set"),
        ({"a": {np.datetime64("2026-01-01")}}, "box/a: a datetime64 cannot be saved as an item of a set"),
        ({"a": {(1, frozenset())}}, "box/a: a tuple cannot be saved as an item of a set"),
        ({"a": {1j, 2j}}, "box/a: a complex cannot be saved as an item of a set"),
        *(
            ({"a": value}, "box/a: .* cannot be saved")
            for value in (deque([1]), range(3), date(2026, 1, 1), Path("a"), Fraction(1, 3), Decimal("0.1"), Colour.RED)
        ),
        ({"a": len}, "cannot be saved"),
        ({".types": np.ones(1)}, "box/.types: has a name that hpcckpt uses itself"),
        ({".types": 1}, "box/.types: has a name that hpcckpt uses itself"),
        ([1], "returned a list"),
    ],
)
def test_what_cannot_be_saved_is_named(held, complaint):
    with pytest.raises(StateError, match=complaint):
        flatten({"box": _boxed(held)})


def test_an_older_step_is_taken_whole_where_the_newest_is_damaged(run_dir, damage):
    box = Box(of={})
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"box": Box(of={"x": np.ones(3)})}).result()
        newest = ckpt.save(2, {"box": Box(of={"x": np.full(3, 2.0)})}).result()
        damage.flip(damage.first_file(newest.path), -1)
        assert ckpt.restore({"box": box}).step == 1
    assert box.held["of"]["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "types",
    [3, {"items": 3}, {"items": {"keys": [["0", 1]]}}, {"items": {"keys": []}}, {"": "list"}, {"items": "torch"}],
)
def test_types_that_say_nonsense_do_no_harm(run_dir, damage, types):
    def change(document):
        document["objects"]["state"][f"box/{TYPES}"] = types

    with hc.Checkpointer(run_dir) as ckpt:
        saved = ckpt.save(1, {"box": Box(items=[np.ones(2), 3])}).result()
        damage.reseal(saved.path / "manifest.json", change)
        box = Box(items=[])
        try:
            ckpt.restore({"box": box})
        except StateMismatchError:
            assert box.held == {"items": []}


def test_parts_leave_what_is_not_asked_for(run_dir):
    state = {"a": np.zeros(2), "ab": np.zeros(2)}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"a": np.ones(2), "ab": np.ones(2), "other": {"x": 1, "y": np.ones(1)}}).result()
        restored = ckpt.restore(Parts(state))
        with pytest.raises(StateMismatchError, match="is in the state but not in the checkpoint"):
            ckpt.restore(Parts({"new": np.ones(1)}))
    assert restored.warnings == ()
    assert state["ab"].tolist() == [1, 1]
