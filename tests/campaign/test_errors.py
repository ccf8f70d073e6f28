"""File operations that fail, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_failing_call_is_one_error_everywhere(short_form):
    short_form("errors", 45)


@pytest.mark.parametrize(("mutant", "count"), [("fsync-is-tried-again", 70), ("each-rank-tells-its-own", 20)])
def test_an_engine_that_breaks_the_promise_is_found_out(short_form, monkeypatch, mutant, count):
    monkeypatch.setenv("HPCCKPT_MUTANT", mutant)

    def run() -> None:
        for first in range(0, 6 * count, count):  # which case finds it depends on how many calls a save makes
            short_form("errors", count, first=first)

    with pytest.raises(AssertionError, match=r"'(wrong|lost)'"):
        run()
