"""A plugin that the system's loader refuses is an error whose remedy works; headers say what they need."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcckpt import native
from hpcckpt.native import loader_errors, plugins

Compile = Callable[..., Path]
HEADERS = Path(native.__file__).parent / "include"
USES_TENSORFLOW = ("refused.c", "-DMISSING", "-Dmissing_function=_ZN10tensorflow6TensorC1Ev")
IN_TMCI = ("refused.c", "-DMISSING", "-Dmissing_function=_ZN4tmci7BackendD2Ev")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")


def problem(library: Path) -> str:
    return plugins.inspect([library])[0].problem


@needs_tensorflow
def test_linking_with_the_flags_in_the_error_supplies_tensorflows_symbols(compile_plugin: Compile) -> None:
    text = problem(compile_plugin(*USES_TENSORFLOW))
    assert "undefined symbol: _ZN10tensorflow6TensorC1Ev" in text
    found = re.search(r"; link it to TensorFlow: (.*) after its sources", text)
    assert found, text
    linked = compile_plugin(*USES_TENSORFLOW, "-Wl,--as-needed", *shlex.split(found[1]))
    assert plugins.inspect([linked])[0].backends == (("refused", ()),)


@pytest.mark.slow
@needs_tensorflow
def test_importing_tensorflow_before_supplies_its_library(compile_plugin: Compile) -> None:
    directory = Path(find_spec("tensorflow").origin).parent  # type: ignore[union-attr, arg-type]
    flags = [f"-L{directory}", "-l:libtensorflow_framework.so.2"]
    library = compile_plugin(*USES_TENSORFLOW, *flags)  # without an rpath
    assert "libtensorflow_framework.so.2: cannot open shared object file" in problem(library)
    assert "; import tensorflow before, or link it with -L" in problem(library)
    program = "import sys, tensorflow, hpcckpt.plugins as p; print(p.load(sys.argv[1])[0].name)"
    command = [sys.executable, "-W", "ignore", "-c", program, str(library)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=500).stdout == "refused\n"


@needs_tensorflow
def test_a_symbol_that_tensorflow_lacks_is_another_tensorflows(compile_plugin: Compile) -> None:
    directory = Path(find_spec("tensorflow").origin).parent  # type: ignore[union-attr, arg-type]
    flags = [f"-L{directory}", f"-Wl,-rpath,{directory}", "-Wl,--no-as-needed", "-l:libtensorflow_framework.so.2"]
    missing = ("refused.c", "-DMISSING", "-Dmissing_function=_ZN10tensorflow6TensorC1ESs")
    text = problem(compile_plugin(*missing, *flags))
    assert "; it was compiled for another TensorFlow, or with another _GLIBCXX_USE_CXX11_ABI: build it again" in text


def test_a_newer_compilers_library_is_named(compile_plugin: Compile) -> None:
    library = str(compile_plugin("refused.c"))
    text = f"{library}: /lib/libstdc++.so.6: version `GLIBCXX_9.9.99' not found (required by {library})"
    assert "; it was built with a newer compiler or C library" in str(loader_errors.explain(library, OSError(text)))


def test_what_was_compiled_with_tmcis_header_is_told_the_right_one(compile_plugin: Compile) -> None:
    assert "; it was compiled with TMCI's own header: compile it with the header of hpcckpt" in problem(
        compile_plugin(*IN_TMCI)
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("_tmci_ops.cpython-37m-x86_64-linux-gnu.so", "it was compiled with TMCI's own header: compile it with"),
        ("libother.so.1", "link it with an rpath to its directory, or set LD_LIBRARY_PATH"),
    ],
)
def test_a_library_that_is_not_found_is_named_with_a_remedy(
    name: str, remedy: str, compile_plugin: Compile, tmp_path: Path
) -> None:
    needed = tmp_path / name
    shutil.copy(compile_plugin("-Wno-pedantic", "-xc", "/dev/null", f"-Wl,-soname,{name}"), needed)
    library = compile_plugin("refused.c", "-Wl,--no-as-needed", f"-L{tmp_path}", f"-l:{name}")
    needed.unlink()
    assert f"cannot be loaded: {name}: cannot open shared object file" in problem(library)
    assert remedy in problem(library)


@pytest.mark.parametrize(
    ("header", "standard", "error"),
    [
        ("hpcckpt/backend.hpp", "c++14", "hpcckpt needs C++17: compile with -std=c++17"),
        ("tmci/backend.hpp", "c++17", "TensorFlow's headers are not on the include path"),
    ],
)
def test_a_header_says_what_is_missing_to_compile_it(header: str, standard: str, error: str, tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a compiler")
    source = tmp_path / "plugin.cpp"
    source.write_text(f"#include <{header}>\n", encoding="utf-8")
    command = ["c++", f"-std={standard}", f"-I{HEADERS}", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert error in done.stderr
