"""Many saves with scratch, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_no_save_fails_where_drains_follow_each_other_closely(short_form):
    short_form("scratch", 2)
