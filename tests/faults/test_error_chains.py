"""An error of all ranks is one message: no cause in its chain repeats what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors


class Failing:
    """A part of a state whose own code fails."""

    def state_dict(self) -> dict[str, Any]:
        raise ValueError("not now")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""


def test_an_error_of_all_ranks_has_no_cause_that_repeats_it(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            with pytest.raises(errors.StateError, match="cannot be saved") as caught:
                ckpt.save(1, {"w": np.zeros(2), "f": lambda: 1})
            assert caught.value.__suppress_context__
            return caught.value.__cause__

    assert set(ranks(body)) == {None}


def test_the_cause_in_the_code_of_the_program_stays_in_the_chain(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            with pytest.raises(errors.CollectiveError, match="not now") as caught:
                ckpt.save(1, {"w": np.zeros(2), "part": Failing()})
            return repr(caught.value.__cause__)

    assert set(ranks(body)) == {"ValueError('not now')"}


def test_an_option_that_is_wrong_is_one_message(ranks, run_dir):
    def body(comm):
        with pytest.raises(errors.OptionError) as caught:
            hc.Checkpointer(run_dir, comm=comm, max_to_keep=-1)
        return caught.value.__cause__

    assert set(ranks(body)) == {None}
