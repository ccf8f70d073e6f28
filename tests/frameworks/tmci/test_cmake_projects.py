"""TMCI's own way to build a plugin works: `get_library`, `get_library_dir`, and the folder ``plugin``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcckpt.tmci as tmci
from hpcckpt.cli import places
from tests.support.paths import ROOT
from tests.support.programs import environment

FOLDER = ROOT / "plugin"
TMCI_STYLE = """
cmake_minimum_required(VERSION 3.12)
project(dummy CXX)
set(TENSORFLOW_INCLUDE_DIR "" CACHE STRING "Path to Tensorflow headers")
find_package(Python REQUIRED)
execute_process(COMMAND "${Python_EXECUTABLE}" "-c" "import hpcckpt.tmci as tmci; print(tmci.get_library_dir())"
  OUTPUT_VARIABLE TMCI_LIBRARY_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND "${Python_EXECUTABLE}" "-c" "import hpcckpt.tmci as tmci; print(tmci.get_library())"
  OUTPUT_VARIABLE TMCI_LIBRARIES OUTPUT_STRIP_TRAILING_WHITESPACE)
link_directories(${TMCI_LIBRARY_DIR})
include_directories(${TENSORFLOW_INCLUDE_DIR})
add_subdirectory(src)
"""
TMCI_STYLE_SRC = """
add_library(dummy SHARED DummyBackend.cpp)
target_link_libraries(dummy ":${TMCI_LIBRARIES}")
"""
PROGRAM = """
import sys
import hpcckpt.tmci as tmci
tmci.plugins.load(sys.argv[1])  # before TensorFlow is imported
import tensorflow as tf
tmci.save_variables([tf.Variable(tf.ones((2, 3)))], "dummy", "some config")
"""


def run(*command: str, cwd: Path) -> str:
    env = environment()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_get_library_names_a_file_in_its_directory() -> None:
    assert (Path(tmci.get_library_dir()) / tmci.get_library()).is_file()
    assert os.sep not in tmci.get_library()


def test_a_plugin_linked_to_get_library_loads(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a compiler")
    sample = places.include_dir().parent / "samples" / "null" / "null.c"
    uses = tmp_path / "uses.c"
    uses.write_text("int _ZN10tensorflow6TensorC1Ev(void);\nint use(void) { return _ZN10tensorflow6TensorC1Ev(); }\n")
    directory = tmci.get_library_dir()
    command = ["cc", "-shared", "-fPIC", f"-I{places.include_dir()}", str(sample), str(uses), "-o", "libnull.so"]
    link = ["-Wl,--as-needed", f"-L{directory}", f"-Wl,-rpath,{directory}", f"-l:{tmci.get_library()}"]
    run(*command, *link, cwd=tmp_path)
    assert "libnull.so: null (concurrent)" in run(
        sys.executable, "-m", "hpcckpt", "plugin", "check", "libnull.so", cwd=tmp_path
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)  # TensorFlow's headers take a compiler long on a machine that has much else to do
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("c++") is None, reason="no CMake or no compiler")
@pytest.mark.parametrize("project", ["the folder plugin", "a project as TMCI's"])
def test_cmake_and_make_build_a_plugin_that_loads_and_sees_tensors(project: str, ops: object, tmp_path: Path) -> None:
    folder, build = tmp_path / "copied", tmp_path / "copied" / "build"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("build"))
    options = [f"-Dhpcckpt_PYTHON={sys.executable}"]
    if project == "a project as TMCI's":
        (folder / "CMakeLists.txt").write_text(TMCI_STYLE, encoding="utf-8")
        (folder / "src" / "CMakeLists.txt").write_text(TMCI_STYLE_SRC, encoding="utf-8")
        headers = run(sys.executable, "-m", "hpcckpt", "--tmci-include-dirs", cwd=tmp_path).strip()
        options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DTENSORFLOW_INCLUDE_DIR={headers}"]
    build.mkdir()
    run("cmake", "..", *options, cwd=build)
    run("cmake", "--build", ".", cwd=build)
    out = run(sys.executable, "-W", "ignore", "-c", PROGRAM, "build/src/libdummy.so", cwd=folder)
    assert out.splitlines()[:2] == ["[DUMMY] Initialization, config: some config", "[DUMMY] Saving 1 tensors:"]
    assert out.splitlines()[2].endswith(" size=24")
