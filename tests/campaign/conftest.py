"""The short form of each campaign, as a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.campaign._common import DEFAULT_SEED, load
from tests.campaign._driver import run_cases
from tests.campaign._report import Tally


@pytest.fixture
def short_form(tmp_path: Path) -> Callable[..., Tally]:
    """Run some cases of a campaign; the test fails if anything was lost, wrong or hung."""

    def run(name: str, count: int, *, seed: int = DEFAULT_SEED, first: int = 0, every: int = 1, **limits: Any) -> Tally:
        campaign = load(name)
        reason = campaign.reason_to_skip() if campaign.reason_to_skip else ""
        if reason:
            pytest.skip(reason)
        tally = Tally.of(campaign)
        numbers = range(first, first + count * every, every)
        run_cases(campaign, seed, numbers, lambda n, o: tally.count(seed, n, o), scratch=tmp_path, **limits)
        shown = "\n".join(f"case {f['number']} of seed {seed}: {f['verdict']} {f['text']}" for f in tally.failures)
        assert not (campaign.is_gate and tally.n_failed), f"{tally.verdicts}\n{shown}"
        assert sum(tally.verdicts.values()) == count
        return tally

    return run
