"""Settings of the process and its threads: what they do, and that nothing is set unasked."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcckpt import native
from hpcckpt.native import process

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="nice values of threads are Linux's")
has_glibc = pytest.mark.skipif(not process._is_glibc(), reason="needs glibc")

# Buffers as TensorFlow takes them, held and replaced a few times: prints the page faults of the last round.
CHURN = """
import ctypes, resource, sys
libc = ctypes.CDLL(None)
N_BUFFERS, NBYTES = 16, int(sys.argv[1]) << 20
def take():
    buffer = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(buffer), ctypes.c_size_t(64), ctypes.c_size_t(NBYTES)) == 0
    ctypes.memset(buffer, 1, NBYTES)
    return buffer
if sys.argv[2] != "no":
    from hpcckpt import native
    assert native.keep_freed_memory(1 << 30, any_size=sys.argv[2] == "any")
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [take() for _ in range(N_BUFFERS)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    for buffer in buffers:
        libc.free(buffer)
print(faults)
"""


def faults_of_reuse(mib: int, how: str) -> int:
    command = [sys.executable, "-c", CHURN, str(mib), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return int(done.stdout)


@has_glibc
def test_freed_memory_is_used_again_without_a_fault() -> None:
    n_pages = 16 * (4 << 20) // mmap.PAGESIZE
    assert faults_of_reuse(4, "kept") < n_pages // 50
    assert faults_of_reuse(4, "no") > n_pages // 50  # else the setting would prove nothing


@has_glibc
def test_buffers_above_the_largest_threshold_are_kept_only_if_asked() -> None:
    n_pages = 16 * (33 << 20) // mmap.PAGESIZE
    assert faults_of_reuse(33, "kept") > n_pages // 2
    assert faults_of_reuse(33, "any") < n_pages // 50


def test_a_c_library_without_these_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: None)
    assert native.keep_freed_memory(1 << 20) is False
    with pytest.raises(ValueError, match="negative"):
        native.keep_freed_memory(-1)


def in_thread(fn: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(fn()))
    thread.start()
    thread.join()
    return results[0]


def own_nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@on_linux
def test_a_thread_is_niced_alone() -> None:
    before = own_nice()
    assert in_thread(lambda: (native.set_thread_priority(before + 5), own_nice())) == (True, before + 5)
    assert own_nice() == before


@on_linux
def test_what_the_system_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert native.set_thread_priority(-5) is False
    monkeypatch.setattr(sys, "platform", "darwin")
    assert native.set_thread_priority(5) is False


def all_nices() -> list[int]:
    """Return the nice value of each thread of this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            found.append(int((task / "stat").read_text().rpartition(")")[2].split()[16]))
    return found


@on_linux
def test_the_threads_of_a_call_inherit_the_priority(io: ModuleType) -> None:
    # All calls with threads share one loop; this one has no system call in it that could fail or wait.
    nice, n_threads = own_nice() + 7, 4
    is_seen = threading.Event()

    def work() -> None:
        assert native.set_thread_priority(nice)
        while not is_seen.is_set():
            io.crc32c_blocks(bytes(1 << 26), 1 << 16, n_threads)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until = time.monotonic() + 60
        while all_nices().count(nice) < n_threads:
            assert time.monotonic() < until
    finally:
        is_seen.set()
        thread.join()
