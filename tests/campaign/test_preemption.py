"""Jobs that are asked to stop, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_jobs_that_are_asked_to_stop_save_one_step_and_exit_with_75(short_form):
    short_form("preemption", 3)
