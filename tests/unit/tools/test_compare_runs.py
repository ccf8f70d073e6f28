"""What `verify-resume` compares: files of numbers, and arrays, that two runs have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcckpt.tools.verify_resume.compare_runs import compare_files, compare_losses
from hpcckpt.tools.verify_resume.results import Compared

Losses = Callable[..., Compared]


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "straight", tmp_path / "resumed"
    for place in made:
        place.mkdir()
    return made


@pytest.fixture
def losses(places: tuple[Path, Path]) -> Losses:
    """Compare two texts as the losses of both runs."""

    def compare(one: bytes, other: bytes, rtol: float = 0.0) -> Compared:
        for place, text in zip(places, (one, other), strict=True):
            (place / "log").write_bytes(text)
        return compare_losses(places, "log", rtol)

    return compare


@pytest.mark.parametrize(("one", "other"), [("inf", "0.5"), ("inf", "-inf"), ("nan", "0.5"), ("1e308", "-1e308")])
def test_rtol_takes_no_infinite_loss_for_another_value(losses: Losses, one: str, other: str) -> None:
    found = losses(f"step,loss\n1,{one}\n".encode(), f"step,loss\n1,{other}\n".encode(), 1e-3)
    assert (found.n_same, found.n_all) == (0, 1)


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_loss_that_is_not_finite_in_both_runs_is_the_same(losses: Losses, value: str) -> None:
    text = f"step,loss\n1,{value}\n".encode()
    assert losses(text, text, 1e-3).n_same == 1


LINES = b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n'


@pytest.mark.parametrize(
    "cut", [b'{"step": 2, "lo\n', b"5\n", b"{}\n", b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n", b"9" * 5000 + b"\n"],
    ids=["cut", "number", "empty", "list", "not UTF-8", "deep", "long"],
)  # fmt: skip
def test_a_line_that_is_no_row_is_passed_over_and_the_row_written_again_counts(losses: Losses, cut: bytes) -> None:
    first, second = LINES.splitlines(keepends=True)
    found = losses(LINES, first + cut + second)
    assert (found.n_same, found.n_all, found.differing) == (2, 2, ())


def test_numbers_beside_bytes_that_are_not_utf_8_are_compared(losses: Losses) -> None:
    found = losses(b"step,loss,name\n1,2.5,\xff\n", b"step,loss,name\n1,2.0,\xff\n")
    assert (found.n_same, found.n_all) == (0, 1)


@pytest.mark.parametrize("header", [b"step,loss", b"step,loss,loss"])
def test_every_column_of_a_row_counts_whatever_the_header_names(losses: Losses, header: bytes) -> None:
    for one, other in ((b"1,2,3", b"1,2,4"), (b"1,2,3", b"1,5,3")):
        found = losses(header + b"\n" + one + b"\n", header + b"\n" + other + b"\n")
        assert (found.n_same, found.n_all) == (1, 2)


@pytest.mark.parametrize("text", [b"", b"step,loss\n1,abc\n", b"{}\n", b'{"step": 1}\n', b'{"a": 1e5, "b": "x"}\n'])
def test_a_file_without_a_number_is_reported_and_not_left_out(losses: Losses, text: bytes) -> None:
    found = losses(text, text)
    assert (found.n_same, found.n_all) == (0, 1)
    assert "has no numbers to compare" in found.differing[0]


def test_rtol_of_a_file_is_relative_to_the_larger_value(places: tuple[Path, Path]) -> None:
    for values in ((1.0, 1.1), (1.1, 1.0)):
        for place, value in zip(places, values, strict=True):
            np.savez(place / "x.npz", w=np.array([value, 0.0]))
        assert compare_files(places, "x.npz", 0.095).n_same == 1
        assert compare_files(places, "x.npz", 0.09).n_same == 0


def test_text_and_whole_numbers_in_a_file_count_despite_rtol(places: tuple[Path, Path]) -> None:
    for place, text, number in zip(places, "ab", (1000, 1001), strict=True):
        np.savez(place / "x.npz", text=np.array([text]), number=np.array([number]), w=np.ones(2))
    found = compare_files(places, "x.npz", 0.5)
    assert (found.n_same, found.n_all) == (1, 3)
