"""The generator of mutants: the same mutation in two trees whose names and owners differ."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.one_case

SCRIPT = ROOT / "scripts/dev/mutants.py"
OLD = '''
def give_name(run, step):
    """Say what."""
    if step < 0 or run.options.last == step:
        raise ValueError(f"no {step + 1}")
    check(run, step, there=True)
    return step in run.known
'''
NEW = '''
class Directory:
    def commit(self, step):
        """Return what."""
        if step < 0 or self.last == step:
            raise ValueError(f"not {step + 1}")
        self.check(step, existing=True)
        return step in self.known
'''


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.fixture
def trees(tmp_path):
    for name, file, text in (("old", "publishing.py", OLD), ("new", "rundir/run_directory.py", NEW)):
        path = tmp_path / name / "hpcckpt" / file
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "old", tmp_path / "new"


def test_statements_are_found_again_as_methods_with_other_names(tool, trees):
    found = [(each.operator, each.old.text, each.new.mutated) for each in tool.mutants(*trees)]
    raised = 'raise ValueError(f"no {step + 1}")'
    assert found == [
        ("negate", "step < 0 or run.options.last == step", "(not (step < 0 or self.last == step))"),
        ("and or", "step < 0 or run.options.last == step", "(step < 0 and self.last == step)"),
        ("compare", "step < 0", "(step <= 0)"),
        ("constant", "0", "(1)"),
        ("compare", "run.options.last == step", "(self.last != step)"),
        ("no raise", raised, "pass"),
        ("no call", "check(run, step, there=True)", "pass"),
        ("return", "check(run, step, there=True)", "return"),
        ("constant", "True", "(False)"),
        ("compare", "step in run.known", "(not step in self.known)"),
    ]


def test_a_statement_that_has_changed_is_no_candidate(tool, trees):
    path = trees[1] / "hpcckpt/rundir/run_directory.py"
    path.write_text(NEW.replace("step < 0", "step < 1"), encoding="utf-8")
    assert not [each for each in tool.mutants(*trees) if "step <" in each.new.text]


def test_each_mutant_compiles_and_replaces_what_is_there(tool, trees):
    for mutant in tool.mutants(*trees):
        for tree, site in zip(trees, (mutant.old, mutant.new), strict=True):
            before = site.apply(tree)
            assert (tree / site.file).read_bytes() != before
            with pytest.raises(AssertionError, match="does not have"):
                site.apply(tree)
            (tree / site.file).write_bytes(before)


def test_a_choice_takes_one_of_a_statement_and_is_the_same_each_time(tool, trees):
    found = tool.mutants(*trees)
    chosen = tool.chosen(found, 7, 3)
    assert chosen == tool.chosen(found[::-1], 7, 3)
    assert len(chosen) == 3
    assert max(Counter(each.new.line for each in chosen).values()) == 1


def test_what_was_caught_and_is_not_any_more_is_named(tool, tmp_path):
    where = {"at": "hpcckpt/saving/save.py:7", "text": "a < b"}
    rows = [
        {"key": key, "package": "saving", "operator": "compare", "old": {"result": old}, "new": where | {"result": new}}
        for key, old, new in (("a", "caught", "caught"), ("b", "caught", "survived"), ("c", "survived", "not run"))
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = tool.summary(tool.rows_in(file))
    assert "LOST b compare: hpcckpt/saving/save.py:7 'a < b'" in text
    assert text.endswith("3 mutants, 1 caught before and not after")


def test_the_tests_of_each_package_exist(tool):
    assert set(tool.TESTS) == set(tool.PACKAGES)
    assert not [file for files in tool.TESTS.values() for file in files if tool.test_in(ROOT, file) != file]


def test_a_test_is_found_in_a_tree_with_the_old_layout_and_in_one_with_the_new(tool, tmp_path):
    layouts = {"old": ("promises/test_steps.py", "unit/test_loading.py"), "new": ("unit/checkpointer/test_steps.py",)}
    for name, files in layouts.items():
        for file in files:
            path = tmp_path / name / "tests" / file
            path.parent.mkdir(parents=True)
            path.touch()
    old, new = tmp_path / "old", tmp_path / "new"
    assert tool.test_in(old, "unit/checkpointer/test_steps.py") == "promises/test_steps.py"
    assert tool.test_in(old, "unit/restoring/test_loading.py") == "unit/test_loading.py"
    assert (
        tool.test_in(new, "promises/test_steps.py::test_it[a/b-1]") == "unit/checkpointer/test_steps.py::test_it[a/b-1]"
    )
    assert tool.test_in(new, "unit/test_loading.py::test_it") is None
