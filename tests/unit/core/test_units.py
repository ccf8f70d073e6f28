"""Sizes in words."""

from __future__ import annotations

import pytest

from hpcckpt.core.units import parse_nbytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("98 MB", 98_000_000), ("98 MiB", 98 << 20), ("98M", 98 << 20), ("98mib", 98 << 20), ("1.5 kB", 1500),
        ("2 GB", 2_000_000_000), ("2GiB", 2 << 30), ("3tb", 3e12), ("7", 7), ("7 B", 7), (" 7. ", 7),
    ],
)  # fmt: skip
def test_sizes_are_read_as_their_units_are_written(text: str, nbytes: float) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "much", "-1", "3 parsecs", "7 iB", "1e3", "5 PB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_nbytes(text)


def test_a_size_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="more bytes than can be counted"):
        parse_nbytes("9" * 400 + "G")
