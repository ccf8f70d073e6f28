"""Jobs that are killed again and again, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_killed_jobs_lose_nothing(short_form):
    short_form("kills", 6)


@pytest.mark.parametrize(("mutant", "first"), [("retired-before-its-successor", 1), ("nothing-is-swept", 2)])
def test_an_engine_that_breaks_the_promise_is_found_out(short_form, monkeypatch, mutant, first):
    monkeypatch.setenv("HPCCKPT_MUTANT", mutant)
    with pytest.raises(AssertionError, match=r"'(wrong|lost)'"):
        short_form("kills", 3, first=first)
