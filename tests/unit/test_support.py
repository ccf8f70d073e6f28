"""The layout of the tests: programs anywhere find what tests share, and unit tests mirror the package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcckpt
from tests.support import examples, programs
from tests.support.paths import EXAMPLES, ROOT, TESTS


def test_a_program_anywhere_finds_the_package(tmp_path: Path) -> None:
    program = "from tests.support import paths; print(paths.ROOT)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=programs.environment(), cwd=tmp_path, text=True, capture_output=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(ROOT)), done.stderr


def test_a_path_that_is_inherited_or_asked_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["one", str(ROOT), "two"]))
    assert programs.python_path().split(os.pathsep) == ["one", "two", str(ROOT)]
    assert programs.environment(PYTHONPATH="three", A="b")["PYTHONPATH"].split(os.pathsep) == ["three", str(ROOT)]
    monkeypatch.delenv("PYTHONPATH")
    assert programs.python_path() == str(ROOT)


def test_an_example_is_a_module_that_finds_its_neighbours() -> None:
    assert Path(str(examples.load("ranks").__file__)).parent == EXAMPLES


FACTS = """
import pytest

pytestmark = pytest.mark.one_case

def test_plain(tmp_path):
    (tmp_path / "left").touch()

@pytest.mark.parametrize("value", [1, 2])
def test_rows(value, tmp_path):
    assert not list(tmp_path.iterdir())
    assert value == 1

class TestMore:
    def test_plain(self):
        pytest.skip("not here")
"""
MARKED_LATE = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.skip(reason="marked late"))
"""
ROWS = """
import pytest

@pytest.fixture(params=["a", "b"])
def place(request, tmp_path):
    (tmp_path / "made").touch()
    yield request.param
    assert not (tmp_path / "late").exists()

@pytest.mark.parametrize("value", [1, 2, pytest.param(3, marks=pytest.mark.skip), 4])
def test_rows(value, place, tmp_path):
    assert [each.name for each in tmp_path.iterdir()] == ["made"]
    (tmp_path / ("late" if value == 4 else "left")).touch()
    assert (value, place) != (2, "b")

@pytest.mark.parametrize("value", [1, 2])
def test_skipped(value):
    pytest.skip(f"no {value}")

@pytest.mark.parametrize("value", [1, 2])
def test_good(value):
    pass
"""


@pytest.fixture
def run_rows(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run tests of `ROWS` and `FACTS` with the conftest.py of the tests."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    (tmp_path / "test_rows.py").write_text(ROWS, encoding="utf-8")
    (tmp_path / "test_facts.py").write_text(FACTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--rootdir", str(tmp_path)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], env=programs.environment(), cwd=tmp_path, text=True, capture_output=True
        )

    return run


def test_a_parametrized_test_is_one_case_and_its_rows_fail_by_name(
    run_rows: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_rows("test_rows.py")
    assert done.returncode == 1, done.stderr
    assert "SUBFAILED[b-2] test_rows.py::test_rows" in done.stdout
    assert "3 of 8 rows failed: a-4, b-2, b-4" in done.stdout
    assert done.stdout.count("ERROR test_rows.py::test_rows - AssertionError") == 2  # late, when a row is torn down
    assert "no 1; no 2" in done.stdout
    assert "2 failed, 1 passed, 1 skipped, 2 errors in" in done.stdout  # the row, and its test


def test_rows_are_selected_by_name_and_a_single_one_is_a_test(
    run_rows: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert "1 passed" in run_rows("test_rows.py::test_rows[a-1]").stdout
    done = run_rows("test_rows.py", "-k", "test_rows and b")
    assert "2 of 4 rows failed: b-2, b-4" in done.stdout


def test_rows_keep_what_a_later_conftest_marks(
    run_rows: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "conftest.py").write_text(MARKED_LATE, encoding="utf-8")
    (tmp_path / "below" / "test_late.py").write_text(ROWS, encoding="utf-8")
    done = run_rows("below/test_late.py")
    assert "3 skipped in" in done.stdout
    assert "marked late" in done.stdout


def test_the_tests_of_a_file_that_is_one_case_are_its_rows(
    run_rows: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_rows("test_facts.py")
    assert "SUBFAILED[test_rows[2]] test_facts.py::facts" in done.stdout
    assert "1 of 4 rows failed: test_rows[2]" in done.stdout
    assert "2 failed in" in done.stdout  # the row, and the case
    assert "1 passed" in run_rows("test_facts.py::test_plain").stdout


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, without the packages below the first."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def test_no_test_imports_a_file_of_the_tests_by_its_bare_name() -> None:
    files = sorted(TESTS.rglob("*.py"))
    bare = {path.stem for path in files} - set(sys.stdlib_module_names)
    assert len(files) > 400
    assert [(path.name, name) for path in files for name in sorted(imported(path) & bare)] == []


def test_each_directory_of_unit_tests_is_a_package_of_hpcckpt() -> None:
    package, unit = Path(hpcckpt.__file__).parent, TESTS / "unit"
    found = [path.parent.relative_to(unit) for path in sorted(unit.rglob("test_*.py"))]
    assert len(set(found)) > 10
    assert [str(path) for path in found if not (package / path / "__init__.py").is_file()] == []
