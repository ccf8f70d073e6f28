"""Single numbers come back exactly, whatever kind of number the state had when it was saved, or are refused."""

from __future__ import annotations

import collections
import enum
import math
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import hpcckpt as hc
from hpcckpt.errors import CorruptError, StateError, StateMismatchError
from hpcckpt.restoring.scalars import as_array, as_python
from hpcckpt.state.leaves import cast_like

pytestmark = pytest.mark.stack_b


def saved_and_restored(run_dir: Any, before: Any, after: Any, *, strict: bool = True) -> Any:
    """Save one number, restore it into a state that has another, and return what the state has then."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"u": np.arange(3.0), "x": before}).result()
    state = {"u": np.zeros(3), "x": after}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state, strict=strict)
    assert state["u"].tolist() == [0.0, 1.0, 2.0]
    return state["x"]


PAIRS = {
    "float64 into float": (np.float64(0.1), 0.0, 0.1),
    "float32 into float": (np.float32(0.1), 0.0, float(np.float32(0.1))),
    "float16 into float": (np.float16(0.1), 0.0, float(np.float16(0.1))),
    "NaN into float": (np.float64("nan"), 0.0, math.nan),
    "minus zero into float": (np.float64(-0.0), 0.0, -0.0),
    "minus zero into int": (np.float64(-0.0), 0, -0.0),
    "int64 into int": (np.int64(-(2**63)), 0, -(2**63)),
    "uint64 into int": (np.uint64(2**64 - 1), 0, 2**64 - 1),
    "int64 into float": (np.int64(3), 0.0, 3.0),
    "a large int64 into float": (np.int64(2**53 + 1), 0.0, 2**53 + 1),
    "whole float64 into int": (np.float64(3.0), 0, 3),
    "float64 into int": (np.float64(3.5), 0, 3.5),
    "bool_ into bool": (np.bool_(True), False, True),
    "float64 into None": (np.float64(0.5), None, 0.5),
    "0-d array into float": (np.array(0.25), 0.0, 0.25),
    "float into float64": (0.1, np.float64(0), np.float64(0.1)),
    "NaN into float64": (math.nan, np.float64(0), np.float64("nan")),
    "float into float32": (0.5, np.float32(0), np.float32(0.5)),
    "int into int32": (-7, np.int32(0), np.int32(-7)),
    "int into float64": (7, np.float64(0), np.float64(7)),
    "bool into bool_": (True, np.bool_(False), np.bool_(True)),
    "float32 into float64": (np.float32(0.1), np.float64(0), np.float64(np.float32(0.1))),
    "float64 into float32": (np.float64(0.5), np.float32(0), np.float32(0.5)),
    "int64 into int32": (np.int64(9), np.int32(0), np.int32(9)),
    "complex into float": (np.complex128(2.5), 0.0, 2.5),
    "longer text into text": (np.str_("abc"), np.str_("a"), np.str_("abc")),
    "longer bytes into bytes": (np.bytes_(b"abc"), np.bytes_(b""), np.bytes_(b"abc")),
    "text of NumPy's into text": (np.str_("abc"), "", "abc"),
    "text into text of NumPy's": ("abc", np.str_("a"), np.str_("abc")),
}


@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("strict", [True, False])
def test_a_number_comes_back_exactly_in_the_type_of_the_state(run_dir, case, strict):
    before, after, expected = PAIRS[case]
    found = saved_and_restored(run_dir, before, after, strict=strict)
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def test_a_python_number_comes_back_in_place_into_an_array_without_axes(run_dir):
    target = np.array(0.0)
    assert saved_and_restored(run_dir, 0.1, target) is target
    assert target.item() == 0.1


LOSSES = {
    "float into float32": (0.1, np.float32(0)),
    "float64 into float32": (np.float64(0.1), np.float32(0)),
    "float into int64": (0.5, np.int64(0)),
    "NaN into int64": (math.nan, np.int64(0)),
    "a large int into int64": (2**64, np.int64(0)),
    "a negative int into uint8": (-1, np.uint8(0)),
    "a large int into float64": (2**53 + 1, np.float64(0)),
    "minus zero into int64": (-0.0, np.int64(0)),
    "two into bool": (2, np.bool_(False)),
    "complex into float": (np.complex128(1j), 0.0),
    "text into float64": ("0.5", np.float64(0)),
    "float64 into text": (np.float64(0.5), "0.5"),
    "text into an array of shorter text": (np.array("abc"), np.array("a")),
    "an array into float": (np.zeros(1), 0.0),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_number_that_the_state_cannot_hold_is_refused_and_nothing_changes(run_dir, case):
    before, after = LOSSES[case]
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"u": np.arange(3.0), "x": before}).result()
    state = {"u": np.zeros(3), "x": after}
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateMismatchError, match="'x'"):
        ckpt.restore(state)
    assert state["u"].tolist() == [0.0] * 3
    assert state["x"] is after
    with hc.Checkpointer(run_dir) as ckpt:
        restored = ckpt.restore(state, strict=False)
    assert any("'x'" in text and "left as it is" in text for text in restored.warnings)
    assert state["u"].tolist() == [0.0, 1.0, 2.0]
    assert state["x"] is after


def test_numbers_come_back_on_other_ranks_of_root_too(run_dir, group):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"energy": np.float64(0.1), "mine": hc.RootOnly(np.float64(comm.rank + 0.5))}).result()

    def restore(comm):
        state = {"energy": 0.0, "mine": hc.RootOnly(np.float64(0))}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(state)
        return state["energy"], state["mine"].value

    group(2, save)
    assert group(3, restore) == [(0.1, 0.5)] * 3


def test_a_number_is_restored_into_its_own_type_within_wrappers(run_dir):
    state = {"own": hc.PerRank(np.float64(0.5)), "root": hc.RootOnly(np.int64(7))}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state).result()
    state["own"].value, state["root"].value = np.float64(0), np.int64(0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state)
    assert (type(state["own"].value), state["own"].value) == (np.float64, 0.5)
    assert (type(state["root"].value), state["root"].value) == (np.int64, 7)


OWN = PAIRS | {
    "None into float64": (None, np.float64(1), None),
    "tuple into list": ((1, 2.5, None), [0], [1, 2.5, None]),
    "list into tuple": ([1, (2, 3)], (0, (0, 0)), (1, (2, 3))),
}


@pytest.mark.parametrize("case", OWN)
def test_a_number_of_each_rank_comes_back_whatever_kind_of_number_it_was(run_dir, case):
    before, after, expected = OWN[case]
    state = {"x": hc.PerRank(after)}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": hc.PerRank(before)}).result()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state)
    assert repr(state["x"].value) == repr(expected)


@pytest.mark.parametrize("case", [each for each in LOSSES if "text" not in each and "complex" not in each])
def test_a_number_of_each_rank_that_the_state_cannot_hold_is_refused(run_dir, case):
    before, after = LOSSES[case]
    state = {"x": hc.PerRank(after)}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": hc.PerRank(before)}).result()
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateMismatchError, match="'x"):
        ckpt.restore(state)
    assert state["x"].value is after


FORMS = {"Python": float, "NumPy": np.float64, "array": np.array}


@pytest.mark.parametrize("after", FORMS)
@pytest.mark.parametrize("before", FORMS)
def test_each_rank_gets_its_own_number_or_on_other_ranks_a_warning(run_dir, group, before, after):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"n": 7, "x": hc.PerRank(FORMS[before](comm.rank + 0.5))}).result()

    def restore(comm):
        state = {"n": 0, "x": hc.PerRank(FORMS[after](0.0))}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            restored = ckpt.restore(state)
        return state["n"], float(state["x"].value), ['state["x"]' in text for text in restored.warnings]

    group(2, save)
    assert group(2, restore) == [(7, 0.5, []), (7, 1.5, [])]
    assert group(3, restore) == [(7, 0.0, [True])] * 3


LISTS = {
    "NumPy into Python": ([np.float64(0.1), np.int32(2)], [0.0, 0], [0.1, 2]),
    "Python into NumPy": ([0.5, 2], [np.float32(0), np.int64(0)], [np.float32(0.5), np.int64(2)]),
    "mixed into Python": ([1, np.float64(0.1), "a", None], [0, 0.0, "", None], [1, 0.1, "a", None]),
    "Python into mixed": ([1, 0.1, "a"], [0, np.float64(0), np.str_("")], [1, np.float64(0.1), np.str_("a")]),
    "mixed into mixed": ([np.float64(0.1), 2], [0.0, np.int64(0)], [0.1, np.int64(2)]),
    "NumPy into an empty list": ([np.float64(0.1), np.str_("a")], [], [0.1, "a"]),
    "NumPy into a shorter list of NumPy": ([np.float64(0.1)] * 3, [np.float64(0)], [0.1] * 3),
    "NumPy into a longer list of NumPy": ([np.float64(0.1)], [np.float64(0)] * 3, [0.1]),
    "Python into a longer list of NumPy": ([0.1], [np.float64(0)] * 3, [0.1]),
    "NumPy into a longer list of Python": ([np.float64(0.1)], [0.0] * 3, [0.1]),
    "nested": ([[1, np.float64(2)], [3]], [[0, 0.0], [0]], [[1, 2.0], [3]]),
    "nested, the inner one NumPy now": ([[1, 2.0], [3]], [[0, np.float64(0)], [0]], [[1, np.float64(2)], [3]]),
    "dicts": ([{"a/b": np.float64(1), "c": 2}], [{"a/b": 0.0, "c": 0}], [{"a/b": 1.0, "c": 2}]),
    "dicts of NumPy": (
        [{"a/b": 1.0, "0": [2]}],
        [{"a/b": np.float64(0), "0": [0]}],
        [{"a/b": np.float64(1), "0": [2]}],
    ),
    "dicts of NumPy into an empty list": (
        [{"loss": np.float32(1), "n": 2}, {"loss": np.float32(2)}],
        [],
        [{"loss": 1.0, "n": 2}, {"loss": 2.0}],
    ),
    "dicts of NumPy into a shorter list": (
        [{"a/b": np.float32(1), "c": [np.int8(2)]}] * 2,
        [{"a/b": np.float32(0), "c": [0]}],
        [{"a/b": 1.0, "c": [2]}] * 2,
    ),
    "lists of NumPy into a shorter list": ([[1, np.float64(2)]] * 2, [[0, np.float64(0)]], [[1, 2.0]] * 2),
    "0-d arrays into a tuple": ((np.array(0.5), np.array(2)), (0.0, 0), (0.5, 2)),
    "what Python has no number for, into an empty list": ([np.complex64(1j)], [], [np.complex64(1j)]),
    "complex into float": ([np.complex64(1j)], [0.0], [np.complex64(1j)]),
    "dates into an empty list": ([np.datetime64("2026-11-23")], [], [np.datetime64("2026-11-23")]),
}


@pytest.mark.parametrize("case", LISTS)
def test_numbers_in_lists_come_back_whatever_kind_of_numbers_they_were(run_dir, case):
    before, after, expected = LISTS[case]
    assert repr(saved_and_restored(run_dir, before, after)) == repr(expected)


def test_a_tuple_comes_back_as_a_tuple_where_the_state_has_one(run_dir):
    assert saved_and_restored(run_dir, (1, [2, (3,)]), (0, [0, (0,)])) == (1, [2, (3,)])


def test_arrays_without_axes_in_a_list_are_filled_in_place(run_dir):
    after = [np.array(0.0), np.array(0)]
    arrays = list(after)
    assert saved_and_restored(run_dir, [0.5, 2], after) == [0.5, 2]
    assert after[0] is arrays[0]
    assert after[1] is arrays[1]


class Counting:
    """An object with a ``state_dict``."""

    def __init__(self, n):
        self.n = n

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, found):
        self.n = found["n"]


LISTS_THAT_DIFFER = {
    "arrays into an empty list": ([np.zeros(3)], []),
    "lists of NumPy into an empty list": ([[np.float64(1)]], []),
    "dicts whose keys may be paths into an empty list": ([{"a/b": np.float64(1)}], []),
    "objects into an empty list": ([Counting(np.float64(1)), Counting(np.float64(2))], []),
    "objects into a list of None": ([Counting(1), Counting(2)], [None, None]),
    "a longer list into arrays": ([1.0, 2.0], [np.array(0.0)]),
    "a list that lacks an item": ({"0": np.float64(1), "2": np.float64(1)}, [0.0]),
    "what float32 cannot hold": ([0.1], [np.float32(0)]),
}


@pytest.mark.parametrize("case", LISTS_THAT_DIFFER)
def test_a_list_that_does_not_fit_is_refused_and_nothing_changes(run_dir, case):
    before, after = LISTS_THAT_DIFFER[case]
    items = list(after)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"u": np.arange(3.0), "x": before}).result()
    state = {"u": np.zeros(3), "x": after}
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateMismatchError, match="'x"):
        ckpt.restore(state)
    assert state["x"] is after
    assert repr(after) == repr(items)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state, strict=False)
    assert state["u"].tolist() == [0.0, 1.0, 2.0]


DATES = {
    "another unit": (
        np.datetime64("2026-11-23T01", "s"),
        np.datetime64("NaT", "D"),
        np.datetime64("2026-11-23T01", "s"),
    ),
    "a duration": (np.timedelta64(5, "s"), np.timedelta64(0, "ms"), np.timedelta64(5, "s")),
    "other bytes": (np.void(b"abc"), np.void(b"a"), np.void(b"abc")),
    "an array of another unit": (np.array(5, "m8[D]"), np.array(0, "m8[s]"), np.array(5 * 86400, "m8[s]")),
    "None": (None, np.float64(1), None),
    "a shard without axes": (hc.Sharded(np.array(0.5), (), ()), 0.0, 0.5),
}


@pytest.mark.parametrize("case", DATES)
def test_other_single_values_come_back_exactly_too(run_dir, case):
    before, after, expected = DATES[case]
    assert repr(saved_and_restored(run_dir, before, after)) == repr(expected)


def test_a_date_that_the_unit_of_the_array_cannot_hold_is_refused(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": np.datetime64("2026-11-23T01", "s")}).result()
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateMismatchError, match="'x'"):
        ckpt.restore({"x": np.array(0, "M8[D]")})


class Counter:
    """Something with a ``state_dict`` that holds a number in many places."""

    def __init__(self, number):
        self.held = {"x": number, "list": [number, 1], "tuple": (number, 1), "deep": {3: [{"y": number}]}}

    def state_dict(self):
        return self.held | {"own": hc.PerRank(self.held["x"])}

    def load_state_dict(self, state):
        self.held = {**state, "own": state["own"].value}


@pytest.mark.parametrize("after", FORMS)
@pytest.mark.parametrize("before", FORMS)
def test_numbers_of_a_state_dict_come_back_in_any_form(run_dir, before, after):
    found = Counter(FORMS[after](0.0))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"c": Counter(FORMS[before](0.5))}).result()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore({"c": found})
    assert found.held == {"x": 0.5, "list": [0.5, 1], "tuple": (0.5, 1), "deep": {3: [{"y": 0.5}]}, "own": 0.5}


def _as_torch(value):
    return pytest.importorskip("torch").tensor(value, dtype=pytest.importorskip("torch").bfloat16)


def _as_tensorflow(value):
    return pytest.importorskip("tensorflow").Variable(value, dtype="bfloat16")


FRAMEWORKS = [
    pytest.param(_as_torch, id="torch"),
    pytest.param(_as_tensorflow, id="tensorflow", marks=[pytest.mark.tf, pytest.mark.stack_b]),
]


@pytest.mark.parametrize("after", [float, np.float32, None], ids=str)
@pytest.mark.parametrize("before", [float, np.float32, None], ids=str)
@pytest.mark.parametrize("make", FRAMEWORKS)
def test_numbers_and_tensors_without_axes_are_restored_into_one_another(run_dir, make, before, after):
    before, after = before or make, after or make
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": before(0.5), "list": [before(1.5), 2]}).result()
    state = {"x": after(0.0), "list": [after(0.0), 0]}
    tensor = state["x"]
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state)
    assert [float(value) for value in (state["x"], *state["list"])] == [0.5, 1.5, 2.0]
    assert type(state["x"]) is type(tensor)
    assert state["x"] is tensor or after is not make


# -- any value in any form -------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.sampled_from([0.5, -0.0, 3, 2**53 + 1])
)
TOKENS = [
    "bool",
    "int8",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "<f16",
]


def _in_a_form(data: Any, value: Any) -> Any:
    """Return the same number as Python, as a NumPy scalar or as an array, if such a one holds it."""
    found = [value]
    for token in TOKENS:
        array = as_array(value, token)
        found += [] if array is None else [array[()], array.copy()]
    return data.draw(st.sampled_from(found))


def _plain(value: Any) -> Any:
    """Return a state as Python values that compare as equal if the state does."""
    if isinstance(value, hc.PerRank):
        return _plain(value.value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    number = value.item() if hasattr(value, "item") else value
    is_whole = isinstance(number, np.longdouble) and number.is_integer() and number != 0
    number = int(number) if is_whole else as_python(number, None)
    return "nan" if number != number else "-0" if number == 0 and math.copysign(1, number) < 0 else number


def _shape(draw_leaf: Any) -> Any:
    """Return a strategy of containers of numbers."""
    return st.recursive(
        draw_leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "0", "b/c"]), inner, max_size=2)
        ),
        max_leaves=6,
    )


def _map(make: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(make, item) for key, item in value.items()}
    return [_map(make, item) for item in value] if isinstance(value, list) else make(value)


@pytest.mark.parametrize("number", [2**64 + 1, -(2**64) - 1, 2**70 + 1, 2**1100 + 1])
@pytest.mark.parametrize("dtype", ["<f16", "<c32"])
def test_a_long_double_does_not_hold_an_integer_that_it_rounds(number, dtype):
    assert as_array(number, dtype) is None


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan, 0.1, True, 2**64 - 1, 2**64])
def test_a_long_double_holds_what_other_types_hold(number):
    assert repr(float(as_array(number, "<f16").item())) == repr(float(number))


def test_whole_long_doubles_compare_as_integers():
    assert _plain(np.longdouble(2**53 + 1)) == 2**53 + 1
    assert _plain(np.longdouble(-0.0)) == "-0"


@given(data=st.data())
def test_any_numbers_come_back_in_any_form_that_holds_them(tmp_path_factory, data):
    numbers = data.draw(st.dictionaries(st.sampled_from(["x", "y"]), _shape(NUMBERS), min_size=1))
    own = data.draw(NUMBERS)
    before = _map(lambda value: _in_a_form(data, value), numbers)
    after = _map(lambda value: _in_a_form(data, value), numbers)
    after = _map(_zeroed, after)
    run_dir = tmp_path_factory.mktemp("run")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"u": 1, **before, "own": hc.PerRank(_in_a_form(data, own))}).result()
    state = {"u": 0, **after, "own": hc.PerRank(_zeroed(_in_a_form(data, own)))}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state)
    assert _plain(state) == _plain({"u": 1, **numbers, "own": own})


def _zeroed(value: Any) -> Any:
    """Return zero in the form of a number."""
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return type(value)(0)


UNRESTORABLE = {
    "a number in a tuple": {"t": (np.float64(1), np.zeros(2))},
    "JSON in a tuple": {"t": ("a", np.zeros(2))},
    "an array that cannot be written, in a tuple": {"t": (np.broadcast_to(np.float64(1), (3,)), np.zeros(2))},
    "a mapping that takes no values": types.MappingProxyType({"x": 1.0}),
    "a number of RootOnly": {"x": hc.RootOnly(1.0)},
    "NumPy scalars in a list of PerRank": {"x": hc.PerRank([1.0, np.float64(1)])},
    "a complex number of PerRank": {"x": hc.PerRank(1j)},
}


@pytest.mark.parametrize("case", UNRESTORABLE)
def test_what_could_not_be_restored_is_refused_when_it_is_saved(run_dir, case):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError):
        ckpt.save(1, UNRESTORABLE[case])


@pytest.mark.parametrize("empty", [collections.defaultdict(list), collections.OrderedDict(), {}], ids=repr)
def test_an_empty_mapping_stays_what_it_is(run_dir, empty):
    assert saved_and_restored(run_dir, empty, empty) is empty


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 5000 + b"]" * 5000, b"[" * 200 + b"]" * 200, b"1" * 5000])
@pytest.mark.parametrize("now", [None, np.float64(0)])
def test_bytes_that_are_no_json_of_a_rank_are_damage(run_dir, text, now):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": {"json": hc.PerRank(np.frombuffer(text, np.uint8))}}).result()
        with pytest.raises(CorruptError, match="the value 'x' of a rank"):
            ckpt.restore({"x": hc.PerRank(now)}, 1)


# -- what the state has no place for yet ------------------------------------------------------------

HISTORIES = {
    "JSON": {"loss": [1.5, 2.0], "n": 3, "name": "a"},
    "NumPy scalars": {"loss": np.float64(1.5), "0": np.float32(2.0), "1": np.int64(7)},
    "both": {"0": 4, "1": np.float64(2.0)},
}


@pytest.mark.parametrize("case", HISTORIES)
@pytest.mark.parametrize("empty", [dict, lambda: collections.defaultdict(list)], ids=["dict", "defaultdict"])
def test_an_empty_dict_gets_the_values_that_were_saved(run_dir, case, empty):
    now = empty()
    found = saved_and_restored(run_dir, HISTORIES[case], now)
    assert found is now
    assert found == HISTORIES[case]
    assert _types_in(found) == _types_in(HISTORIES[case])


def test_an_empty_dict_gets_the_arrays_that_were_saved(run_dir):
    found = saved_and_restored(run_dir, {"w": np.arange(3.0), "n": 2, "z": np.zeros((0, 4))}, {})
    assert (found["w"].tolist(), found["n"], found["z"].shape) == ([0.0, 1.0, 2.0], 2, (0, 4))
    found["w"][0] = 7.0  # it is the program's own


@pytest.mark.parametrize(
    ("value", "reason"), [(1 << 5000, "more than 4,096 bits"), ("\udc80", "no valid Unicode")], ids=["number", "text"]
)
def test_a_number_or_text_that_is_no_json_is_refused_with_the_reason(run_dir, value, reason):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError, match=f"n: .*{reason}"):
        ckpt.save(1, {"n": value})


def _types_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _types_in(item) for key, item in value.items()}
    return [*map(_types_in, value)] if isinstance(value, list) else type(value)


OBJECT = types.SimpleNamespace(state_dict=lambda: {"t": (1, 2)}, load_state_dict=print)
UNKNOWN = {
    "per rank": {"w": hc.PerRank(1)},
    "object": {"w": OBJECT},
    "a key with a slash": {"train/loss": 1.0, "n": 2},
    "a dict in it": {"a": {"b": 1}},
    "scalars in a list": {"w": [np.float64(1)]},
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_empty_dict_takes_nothing_whose_form_names_do_not_show(run_dir, case):
    now = {}
    with pytest.raises(StateMismatchError, match="'x"):
        saved_and_restored(run_dir, UNKNOWN[case], now)
    assert now == {}


class Phase(enum.IntEnum):
    WARM = 1
    HOT = 2


class Mode(str, enum.Enum):  # noqa: UP042 - as in programs for Python 3.10
    TRAIN = "train"
    TEST = "test"


@pytest.mark.parametrize("value", [[Phase.HOT, Mode.TEST], hc.PerRank(Mode.TEST)], ids=["state", "per rank"])
def test_a_member_of_an_enumeration_comes_back_as_one(run_dir, value):
    now = [Phase.WARM, Mode.TRAIN] if isinstance(value, list) else hc.PerRank(Mode.TRAIN)
    found = saved_and_restored(run_dir, value, now)
    found, expected = (found, value) if isinstance(value, list) else ([found.value], [value.value])
    assert all(one is other for one, other in zip(found, expected, strict=True))


class Strict(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value):
        raise KeyError(value)


@pytest.mark.parametrize(("value", "now"), [(5, Phase.WARM), (True, Phase.WARM), ("text", Phase.WARM)])
def test_a_value_that_an_enumeration_has_not_stays_what_it_is(run_dir, value, now):
    found = saved_and_restored(run_dir, value, now)
    assert (type(found), found) == (type(value), value)
    assert cast_like(7, Strict.ONE) == 7


@pytest.mark.parametrize(
    "make", [np.array, lambda x: np.array(x, ">f8"), lambda x: np.array([x] * 2)[0, :, None][:, 0]]
)
def test_an_array_of_each_rank_is_filled_in_place(run_dir, make):
    own = make([0.0, 0.0])
    now = hc.PerRank(own)
    saved_and_restored(run_dir, hc.PerRank(make([1.0, 2.0])), now)
    assert now.value is own
    assert own.tolist() == [1.0, 2.0]


def test_arrays_of_each_rank_with_the_same_memory_get_a_value_each(run_dir):
    b = np.arange(4.0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"all": b, "first": hc.PerRank(b[:2] + 8), "again": hc.PerRank(b[:2] + 5)}).result()
        now = np.zeros(4)
        state = {"all": now, "first": hc.PerRank(now[:2]), "again": hc.PerRank(now[:2])}
        ckpt.restore(state)
    assert (now.tolist(), state["first"].value.tolist(), state["again"].value.tolist()) == (
        [0.0, 1.0, 2.0, 3.0], [8.0, 9.0], [5.0, 6.0],
    )  # fmt: skip


def test_an_array_of_each_rank_of_another_length_is_replaced(run_dir):
    own = np.zeros(2)
    now = hc.PerRank(own)
    saved_and_restored(run_dir, hc.PerRank(np.arange(3.0)), now)
    assert now.value.tolist() == [0.0, 1.0, 2.0]
    assert own.tolist() == [0.0, 0.0]
