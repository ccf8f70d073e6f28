"""The samples and the C++ layer under sanitizers: no byte too far, no leak, no race, nothing undefined."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcckpt import native

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SAMPLES = Path(native.__file__).parent / "samples"
SOURCES = {
    "null": (str(SAMPLES / "null/null.c"),),
    "dummy": (str(SAMPLES / "dummy/DummyBackend.cpp"),),
    "posix": (str(SAMPLES / "posix/posix.cpp"),),
    "faulty": ("faulty.cpp", "second_file.cpp"),
}


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_nothing_is_found(sanitizers: str, compile_plugin: Callable[..., Path], tmp_path: Path) -> None:
    flags = ("-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    probe = subprocess.run(
        ["c++", *flags, "-x", "c++", "-", "-o", str(tmp_path / "probe")], input="int main(){}", text=True, check=False,
        capture_output=True,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("the compiler has no run-time libraries of its sanitizers")
    with ThreadPoolExecutor(2) as pool:
        driver = pool.submit(compile_plugin, "driver.cpp", *flags, "-pthread", "-ldl", name="driver", is_program=True)
        libraries = list(pool.map(lambda name: compile_plugin(*SOURCES[name], *flags, name=name), SOURCES))
    settings = {"ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1", "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        [driver.result(), tmp_path, *libraries],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runtime error" not in done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) > 2000
