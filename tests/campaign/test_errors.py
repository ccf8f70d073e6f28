"""File operations that fail, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow]


def test_a_failing_call_is_one_error_everywhere(short_form):
    short_form("errors", 45)
