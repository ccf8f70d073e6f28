"""Made-up checkpoints whose every checksum fits, in a short form."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.stack_b, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_made_up_checkpoint_is_read_or_refused(short_form):
    tally = short_form("fuzz", 40)
    assert tally.figures["accepted of each dozen"].total > 40, "too few are accepted to reach far"
