"""What scripts/dev/setup.sh does again when a file changes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from hpcckpt.native import tf_ops

ROOT = Path(__file__).parents[2]
SETUP = (ROOT / "scripts" / "dev" / "setup.sh").read_text(encoding="utf-8")


def test_a_change_of_any_source_of_the_tensorflow_ops_builds_them_again() -> None:
    function = re.search(r"^native_sources\(\) \{\n.*?^\}\n", SETUP, re.DOTALL | re.MULTILINE)
    assert function is not None
    command = ["bash", "-c", function[0] + "native_sources"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    sources = {path for library in (tf_ops.OPS, tf_ops.LMS) for path in library.source_files()}
    assert sources <= {ROOT / name for name in listed}
