"""Jobs that are killed again and again, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow]


def test_killed_jobs_lose_nothing(short_form):
    short_form("kills", 10)
