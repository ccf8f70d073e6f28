"""What tests import by a bare name is one file, in whatever order they run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_each_helper_of_the_tests_has_a_name_of_its_own(pytestconfig: pytest.Config) -> None:
    found = defaultdict(list)
    for directory in pytestconfig.getini("pythonpath"):
        for path in sorted(Path(directory).glob("*.py")):
            if path.stem != "conftest" and not path.stem.startswith("test_"):
                found[path.stem].append(str(path.relative_to(ROOT)))
    assert len(found) > 30
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
