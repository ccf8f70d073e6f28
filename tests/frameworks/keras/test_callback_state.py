"""What a callback's ``state_dict`` returned is what its ``load_state_dict`` gets, to the type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcckpt.errors import StateError
from hpcckpt.keras.callbacks import callback_state
from hpcckpt.state.packing import pack


class Counts:
    """Has a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        """Return it."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Replace it."""
        self.state = state


STATES = {
    "integer keys": {"seen": {3: 1.0, 4: 2.0}},
    "one integer key": {"seen": {3: 1.0}},
    "tuples": {"shape": (1, 2), "arrays": (np.ones(2), "x")},
    "numpy scalars": {"f": np.float32(2), "i": np.int64(3), "b": np.bool_(True)},
    "slashes": {"a/b": np.ones(1), "a": {"b": np.zeros(1)}},
    "json": {"none": None, "big": 2**70, "nan": float("inf"), "list": [1, {"a": "b"}], "empty": {}},
    "sets and bytes": {"set": {1, 2}, "bytes": b"abc", "complex": 1j},
    "text": {"arr": np.array(["a", "b"])},
    "nothing": {},
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_state_is_restored_with_its_types(state: Any, is_new: bool) -> None:
    packed = callback_state.take({"Counts": Counts(state)})
    other = Counts({} if is_new else state)
    assert callback_state.give_back({"Counts": other}, packed, {}) == []
    assert other.state is not state
    assert _with_types(other.state) == _with_types(state)


def test_arrays_that_the_callback_has_are_not_written_over() -> None:
    mine = np.zeros(2)
    packed = callback_state.take({"Counts": Counts({"a": np.ones(2)})})
    other = Counts({"a": mine})
    callback_state.give_back({"Counts": other}, packed, {})
    assert np.array_equal(other.state["a"], np.ones(2))
    assert np.array_equal(mine, np.zeros(2))


def test_a_state_of_an_older_version_is_restored() -> None:
    packed = pack({"Counts/a": np.ones(2)}, {"Counts": {"a": {"$array": "Counts/a"}, "n": 3}})
    other = Counts({})
    callback_state.give_back({"Counts": other}, packed, {})
    assert other.state["n"] == 3
    assert np.array_equal(other.state["a"], np.ones(2))


def test_what_cannot_be_saved_is_refused_by_the_callbacks_name() -> None:
    with pytest.raises(StateError, match=r"callback Counts: .*function"):
        callback_state.take({"Counts": Counts({"f": lambda: None})})


def _with_types(value: Any) -> Any:
    """Return a state in a form that compares types too."""
    if isinstance(value, dict):
        return {(type(key), key): _with_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_with_types(item) for item in value]
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.shape, value.tolist()
    return type(value), value
