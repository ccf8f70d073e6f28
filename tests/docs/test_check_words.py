"""The check of the project's words, which is part of ``make lint``."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.one_case

SCRIPT = ROOT / "scripts/dev/check_words.py"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_words"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_words"]


def lines(count):
    return [match.line for match in count.matches]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("a.py", '"""A module.\n\nWhat stands on disk.\n"""\n'),
        ("a.py", 'x = 1\ny = 2\nz = "a"  # a value of its own\n'),
        ("a.py", "def f():\n    return 1\n    # It is told\n    # of a fault.\n"),
        ("a.cc", 'int a; \n\nint b;  // begins anew "\n'),
        ("a.h", "/**\n * One.\n * Let go of it.\n */\n"),
        ("a.sh", "#!/bin/sh\n#\necho   # nobody reads it\n"),
        ("a.md", "# A page\n\nThe two are *alike*.\n"),
    ],
)
def test_an_idiom_in_prose_is_found_with_its_line(check, file, source):
    assert lines(check.count(file, source)) == [3]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("a.py", 'stands = "so many"  # plain\n'),
        ("a.py", '"""A standard of understanding; nobodys and aliketo."""\n'),
        ("a.cc", 'const char* a = "anew // anew";  // plain\n'),
        ("a.md", "`anew`\n\n```\nstands\n```\n"),
        ("docs/decisions/0037-x.md", "It stands.\n"),
        ("a.json", '{"stands": 1}\n'),
    ],
)
def test_code_old_decisions_and_other_files_do_not_count(check, file, source):
    assert lines(check.count(file, source)) == []


def test_decisions_after_0037_count(check):
    assert lines(check.count("docs/decisions/0038-x.md", "It stands.\n")) == [1]


def test_a_folder_above_five_per_ten_thousand_words_is_reported(check):
    counts = {"docs": check.count("a.md", "plain " * 1998 + "anew alike")}
    assert list(check.problems(counts, {})) == ["docs: 2 idioms, at most 1 are allowed (--lines docs shows them)"]
    counts = {"docs": check.count("a.md", "plain " * 3998 + "anew alike")}
    assert list(check.problems(counts, {})) == []


def test_a_public_class_name_in_two_modules_is_reported(check):
    twice = check.defined_twice({"b.py": "class Part: ...", "a.py": "class Part: ...\nclass _Own: ...\nclass Own: ..."})
    assert list(check.problems({}, twice)) == ["class Part is defined in a.py, b.py"]
    assert check.defined_twice({"a.py": "class _A: ...", "b.py": "class _A: ...\nclass B: ..."}) == {}
    assert check.defined_twice({"a.py": "class A: ...", "_b.py": "class A: ..."}) == {}  # a private module
    assert list(check.defined_twice({"p/__init__.py": "class A: ...", "p/b.py": "class A: ..."})) == ["A"]


def test_counts_are_by_folder_and_by_package_of_the_package(check):
    files = ["README.md", "docs/a.md", "docs/decisions/b.md", "hpcckpt/a.py", "hpcckpt/lms/graph/a.py"]
    assert [check.folder(file) for file in files] == [".", "docs", "docs", "hpcckpt", "hpcckpt/lms"]
