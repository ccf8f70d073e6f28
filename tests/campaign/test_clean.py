"""Steps that are not damaged, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_clean_step_raises_no_alarm(short_form):
    short_form("clean", 20)
