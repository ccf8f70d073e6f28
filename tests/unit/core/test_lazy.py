"""What is done when another module is imported: once, after it, in whichever order."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcckpt.core.lazy import when_imported


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
