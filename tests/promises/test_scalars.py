"""Single numbers come back exactly, whatever kind of number the state had when it was saved, or are refused."""

from __future__ import annotations

import collections
import math
import types
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import StateError, StateMismatchError


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


UNRESTORABLE = {
    "a number in a tuple": {"t": (np.float64(1), np.zeros(2))},
    "JSON in a tuple": {"t": ("a", np.zeros(2))},
    "an array that cannot be written, in a tuple": {"t": (np.broadcast_to(np.float64(1), (3,)), np.zeros(2))},
    "a mapping that takes no values": types.MappingProxyType({"x": 1.0}),
    "a number of RootOnly": {"x": hc.RootOnly(1.0)},
}


@pytest.mark.parametrize("case", UNRESTORABLE)
def test_what_could_not_be_restored_is_refused_when_it_is_saved(run_dir, case):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError):
        ckpt.save(1, UNRESTORABLE[case])


@pytest.mark.parametrize("empty", [collections.defaultdict(list), collections.OrderedDict(), {}], ids=repr)
def test_an_empty_mapping_stays_what_it_is(run_dir, empty):
    assert saved_and_restored(run_dir, empty, empty) is empty
