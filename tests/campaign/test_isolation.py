"""Saves in the background of what goes on changing, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.tf]


def test_each_step_holds_its_own_values(short_form):
    short_form("isolation", 18)
