"""Which implementation is chosen, and what importing starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(script: str, **environment: str) -> str:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


def test_importing_the_package_does_not_load_native_code() -> None:
    script = "import sys, hpcckpt; print('hpcckpt.native._native' in sys.modules)"
    assert run(script) == "False"


@pytest.mark.parametrize(("value", "expected"), [("1", "pure"), ("yes", "pure"), ("0", None), ("", None)])
def test_native_code_can_be_declined(value: str, expected: str | None) -> None:
    script = "import sys; from hpcckpt import native; print(native.IMPLEMENTATION)"
    assert run(script, HPCCKPT_NO_NATIVE=value) == expected or expected is None
    if expected == "pure":
        script = "import sys, hpcckpt.native; print('hpcckpt.native._native' in sys.modules)"
        assert run(script, HPCCKPT_NO_NATIVE=value) == "False"


def test_without_native_code_and_without_crc32c_the_remedy_is_named() -> None:
    script = """
import runpy, sys
sys.modules["crc32c"], sys.argv = None, ["hpcckpt", "list", "."]
runpy.run_module("hpcckpt", run_name="__main__")
"""
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "HPCCKPT_NO_NATIVE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "the package crc32c, which is used without it, is not installed: pip install hpcckpt" in " ".join(
        done.stderr.split()
    )
    assert "bug" not in done.stderr


def test_native_code_that_does_not_load_is_logged_and_replaced(tmp_path: Path) -> None:
    script = f"""
import sys, importlib.abc, importlib.util, logging
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "hpcckpt.native._native":
            raise ImportError("libstdc++ is too old")
sys.meta_path.insert(0, Broken())
logging.basicConfig(filename={str(tmp_path / "log")!r})
from hpcckpt import native
print(native.IMPLEMENTATION, native.crc32c(b"123456789") == 0xE3069283)
"""
    assert run(script, HPCCKPT_NO_NATIVE="0") == "pure True"
    assert "libstdc++ is too old" in (tmp_path / "log").read_text(encoding="utf-8")
