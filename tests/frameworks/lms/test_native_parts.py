"""What of LMS needs no TensorFlow, each part by a program in C++ that replaces what the system does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcckpt import native

HERE = Path(__file__).parent
SOURCES = Path(native.__file__).parent / "lms_src"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("c++") is None, reason="needs Linux and a C++ compiler"
)

CHECKS = {
    "pages": "memory is mapped and unmapped at whole pages where pages have 64 KiB",
    "unlocked": "the pool unmaps without its lock",
    "large": "memory larger than the pool's limit is unmapped at once, and what is small stays",
    "budget": "the limit of the host tier is never exceeded by threads that take at the same time",
    "queue": "an I/O queue that cannot have all its threads leaves none",
    "idle": "an I/O queue calls its idle function until it returns false",
    "shrink": "the file is cut when more than half of it is free at its end",
    "refused": "a file system that takes O_DIRECT and refuses to write so is used without",
    "interrupted": "signals during the allocation of space do not fail it",
    "short": "after a short direct transfer the true error is returned",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parts") / "parts"
    parts = [SOURCES / f"{name}.cc" for name in ("pool", "io_queue", "extents", "file_store")]
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-DREPLACES_SYSTEM", f"-I{SOURCES}"]
    subprocess.run(["c++", *flags, HERE / "native/parts.cpp", *parts, "-o", made, "-pthread", "-ldl"], check=True)
    return made


@pytest.mark.parametrize("check", CHECKS)
def test_parts_of_lms_without_tensorflow(program: Path, check: str, tmp_path: Path) -> None:
    done = subprocess.run([program, check, tmp_path], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == 77:
        pytest.skip("no O_DIRECT in the test's directory")
    assert done.returncode == 0, f"{CHECKS[check]}: {done.stderr}"
