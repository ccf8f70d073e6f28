"""The end of a program: what is in flight is written, and daemon threads do not change the exit status."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

_native = pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")

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

def slowly(items):
    for item in items:
        time.sleep(0.001)
        yield item

class Slow:
    def __iter__(self):
        time.sleep(0.001)
        return iter([(data, bytearray(len(data)))])

def copy_from_slow_generator():
    native.copy_pieces(slowly((data, bytearray(len(data))) for _ in range(20)))

def copy_from_slow_items():
    native.copy_pieces([slowly((data, bytearray(len(data)))) for _ in range(20)])

def copy_from_slow_iter():
    native.copy_pieces(Slow())

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


CALLS = [
    "checksum", "read", "copy", "copy_from_slow_generator", "copy_from_slow_items", "copy_from_slow_iter", "write",
    "write_and_report",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_daemon_thread_in_a_native_call_does_not_change_the_exit_status(tmp_path: Path, call: str) -> None:
    for number in range(3):
        command = [sys.executable, "-c", PROGRAM.replace("{call}", call), str(tmp_path / str(number))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_native_call_on_another_thread_runs_no_python_code(tmp_path: Path) -> None:
    data, copied = np.ones(100_000), np.zeros(100_000)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    called = []

    def call_all() -> None:
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
        _native.crc32c(data, 0)
        _native.crc32c_blocks(data, 1000, 1)
        _native.count_nonfinite(data, "float64", 1)
        _native.prefault(copied, 1)
        _native.copy_pieces([(data, copied)], 1)
        _native.write_blocks(fd, [(data, 0)], 1000, 1, "file", None, 0, True)
        _native.read_blocks(fd, [(copied, 0, None)], 1000, 1, "file")
        sys.setprofile(None)

    thread = threading.Thread(target=call_all)
    thread.start()
    thread.join()
    os.close(fd)
    assert np.array_equal(copied, data)
    assert called == []


AT_EXIT = """
import atexit, os, sys
from hpcckpt import native
data = bytes(range(200)) * 1000
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)

def save():
    crcs = native.write_blocks(fd, [(data, 0)], block_bytes=1000, threads=3)
    target = bytearray(len(data))
    bad = native.read_blocks(fd, [(target, 0, crcs[0])], block_bytes=1000, threads=3)
    print(native.IMPLEMENTATION, bad, target == data, crcs[0] == native.crc32c_blocks(data, 1000, threads=3))

atexit.register(save)
"""


@pytest.mark.parametrize("implementation", ["native", "pure"])
def test_blocks_are_written_and_read_while_the_program_ends(tmp_path: Path, implementation: str) -> None:
    environment = os.environ | {"HPCCKPT_NO_NATIVE": str(int(implementation == "pure"))}
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path / "file")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr) == (f"{implementation} [] True True\n", "")
