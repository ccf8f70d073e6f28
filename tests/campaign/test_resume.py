"""Trainings that are killed and resumed, in a short form: each kind once."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.tf
@pytest.mark.parametrize("number", range(4), ids=["keras", "horovod", "mpi4py", "torch"])
def test_a_training_that_is_killed_and_resumed_ends_as_the_uninterrupted_one(short_form, number):
    if number == 3 and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    if number == 1 and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    tally = short_form("resume", 1, first=number)
    assert tally.verdicts == {"good": 1}
    assert tally.figures["kills"].total >= 1
