"""The native parts under sanitizers, in a short form: without what needs TensorFlow's headers, which takes minutes."""

from __future__ import annotations

import pytest

from tests.campaign._common import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_short_form(short_form):
    kind_of = load("sanitizers").run.__globals__["kind_of"]
    assert [kind_of(number)[0] for number in range(4)] == ["core", "core", "parts", "parts"]
    short_form("sanitizers", 4)
