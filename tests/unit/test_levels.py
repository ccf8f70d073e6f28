"""The table of slow tests and the page of promises name tests that exist; names of tests are short."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from tests import levels
from tests.support.paths import ROOT, TESTS

pytestmark = pytest.mark.one_case

ROWS = re.findall(
    r"^\| (.+?) \| (.*?) \| ?(.*?) ?\|$", (TESTS / "PROMISES.md").read_text(encoding="utf-8"), re.MULTILINE
)
PROMISES = [row for row in ROWS if row[0] != "promise"]
MAX_NAME = 80
"""Characters in the name of a test."""


@functools.cache
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file, those of a class with its name before them."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def exists(name: str) -> bool:
    """Return whether a directory, file or test below tests/ exists; a test of a class may be inherited."""
    path, _, test = name.partition("[")[0].partition("::")
    if not (TESTS / path).exists():
        return False
    return not test or test in functions(TESTS / path) or "::" in test


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def has_slow_mark(name: str) -> bool:
    """Return whether a file or test has the mark slow."""
    path, _, test = name.partition("[")[0].partition("::")
    marks = list(functions(TESTS / path)[test].decorator_list) if test else []
    for node in ast.parse((TESTS / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks.append(node.value)
    return any("mark.slow" in ast.unparse(each) for each in marks)


def test_what_the_tables_name_exists() -> None:
    assert [name for name in levels.TABLE | levels.NIGHTLY if not exists(name)] == []


def test_nothing_that_make_test_runs_is_nightly() -> None:
    quick = [name for name, is_slow in levels.TABLE.items() if not is_slow]
    assert [name for name in quick if levels.is_nightly(name)] == []


def test_there_are_promises() -> None:
    assert len(PROMISES) > 50


def test_every_promise_has_a_test_in_make_test() -> None:
    assert [promise for promise, quick, _ in PROMISES if not names(quick)] == []
    named = [name for _, quick, slower in PROMISES for name in names(quick) + names(slower)]
    assert [name for name in named if not exists(name)] == []
    quick_names = [name for _, quick, _ in PROMISES for name in names(quick)]
    assert [name for name in quick_names if levels.is_slow(name) or has_slow_mark(name)] == []


def test_what_the_parts_of_make_test_all_name_exists() -> None:
    script = (ROOT / "scripts/dev/test.sh").read_text(encoding="utf-8")
    lists = script[script.index("ENGINE=(") : script.index("# Limits in seconds")]
    arrays = '"${MPI_TESTS[@]}" "${TWO_RANKS[@]}" "${ONE_RANK[@]}" "${B_TESTS[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{lists}\nprintf '%s\\n' {arrays}"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    named = [name.removeprefix("tests/") for name in done.stdout.split()]
    assert len(named) > 50
    assert [name for name in named if not exists(name)] == []


def test_the_longest_entry_decides() -> None:
    assert levels.is_slow("schedulers/slurm/test_requeue.py::test_any")
    assert levels.is_nightly("schedulers/jobs/test_doors.py::test_the_door_of_polaris_trains_in_two_jobs")
    assert levels.is_slow("schedulers/jobs/test_doors.py::test_the_door_of_polaris_trains_in_two_jobs")
    assert not levels.is_nightly("schedulers/slurm/test_requeue.py::test_any")
    assert not levels.is_slow("schedulers/slurm/test_judging.py::test_any[case]")
    assert not levels.is_slow("unit/test_new.py::test_new")
    assert levels.is_slow("mpi/test_ranks.py::test_saved_on_n_ranks_restored_on_m_is_bit_exact[5-5]")
    assert not levels.is_slow("mpi/test_ranks.py::test_saved_on_n_ranks_restored_on_m_is_bit_exact[2-3]")


def test_directories_without_quick_tests_are_not_collected() -> None:
    assert not levels.has_quick("campaign")
    assert levels.has_quick("schedulers/slurm")
    assert not levels.has_quick("schedulers/slurm/test_training.py")
    assert levels.has_quick("unit/test_new.py")


def test_names_of_tests_have_at_most_80_characters() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py"))}
    tests = [
        (file, name) for file, text in texts.items() for name in re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)
    ]
    assert len(tests) > 2000
    assert [(file, name) for file, name in tests if len(name) > MAX_NAME] == []
