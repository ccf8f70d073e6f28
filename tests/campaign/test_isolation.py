"""Saves in the background of what goes on changing, in a short form."""

from __future__ import annotations

import pytest

from tests.campaign._isolation_subjects import KINDS

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.tf, pytest.mark.timeout(1800)]


def test_each_step_holds_its_own_values(short_form):
    short_form("isolation", 18)


ALL_KINDS = len(KINDS)  # the case n saves a thing of the kind n modulo this


@pytest.mark.parametrize(("mutant", "first"), [("not-copied", 0), ("held-by-nobody", 3), ("a-pointer-is-enough", 7)])
def test_an_engine_that_breaks_the_promise_is_found_out(short_form, monkeypatch, mutant, first):
    monkeypatch.setenv("HPCCKPT_MUTANT", mutant)
    with pytest.raises(AssertionError, match=r"'(wrong|lost)'"):
        short_form("isolation", 4, first=first, every=ALL_KINDS)
