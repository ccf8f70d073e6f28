"""A daemon thread in a native call when the program ends: the exit status is the program's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")

PROGRAM = """
import os, sys, threading, time
from hpcckpt import native
assert native.IMPLEMENTATION == "native"
data = bytes(200_000)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)

def pieces():
    for start in range(0, len(data), 50_000):
        yield data[start : start + 50_000], start

def checksum():
    native.crc32c_blocks(data, 1000)

def read():
    native.read_blocks(fd, ((bytearray(100), 0, None) for _ in range(10)))

def copy():
    native.copy_pieces([(data, bytearray(len(data)))])

def slow_pairs():
    for _ in range(20):
        time.sleep(0.001)
        yield data, bytearray(len(data))

def copy_slow_pairs():
    native.copy_pieces(slow_pairs())

def write():
    native.write_blocks(fd, pieces())

def write_and_report():
    native.write_blocks(fd, pieces(), on_piece=lambda piece: sum(range(100)))

sys.setswitchinterval(1e-6)  # threads take turns at almost every call, so one can be in any of them at the end
native.write_blocks(fd, [(data, 0)])
started = [threading.Event() for _ in range(4)]

def work(event):
    while True:
        {call}()
        event.set()

for event in started:
    threading.Thread(target=work, args=(event,), daemon=True).start()
for event in started:
    event.wait()
"""


@pytest.mark.parametrize("call", ["checksum", "read", "copy", "copy_slow_pairs", "write", "write_and_report"])
def test_a_daemon_thread_in_a_native_call_does_not_change_the_exit_status(tmp_path: Path, call: str) -> None:
    for number in range(3):
        command = [sys.executable, "-c", PROGRAM.replace("{call}", call), str(tmp_path / str(number))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, done.stderr) == (0, "")
