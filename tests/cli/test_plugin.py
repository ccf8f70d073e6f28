"""``hpcckpt plugin new`` and ``check``, and the options that say where the parts for building plugins are."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcckpt import native
from hpcckpt.backends import registry
from hpcckpt.backends.base import Payload
from hpcckpt.core.plan import FileRecord, SaveJob, WriteItem
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import CorruptError
from hpcckpt.native import plugins
from hpcckpt.native.scaffold import LANGUAGES, write_project

Cli = Callable[..., Any]
has_samples = pytest.mark.skipif("posix" not in plugins.available(), reason="the samples are not built")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_new_writes_a_project_with_nothing_left_to_fill_in(cli: Cli, tmp_path: Path, lang: str) -> None:
    result = cli("plugin", "new", "my_store", str(tmp_path / "my store"), "--lang", lang, "--json")
    assert result.code == 0
    source = {"c": "my_store.c", "python": "hpcckpt_my_store.py"}.get(lang, "my_store.cpp")
    build = {"pyproject.toml", "test_my_store.py"} if lang == "python" else {"CMakeLists.txt"}
    expected = {*build, "README.md", ".gitignore", "try_it.py", source}
    assert set(result.json["files"]) == {path.name for path in (tmp_path / "my store").iterdir()} == expected
    assert ("pip install" if lang == "python" else "cmake --build build") in result.err
    for path in (tmp_path / "my store").iterdir():
        text = path.read_text(encoding="utf-8")
        assert "${" not in text.replace("${python}", "").replace("${found}", "")
        assert "$name" not in text
    assert "my_store" in (tmp_path / "my store" / source).read_text(encoding="utf-8")
    assert sys.executable not in (tmp_path / "my store" / "README.md").read_text(encoding="utf-8")


def test_new_refuses_a_python_backend_with_the_name_of_a_built_in_one(cli: Cli, tmp_path: Path) -> None:
    built_in = [info.name for info in registry.discover() if info.origin == "hpcckpt" and ":" not in info.name]
    assert len(built_in) >= 2
    for name in built_in:
        result = cli("plugin", "new", name, str(tmp_path / "x"), "--lang", "python")
        assert (result.code, "is the name of a built-in backend" in result.err) == (2, True)


def _no_offsets(table: Any) -> Any:
    table["entries"][0][8] = None
    return table


HOSTILE: dict[str, Callable[[Any], Any]] = {
    "of another save": lambda table: {**table, "save_id": "f" * 32},
    "no entries": lambda table: {"save_id": table["save_id"]},
    "a list": lambda _: [1, 2],
    "a number": lambda _: 7,
    "short rows": lambda table: {**table, "entries": [[1, 2]]},
    "offsets that are none": _no_offsets,
    "no raw file": lambda table: table,
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_python_backend_calls_a_table_that_does_not_fit_corrupt(tmp_path: Path, harm: str) -> None:
    write_project("my_store", "python", tmp_path / "project")
    spec = importlib.util.spec_from_file_location("hpcckpt_my_store", tmp_path / "project" / "hpcckpt_my_store.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    backend, step, data = module.MyStoreBackend(), tmp_path / "step", np.arange(4.0)
    step.mkdir()
    backend.prepare(step)
    item = WriteItem(TensorSpec("w", "float64", (4,), "replicated"), Extent((0,), (4,)), 0, 4)
    job = SaveJob("a" * 32, 1, 1)
    raw, table = backend.write(job, step, 0, [Payload(item, data.view(np.uint8))]).files
    manifest = SimpleNamespace(save_id=job.save_id, block_bytes=job.block_bytes, files=[raw, table])
    (entry,) = backend.index(step, manifest)["w"]
    assert (entry.item, entry.file) == (item, raw.path)

    text = json.dumps(HOSTILE[harm](json.loads((step / table.path).read_bytes()))).encode()
    (step / table.path).write_bytes(text)
    sealed = FileRecord(table.path, len(text), native.crc32c(text))
    manifest.files = [sealed] if harm == "no raw file" else [raw, sealed]
    with pytest.raises(CorruptError):
        backend.index(step, manifest)


def test_new_goes_into_a_folder_of_its_name(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("plugin", "new", "abc").code == 0
    assert (tmp_path / "abc" / "abc.cpp").exists()
    assert "class AbcBackend" in (tmp_path / "abc" / "abc.cpp").read_text(encoding="utf-8")


def test_new_writes_over_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert cli("plugin", "new", "abc", str(tmp_path / "there")).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    result = cli("plugin", "new", "abc", str(tmp_path / "there"))
    assert result.code == 2
    assert "is there already" in result.err
    assert {path: path.read_bytes() for path in (tmp_path / "there").iterdir()} == before


@pytest.mark.parametrize("name", ["my-plugin", "1st", "../x", "a b", "", "test", "all", "linux", "ä"])
def test_new_refuses_names_that_cannot_be(cli: Cli, tmp_path: Path, name: str) -> None:
    result = cli("plugin", "new", name, str(tmp_path / "x"))
    assert result.code == 2
    assert "cannot be a plugin's name" in result.err
    assert not (tmp_path / "x").exists()


@has_samples
def test_check_says_what_is_in_files_and_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    posix = plugins.available()["posix"]
    assert cli("plugin", "check", str(posix)).out == f"{posix}: posix (concurrent, durable, partial, stores)\n"
    (tmp_path / "libbad.so").write_text("no library", encoding="utf-8")
    result = cli("plugin", "check", str(posix), str(tmp_path / "libbad.so"), "--json")
    assert result.code == 1
    good, bad = result.json["plugins"]
    assert (good["backends"], good["problem"]) == ([["posix", ["concurrent", "durable", "partial", "stores"]]], "")
    assert "is not a shared library" in bad["problem"]


@has_samples
def test_backends_lists_plugins_with_the_file_they_come_from(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(plugins.available()["null"], tmp_path / "libnull.so")
    shutil.copy(plugins.available()["posix"], tmp_path / "libother_name.so")
    (tmp_path / "libbroken.so").write_text("no library", encoding="utf-8")
    monkeypatch.setenv("HPCCKPT_PLUGIN_PATH", str(tmp_path))
    monkeypatch.setattr(plugins, "_by_name", {})  # what other tests have loaded
    result = cli("backends", "--json")
    assert result.code == 0
    found = {info["name"]: info for info in result.json["backends"]}
    assert found["plugin:null"]["origin"] == str(tmp_path / "libnull.so")
    assert found["plugin:dummy"]["origin"].endswith("lib/plugins/libdummy.so")
    assert "is not a shared library" in found["plugin:broken"]["problem"]
    assert found["plugin:posix"]["features"] == ["concurrent", "durable", "partial", "stores"]
    assert f"{tmp_path}/libnull.so" in cli("backends").out


def test_the_tool_says_where_the_parts_for_plugins_are(cli: Cli) -> None:
    assert (Path(cli("--cmake-dir").out.strip()) / "hpcckptConfig.cmake").is_file()
    assert (Path(cli("--include-dir").out.strip()) / "hpcckpt" / "plugin.h").is_file()
    result = cli("--lib")
    if result.code == 0:
        assert Path(result.out.strip()).name.startswith("_native")
    else:
        assert "not built" in result.err
