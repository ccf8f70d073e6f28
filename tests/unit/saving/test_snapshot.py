"""Copies of a state in memory: what they hold, and how much memory making them takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hpcckpt.core.plan import WriteItem
from hpcckpt.native.arena import ArenaPool
from hpcckpt.saving import snapshot
from hpcckpt.state.tree import flatten

N_ARRAYS, NBYTES = 8, 1 << 20


def test_arrays_in_fortran_order_are_made_contiguous_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BATCH_BYTES", NBYTES)
    state = {f"t{n}": np.asfortranarray(np.arange(NBYTES // 8).reshape(256, -1) + n) for n in range(N_ARRAYS)}
    tree = flatten(state)
    items = [WriteItem(d.spec, d.extent, 0, d.extent.n_elements) for d in tree.declarations]
    tracemalloc.start()  # it counts NumPy's arrays, and not the arena
    try:
        taken = snapshot.take(tree, items, ArenaPool(1), threads=2)
        assert tracemalloc.get_traced_memory()[1] < 3 * NBYTES
    finally:
        tracemalloc.stop()
    expected = {name: array.tobytes() for name, array in state.items()}
    assert {payload.item.spec.name: payload.data.tobytes() for payload in taken.payloads} == expected
