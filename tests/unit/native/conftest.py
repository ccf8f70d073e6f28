"""Every promise is tested on both implementations."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcckpt import native
from hpcckpt.native import plugins


@pytest.fixture(params=["native", "pure"])
def io(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return ``hpcckpt.native`` running on one implementation."""
    if request.param == "native" and os.environ.get("HPCCKPT_REQUIRE_NATIVE", "0") == "0":
        pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    monkeypatch.setattr(native, "_core", importlib.import_module(f"hpcckpt.native._{request.param}"))
    return native


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """Return a new file, open for reading and writing."""
    number = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT, 0o600)
    yield number
    os.close(number)


@pytest.fixture(params=[(1, False), (3, False), (2, True)], ids=["one thread", "three", "one that writes"])
def sharing(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return how threads share the work of ``write_blocks``."""
    threads, is_one_writer = request.param
    return {"threads": threads, "is_one_writer": is_one_writer}


# -- plugins ---------------------------------------------------------------------------------------

SOURCES = Path(__file__).parent / "plugins"
HEADERS = Path(native.__file__).parent / "include"
Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_plugin(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile a library once per session, also if many processes test: ``compile_plugin("refused.c", "-DMAJOR=0")``."""
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "compiled-plugins"

    def run(*arguments: str, name: str = "plugin", is_program: bool = False) -> Path:
        files = [str(SOURCES / each) if each.endswith((".c", ".cpp")) else each for each in arguments]
        is_cxx = any(each.endswith(".cpp") for each in files)
        compiler = shutil.which("c++" if is_cxx else "cc") or pytest.skip("needs a compiler")
        key = hashlib.sha256(repr((arguments, name)).encode()).hexdigest()[:12]
        library = folder / key / f"lib{name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        with (folder / f"{key}.lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                standard = "-std=c++17" if is_cxx else "-std=c11"
                kind = () if is_program else ("-shared", "-fPIC")
                flags = [standard, "-pedantic", "-Wall", "-Wextra", "-Werror", *kind, f"-I{HEADERS}"]
                subprocess.run([compiler, *flags, *files, "-o", str(library)], check=True)
        return library

    return run


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with no plugin loaded and none on the search path but the samples."""
    monkeypatch.setattr(plugins, "_by_file", {})
    monkeypatch.setattr(plugins, "_by_name", {})
    monkeypatch.delenv(plugins.PATH_VARIABLE, raising=False)
