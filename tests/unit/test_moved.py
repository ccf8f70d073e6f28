"""What pages of 0.1 name still works: what stays without a warning, old names until 0.3 with one."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import hpcckpt
from hpcckpt.backends.base import Payload
from hpcckpt.backends.rankfile.backend import RankfileBackend
from hpcckpt.core import moved
from hpcckpt.core.plan import FullPlan, SaveJob
from tests.support.paths import ROOT

pytestmark = pytest.mark.one_case

DOCUMENTED = Path(__file__).with_name("documented.json")  # made by scripts/dev/documented.py make f07e35e 94abd9d


@pytest.mark.stack_b
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="some of the commands need TensorFlow")
def test_documented_names_commands_and_options_work_and_only_moved_modules_warn():
    command = [sys.executable, str(ROOT / "scripts/dev/documented.py"), "check", str(DOCUMENTED)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split()[1].removeprefix("hpcckpt.") for line in done.stdout.splitlines()]
    assert set(told) <= set(moved.MOVED), done.stdout
    assert "phases" in told


def test_every_public_name_of_the_package_is_there():
    assert all(hasattr(hpcckpt, name) for name in hpcckpt.__all__)


@pytest.mark.parametrize("old", sorted(moved.MOVED))
def test_an_old_path_is_the_module_of_the_new_one_and_warns(old, monkeypatch):
    monkeypatch.delitem(sys.modules, f"hpcckpt.{old}", raising=False)
    new = f"hpcckpt.{moved.MOVED[old]}"
    text = f"^hpcckpt.{old} is now {new}; the old path ends with hpcckpt 0.3$"
    with pytest.warns(DeprecationWarning, match=text):
        module = importlib.import_module(f"hpcckpt.{old}")
    assert module is importlib.import_module(new)
    assert module.__name__ == module.__spec__.name == new


def test_the_warning_names_the_line_that_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "hpcckpt.phases", raising=False)
    with pytest.warns(DeprecationWarning, match="phases") as told:
        import hpcckpt.phases  # noqa: F401
    assert told[0].filename == __file__


@pytest.mark.parametrize("path", sorted(moved.STAYING))
def test_a_path_that_stays_does_not_warn(path, monkeypatch):
    monkeypatch.delitem(sys.modules, f"hpcckpt.{path}", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = importlib.import_module(f"hpcckpt.{path}")
    assert module is importlib.import_module(f"hpcckpt.{moved.STAYING[path]}")


@pytest.mark.parametrize("path", sorted(moved.STAYING))
def test_type_checkers_find_a_path_that_stays(path):
    stub = Path(hpcckpt.__file__).parent.joinpath(*path.split(".")).with_suffix(".pyi")
    (imported,) = ast.parse(stub.read_text(encoding="utf-8")).body
    names = [each.name for each in imported.names]
    assert imported.module == f"hpcckpt.{moved.STAYING[path]}"
    module = importlib.import_module(imported.module)
    assert not [name for name in names if not hasattr(module, name)]
    documented = json.loads(DOCUMENTED.read_text(encoding="utf-8"))["names"]
    assert {name for name in vars(module) if f"hpcckpt.{path}.{name}" in documented} <= set(names)


def test_old_paths_in_the_root_are_attributes_of_the_package():
    program = "import hpcckpt; print(hpcckpt.discovery.__name__, hpcckpt.plan.__name__, hpcckpt.phases.__name__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hpcckpt.rundir.discovery", "hpcckpt.core.plan", "hpcckpt.core.failpoints"]


def test_a_finder_of_another_package_does_not_replace_ours():
    program = (
        "import sys; sys.meta_path.append(type('_Finder', (), {'find_spec': lambda *_: None})()); import hpcckpt.plan"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_path_that_no_page_names_is_gone():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hpcckpt.snapshot")


def test_old_paths_load_nothing_before_they_are_imported():
    program = "import sys, hpcckpt; print(*[m for m in sys.modules if m.startswith('hpcckpt')])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {"hpcckpt", "hpcckpt._version", "hpcckpt.core", "hpcckpt.core.lazy", "hpcckpt.core.moved"}


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (Payload(None, None), "let_go", "release"),
        (Payload(None, None), "landed", "written"),
        (SaveJob("a", 1, 1, file_layout=[]), "design", "file_layout"),
        (RankfileBackend(), "design", "file_layout"),
    ],
)
def test_an_old_name_of_the_contract_of_backends_is_the_new_one_and_warns(owner, old, new):
    text = f"{type(owner).__name__}.{old} is now {new}; the old name ends with hpcckpt 0.3"
    with pytest.warns(DeprecationWarning, match=text) as told:
        found = getattr(owner, old)
    assert found == getattr(owner, new)
    assert told[0].filename == __file__


def test_a_backend_with_the_old_method_design_gets_the_whole_plan():
    with pytest.warns(DeprecationWarning, match=r"Old.design is now file_layout; the old name ends with hpcckpt 0.3"):

        class Old(RankfileBackend):
            def design(self, plan):
                return plan, self

    plan, backend = FullPlan((), ()), Old()
    assert backend.file_layout(plan) == (plan, backend)
