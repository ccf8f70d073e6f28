"""What a program exports is visible in configurations by its bare name, and a name means one thing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.errors import CodeError
from hpcckpt.train import export_config
from hpcckpt.train.names.export_config import ExportError, exported

pytestmark = pytest.mark.one_case


def test_classes_and_functions_are_visible_and_stay_what_they_are() -> None:
    @export_config
    class Net:
        pass

    @export_config
    def data() -> None: ...

    @export_config(name="other")
    def named() -> None: ...

    assert dict(exported()) == {"Net": Net, "data": data, "other": named}


def test_the_same_thing_may_be_exported_twice() -> None:
    def data() -> None: ...

    assert export_config(export_config(data)) is data


def test_a_name_that_is_taken_is_an_error_that_names_both() -> None:
    def one() -> None: ...

    def two() -> None: ...

    export_config(one)
    with pytest.raises(
        ExportError, match=r"'one' is exported already, by .*one; give one of both another name"
    ) as error:
        export_config(name="one")(two)
    assert isinstance(error.value, CodeError)


def test_two_classes_of_one_name_are_an_error() -> None:
    def make(number: int) -> Any:
        if number == 1:

            class Net:
                def first(self) -> None: ...
        else:

            class Net:  # type: ignore[no-redef]
                def second(self) -> None: ...

        return Net

    export_config(make(1))
    with pytest.raises(ExportError, match="'Net' is exported already"):
        export_config(make(2))


@pytest.mark.parametrize("name", ["", "a.b", "_x", "1x", "a b", "tf", "ktf", "hpcckpt", "keras"])
def test_a_name_that_configurations_cannot_have(name: str) -> None:
    with pytest.raises(ExportError, match="cannot be a name in configurations; give name="):
        export_config(name=name)(lambda: None)


@pytest.mark.parametrize("thing", [3, object(), "text"])
def test_only_classes_and_functions_can_be_exported(thing: Any) -> None:
    with pytest.raises(ExportError, match="takes a class or a function, not a"):
        export_config(thing)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ExportError, match="<lambda>"):
        export_config(lambda: None)


def test_a_module_that_is_loaded_anew_exports_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exports_once.py").write_text(
        "from hpcckpt.train import export_config\n"
        "@export_config\ndef data(): return 1\n@export_config\nclass Net:\n    def call(self): return 1\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("exports_once")
    importlib.reload(module)
    assert exported()["data"] is module.data
    assert exported()["Net"] is module.Net
    sys.modules.pop("exports_once")


def test_a_cell_of_a_notebook_may_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for number in (1, 2):
        space: dict[str, Any] = {"__name__": "__main__", "export_config": export_config}
        exec(compile(f"@export_config\nclass Net:\n    number = {number}\n", f"cell-{number}", "exec"), space)
    assert exported()["Net"].number == 2


def test_what_is_exported_cannot_be_changed_from_outside() -> None:
    with pytest.raises(TypeError):
        exported()["x"] = 3  # type: ignore[index]
