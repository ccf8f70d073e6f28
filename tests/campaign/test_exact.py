"""Trainings of random elements in a short form: one of which everything can be saved, and one that is not exact."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.tf, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_training_that_is_called_exact_is(short_form, number):
    tally = short_form("exact", 1, first=number)
    assert tally.n_failed == 0
