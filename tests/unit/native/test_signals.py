"""Signals that arrive during a long native call in memory are handled before it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

# As much zeroed memory as no machine sums up in less than half a minute, and that takes none: it is only read.
PROGRAM = """
import mmap, os, signal, threading
from hpcckpt import native
NORESERVE = 0x4000
memory = mmap.mmap(-1, 1 << 38, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, prot=mmap.PROT_READ)
done = []

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

timer = threading.Timer(0.05, interrupt)
try:
    timer.start()  # within: on a busy machine the interrupt may come before the call
    {call}
    done.append(True)
except KeyboardInterrupt:
    print("interrupted", done)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is only promised")
@pytest.mark.parametrize(
    "call",
    [
        "native.crc32c(memory)",
        "native.crc32c_blocks(memory)",
        "native.crc32c_blocks(memory, threads=2)",
        "native.count_nonfinite(memory, 'float32')",
    ],
)
def test_an_interrupt_ends_a_long_call_before_its_end(io: ModuleType, call: str) -> None:
    is_pure = io._core.__name__.endswith("_pure")
    if is_pure and "blocks" in call:
        pytest.skip("the list of blocks alone takes longer")
    environment = os.environ | {"HPCCKPT_NO_NATIVE": "1" if is_pure else "0"}
    command = [sys.executable, "-c", PROGRAM.replace("{call}", call)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if "Cannot allocate memory" in done.stderr:
        pytest.skip("this machine promises no memory")
    assert (done.stdout, done.stderr) == ("interrupted []\n", "")


def test_a_handler_that_does_not_raise_runs_and_the_call_ends_well() -> None:
    pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    program = """
import signal
from hpcckpt import native
seen, ends = [], []
data = bytes(64 << 20)
signal.signal(signal.SIGALRM, lambda *_: seen.append(len(ends)))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
while not seen:
    crcs = native.crc32c_blocks(data)
    ends.append(crcs)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(crcs))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr) == ("64\n", "")
