"""The states that are saved: each step's is known in advance, bit for bit, and no two have a value in common."""

from __future__ import annotations

from functools import cache

import numpy as np

State = dict[str, np.ndarray]
N_TENSORS, N_VALUES = 8, 1 << 19
STEPS = 200
"""More than any run lives to save; at some point a harness that does not kill has to end."""


@cache
def _base() -> np.ndarray:
    return np.random.default_rng(7).random((N_TENSORS, N_VALUES), np.float32)


def state_of(step: int) -> State:
    """Return the state after `step` steps."""
    return {f"tensor{number}": row + np.float32(step) for number, row in enumerate(_base())}


def first_state() -> State:
    """Return what a program starts with: step 0."""
    return state_of(0)


def position_of(state: State) -> int | None:
    """Return the step whose state this is, bit for bit, or ``None`` if it is none's."""
    if sorted(state) != sorted(first_state()):
        return None
    step = round(float(state["tensor0"][0] - _base()[0][0]))
    wanted = state_of(step)
    return step if all(np.array_equal(state[name], wanted[name]) for name in wanted) else None
