"""Trainings that are killed and resumed, in a short form: with Horovod, and with PyTorch; the others are long."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.mark.parametrize(
    ("number", "module"),
    [
        pytest.param(1, "horovod", marks=[pytest.mark.tf, pytest.mark.horovod]),
        pytest.param(3, "torch", marks=pytest.mark.torch),
    ],
)
def test_a_training_that_is_killed_and_resumed_ends_as_the_uninterrupted_one(short_form, number, module):
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    assert short_form("resume", 1, first=number).verdicts == {"good": 1}
