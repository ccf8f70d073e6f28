"""A save and a load through a plugin need no memory beyond the variables' own; measured in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.programs import environment

PROGRAM = """
import json, sys
from pathlib import Path
import tensorflow as tf
import hpcckpt.tmci as tmci

def field(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))

def growth(call):
    Path("/proc/self/clear_refs").write_text("5")
    before = field("VmRSS")
    call()
    return field("VmHWM") - before

mib = int(sys.argv[1])
small = {"small": tf.Variable(tf.ones(3))}  # loads what must be loaded once
tmci.save_variables(small, "dummy")
tf.function(lambda: tmci.save_variables(small, "dummy"))()
tmci.load_variables(small, "dummy")
variables = {str(number): tf.Variable(tf.fill([mib << 14], float(number))) for number in range(16)}
in_graph = tf.function(lambda: tmci.save_variables(variables, "dummy"))
in_graph.get_concrete_function()
print("HERE" + json.dumps({
    "save": growth(lambda: tmci.save_variables(variables, "dummy")),
    "save in a function": growth(in_graph),
    "load": growth(lambda: tmci.load_variables(variables, "dummy")),
    "a copy": growth(lambda: [v + 1 for v in variables.values()]),
}))
"""


def growth(mib: int) -> dict[str, int]:
    """Return by how many bytes the process grew at most, with N MiB of variables."""
    env = environment()
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(mib)]
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=240).stdout
    found: dict[str, int] = json.loads(next(line[4:] for line in out.splitlines() if line.startswith("HERE")))
    return found


@pytest.mark.slow
def test_memory_grows_by_less_than_a_twentieth(ops: Any) -> None:
    mib = int(os.environ.get("HPCCKPT_TEST_MIB", "256"))
    found = growth(mib)
    assert found.pop("a copy") > 0.9 * (mib << 20)  # so a copy would be seen
    assert {what: nbytes for what, nbytes in found.items() if nbytes > 0.05 * (mib << 20)} == {}
