"""A dtype token names one format of bytes, on every machine; what describes a tensor can be sent."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core import dtypes
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import ConfigError, StateError


@pytest.fixture
def other_machine(monkeypatch):
    """Return a function that makes this machine one whose long doubles are not x86's."""

    def forget() -> None:
        dtypes.numpy_dtype.cache_clear()
        dtypes.dtype_token.cache_clear()

    def change() -> None:
        monkeypatch.setattr(dtypes, "has_x87", lambda: False)
        forget()

    yield change
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_long_doubles_of_x86_are_not_read_as_those_of_another_machine(run_dir, other_machine, dtype):
    with hc.Checkpointer(run_dir, async_save=False) as ckpt:
        ckpt.save(1, {"w": np.ones(3, dtype)})
    other_machine()
    with pytest.raises(ConfigError, match="80-bit floating-point number of x86"):
        hc.load(run_dir)


def test_long_doubles_of_another_machine_are_not_saved_as_those_of_x86(run_dir, other_machine):
    other_machine()
    with (
        hc.Checkpointer(run_dir, async_save=False) as ckpt,
        pytest.raises(StateError, match="convert it to a plain numeric dtype"),
    ):
        ckpt.save(1, {"w": np.ones(3, np.longdouble)})


@pytest.mark.parametrize("sent", [Extent((0, 4), (2, 3)), TensorSpec("w", "float32", (2, 7), "sharded")])
def test_extents_and_specs_are_equal_after_they_were_sent(sent):
    assert pickle.loads(pickle.dumps(sent)) == sent
