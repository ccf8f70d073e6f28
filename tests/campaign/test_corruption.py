"""Damage to steps on storage, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_damage_is_detected_and_the_newest_good_step_is_found(short_form):
    short_form("corruption", 100)
