"""``docs/features.md`` has the rows of `tests.features`, all of them; `make coverage` runs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.features import __main__ as program
from tests.features.table import N_ROWS, PAGE, NeedsError, Row, names, page
from tests.features.work import Session, Work


def test_the_page_has_the_tables_of_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.features --page"


def test_every_row_of_every_system_is_there_once() -> None:
    assert names() == [f"{letter}{number}" for letter, n in N_ROWS.items() for number in range(1, n + 1)]


def _right(work: Work) -> str:
    return work.sh("echo right").line("right")


def _wrong(work: Work) -> str:
    return work.sh("echo right").line("wrong")


def _broken(work: Work) -> str:
    raise KeyError("name")


def _failing(work: Work) -> str:
    work.sh("exit 3")
    return "not reached"


def _elsewhere(work: Work) -> str:
    raise NeedsError("a GPU", "nvidia-smi: not found")


def test_a_row_that_fails_in_any_way_is_partial_and_one_that_needs_a_gpu_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = {"X1": _right, "X2": _wrong, "X3": _broken, "X4": _failing, "X5": _elsewhere}
    rows = {name: Row(name, "f", "works", "s", check) for name, check in checks.items()}
    monkeypatch.setattr(program, "ROWS", rows)
    monkeypatch.setattr(program, "names", lambda: list(rows))
    where = ["--directory", str(tmp_path / "coverage")]
    assert program.main(["--jobs", "1", *where]) == 1
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line[:1] == "X"]
    assert shown == [["X1", "works"], ["X2", "partial"], ["X3", "partial"], ["X4", "partial"], ["X5", "needs"]]
    report = (tmp_path / "coverage" / "report.md").read_text(encoding="utf-8")
    assert "0 better, 1 works, 3 partial, 1 needs a GPU" in report
    assert "| X5 | a GPU | nvidia-smi: not found |" in report
    assert program.main(["x1", *where]) == 0
    assert program.main(["X9", *where]) == 2


def test_what_rows_share_is_made_once_and_its_failure_is_that_of_each(tmp_path: Path) -> None:
    session, calls = Session(tmp_path / "s"), Counter[str]()

    def make(work: Work) -> Path:
        calls[work.name] += 1
        return work.write("a", "1")

    def fail(work: Work) -> None:
        calls[work.name] += 1
        raise OSError("the disk is full")

    assert session.once("made", make) == session.once("made", make)
    for _ in range(2):
        with pytest.raises(AssertionError, match="the disk is full"):
            session.once("fails", fail)
    assert calls == {"made": 1, "fails": 1}
