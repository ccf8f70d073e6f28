"""One rank of three differs from the others, in a short form: each kind once, as threads."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_a_rank_that_differs_is_the_same_error_on_all(short_form):
    short_form("misuse", 6, every=5)
