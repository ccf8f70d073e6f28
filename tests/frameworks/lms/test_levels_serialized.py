"""How levels are named: indices, and slices that take in their end."""

from __future__ import annotations

import pytest

from hpcckpt.errors import OptionError
from hpcckpt.lms.planner.serialization import parse_levels

pytestmark = pytest.mark.one_case


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([1, "3:5", 7], {1, 3, 4, 5, 7}),
        (["7:"], {7, 8, 9}),
        ([":2"], {0, 1, 2}),
        ([":"], set(range(10))),
        (["2:9:3"], {2, 5, 8}),
        (["8:200"], {8, 9}),
        (["4"], {4}),
        ([-1], {9}),
        (["-2:"], {8, 9}),
        (["7:-2"], {7, 8}),
        (["-99:1"], {0, 1}),
        ([" 3 : 4 "], {3, 4}),
        ([10, "12:", "5:3"], set()),
        ([], set()),
    ],
)
def test_levels_are_named_by_index_and_by_slice(told: list[int | str], expected: set[int]) -> None:
    assert parse_levels(told, 10) == expected


@pytest.mark.parametrize("told", ["", "a:b", "1:2:3:4", "1:2:0", "1:2:-1", "1.5"])
def test_other_texts_are_refused(told: str) -> None:
    with pytest.raises(OptionError, match="serialization: "):
        parse_levels([told], 10)


def test_a_graph_without_levels_has_none_to_name() -> None:
    assert parse_levels([0, "0:"], 0) == frozenset()
