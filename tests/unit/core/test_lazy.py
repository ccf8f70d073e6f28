"""Names that are loaded on first use, and what is done when another module is imported: once, in whichever order."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcckpt.core import lazy
from hpcckpt.core.lazy import EXTRAS, attach, when_imported


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported, and was not yet."""
    name = "imported_once_by_test_lazy"
    (tmp_path / f"{name}.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    sys.modules.pop(name, None)


def test_a_function_is_called_once_the_module_is_imported(module: str) -> None:
    calls: list[int] = []
    when_imported(module, lambda: calls.append(sys.modules[module].value))
    assert importlib.util.find_spec(module) is not None  # to look for it is not to import it
    assert not calls
    importlib.import_module(module)
    assert calls == [1]
    importlib.reload(sys.modules[module])
    assert calls == [1]


def test_a_function_is_called_at_once_if_the_module_is_there(module: str) -> None:
    importlib.import_module(module)
    calls: list[str] = []
    when_imported(module, lambda: calls.append(module))
    assert calls == [module]


def test_a_module_that_does_not_exist_is_as_without_the_hook(module: str) -> None:
    when_imported("no_such_module_anywhere", lambda: pytest.fail("called"))
    assert importlib.util.find_spec("no_such_module_anywhere") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
    importlib.import_module(module)


def test_a_name_that_needs_a_package_that_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("hpcckpt.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    package = importlib.import_module("hpcckpt.torch")  # itself it needs nothing
    with pytest.raises(ModuleNotFoundError, match=r"needs torch, .*: pip install 'hpcckpt\[torch\]'") as caught:
        _ = package.batch_norm
    assert caught.value.name == "torch"


def test_a_missing_package_that_is_none_of_the_extras_is_reported_as_python_does(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("import no_such_module_anywhere\n", encoding="utf-8")
    load, _ = attach("hpcckpt", (), {})
    assert "tensorflow" in EXTRAS
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'no_such_module_anywhere'$"):
        lazy._imported(module)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        load("nothing")
