"""The built-in backends keep the promises that are asked of every backend."""

from __future__ import annotations

import pytest

from hpcckpt.testing.backends import BackendSuite

pytestmark = pytest.mark.stack_b


class TestRankfile(BackendSuite):
    backend = "rankfile"
