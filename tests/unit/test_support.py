"""The layout of the tests: programs anywhere find what tests share, and unit tests mirror the package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
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


ROWS = """
from tests.support.cases import cases

@cases("value", [1, 2, 3, 2])
def test_rows(value, tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "left").touch()
    assert value != 2
"""


def test_each_row_of_a_table_runs_in_an_empty_directory_and_fails_by_its_values(tmp_path: Path) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "test_rows.py",
    ]
    done = subprocess.run(command, env=programs.environment(), cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("SUBFAILED(value=2)") == 2
    assert "3 failed, 2 subtests passed" in done.stdout  # two rows, and the test that has them


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
