"""Several checkpointers of one process on one directory, in a short form."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_three_checkpointers_on_one_directory_damage_no_step(short_form):
    short_form("shared", 2)
