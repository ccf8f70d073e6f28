"""The peers' kill harness in short form: it runs for each library, and hpcckpt loses nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.campaign.peers.harness import OUTCOMES, Told, judge
from tests.campaign.peers.states import position_of, state_of
from tests.campaign.peers.subjects import KILLS, SUBJECTS

pytestmark = [pytest.mark.slow, pytest.mark.tf, pytest.mark.torch, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=[subject.title for subject in SUBJECTS])
def test_short_form(short_form, number):
    subject = SUBJECTS[number]
    if not subject.python.exists():
        pytest.skip(f"no {subject.environment}")
    if "torch" in subject.library:
        pytest.importorskip("torch")
    tally = short_form("peers", count=2, first=number * KILLS)
    assert sum(tally.kinds.values()) == 2  # a case in which the harness itself fails has no kind
    assert all(kind.removeprefix(f"{subject.title}: ") in OUTCOMES for kind in tally.kinds)
    if subject.library == "hpcckpt":
        assert tally.kinds == {f"{subject.title}: {OUTCOMES[0]}": 2}


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({"position": 5, "state": 5}, "resumed the newest"),
        ({"position": 4, "state": 4}, "resumed the newest"),
        ({"position": 3, "state": 3}, "resumed an older one"),
        ({"position": 4, "state": 5}, "wrong data, silently"),
        ({"position": 4, "state": None}, "wrong data, silently"),
        ({"error": "EOFError"}, "crashed on load"),
        ({}, "nothing found"),
    ],
)
def test_outcomes_are_told_apart(found, outcome):
    assert judge(Told(begun=5, saved=4), found) == outcome


def test_a_mixture_of_two_states_is_no_state():
    mixed = state_of(3)
    assert position_of(mixed) == 3
    mixed["tensor4"] = state_of(4)["tensor4"]
    assert position_of(mixed) is None
    torn = state_of(3)
    torn["tensor7"][-1] = np.nextafter(torn["tensor7"][-1], np.float32(np.inf))
    assert position_of(torn) is None
