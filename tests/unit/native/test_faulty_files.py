"""Short transfers, signals, full disks and files that end early."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcckpt.native import _pure

BLOCK = 4096
HERE = Path(__file__).parent
needs_shim = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "faulty_io.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, HERE / "faulty_io.c"], check=True)
    return library


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file grow beyond three blocks and a half; Python ignores SIGXFSZ, so writes fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * BLOCK + BLOCK // 2, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run_with_shim(shim: Path, mode: str, io: ModuleType, script: str, directory: Path) -> str:
    environment = os.environ | {
        "LD_PRELOAD": str(shim),
        "FAULTY_IO": mode,
        "HPCCKPT_NO_NATIVE": "1" if io._core.__name__.endswith("_pure") else "0",
    }
    command = [sys.executable, "-c", script, str(directory)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ROUND_TRIP = """
import os, random, sys
from hpcckpt import native
data = random.Random(1).randbytes(300_000)
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
crcs = native.write_blocks(fd, [(data, 5)], block_bytes=70_000, threads=2)
target = bytearray(len(data))
bad = native.read_blocks(fd, [(target, 5, crcs[0])], block_bytes=70_000, threads=2)
print(bad, target == data, crcs[0] == native.crc32c_blocks(data, 70_000))
"""

OTHER_THREAD = """
import os, sys, threading, time
from hpcckpt import native
gate = sys.argv[1] + "/gate"
def open_gate():
    time.sleep(0.2)
    open(gate, "w").close()
other = threading.Thread(target=open_gate)
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
os.environ["FAULTY_IO_GATE"] = gate
other.start()
native.write_blocks(fd, [(b"abc", 0)])
native.read_blocks(fd, [(bytearray(3), 0, None)])
other.join()
print("done")
"""


@needs_shim
def test_short_transfers_and_signals_lose_nothing(io: ModuleType, shim: Path, tmp_path: Path) -> None:
    assert run_with_shim(shim, "short", io, ROUND_TRIP, tmp_path) == "[] True True"


@needs_shim
def test_other_python_threads_run_while_bytes_move(io: ModuleType, shim: Path, tmp_path: Path) -> None:
    # Each transfer waits for a file that another Python thread makes: with the GIL held, neither would ever end.
    assert run_with_shim(shim, "gate", io, OTHER_THREAD, tmp_path) == "done"


@needs_shim
def test_a_write_that_moves_nothing_is_an_error_not_a_loop(io: ModuleType, shim: Path, tmp_path: Path) -> None:
    script = """
import os, sys
from hpcckpt import native
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
try:
    native.write_blocks(fd, [(b"abc", 0)], path="there")
except OSError as error:
    print(error.errno, error.filename)
"""
    assert run_with_shim(shim, "nothing", io, script, tmp_path) == f"{errno.EIO} there"


PREALLOCATE = """
import os, sys
from hpcckpt import native
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
native.preallocate(fd, {nbytes})
print(os.fstat(fd).st_size)
"""


@needs_shim
def test_a_file_system_that_cannot_preallocate_is_not_an_error(io: ModuleType, shim: Path, tmp_path: Path) -> None:
    assert run_with_shim(shim, "no-fallocate", io, PREALLOCATE.format(nbytes=1 << 50), tmp_path) == "0"


INTERRUPTED = """
import os, sys
from hpcckpt import native
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
data, threads, nice = bytearray(4_000_000), {threads}, {nice}
if "{call}" == "read":
    os.ftruncate(fd, len(data))
try:
    if "{call}" == "read":
        native.read_blocks(fd, [(data, 0, None)], block_bytes=1000, threads=threads)
    else:
        apart = "apart" in "{call}"
        native.write_blocks(fd, [(data, 0)], block_bytes=1000, threads=threads, nice=nice, is_one_writer=apart)
except KeyboardInterrupt:
    print("interrupted", os.fstat(fd).st_size < len(data) or "{call}" == "read")
"""


@needs_shim
@pytest.mark.parametrize(
    ("call", "threads", "nice"),
    [("write", 1, 0), ("write", 3, 0), ("write", 2, 5), ("write, apart", 2, 0), ("read", 1, 0)],
)
def test_an_interrupt_ends_a_long_transfer_before_its_end(
    io: ModuleType, shim: Path, tmp_path: Path, call: str, threads: int, nice: int
) -> None:
    # The first transfer sends the signal. All of them would take 20 s.
    script = INTERRUPTED.format(call=call, threads=threads, nice=nice)
    assert run_with_shim(shim, "signal", io, script, tmp_path) == "interrupted True"


BESIDE_ANOTHER_SIGNAL = """
import os, signal, sys
from hpcckpt import native
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
others = []
signal.signal(signal.SIGALRM, lambda *_: others.append("handled"))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
try:
    native.write_blocks(fd, [(bytearray(10_000_000), 0)], block_bytes=10_000_000, threads=1, nice=5)
except BaseException as error:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(type(error).__name__, *set(others))
"""


@needs_shim
def test_an_interrupt_stays_one_while_other_signals_arrive(io: ModuleType, shim: Path, tmp_path: Path) -> None:
    # The block that the signal comes in takes 0.4 s to its end.
    assert run_with_shim(shim, "signal", io, BESIDE_ANOTHER_SIGNAL, tmp_path) == "KeyboardInterrupt handled"


@needs_shim
def test_a_preallocation_that_is_always_interrupted_is_given_up(io: ModuleType, shim: Path, tmp_path: Path) -> None:
    assert run_with_shim(shim, "signal", io, PREALLOCATE.format(nbytes=1 << 20), tmp_path) == "0"


@needs_shim
def test_where_it_cannot_preallocate_what_other_ranks_have_written_stays(
    io: ModuleType, shim: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3 * BLOCK)
    script = """
import os, sys
from hpcckpt import native
native.preallocate(os.open(sys.argv[1] + "/file", os.O_RDWR), 2 * 4096)
"""
    run_with_shim(shim, "no-fallocate", io, script, tmp_path)
    assert (tmp_path / "file").read_bytes() == b"x" * 3 * BLOCK


def test_a_full_device_is_an_error_with_number_and_path(io: ModuleType, sharing: dict[str, Any]) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left on device: 'over/there'") as caught:
            io.write_blocks(fd, [(bytes(10 * BLOCK), 0)], block_bytes=BLOCK, **sharing, path="over/there")
    finally:
        os.close(fd)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "over/there")
    assert caught.value.strerror == os.strerror(errno.ENOSPC)


@pytest.mark.usefixtures("small_files")
def test_a_write_cut_in_the_middle_of_a_block_is_an_error(io: ModuleType, fd: int, sharing: dict[str, Any]) -> None:
    with pytest.raises(OSError, match="File too large") as caught:
        io.write_blocks(fd, [(bytes(10 * BLOCK), 0)], block_bytes=BLOCK, **sharing)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, None)


def test_an_error_is_of_the_class_python_gives_it(io: ModuleType, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            io.read_blocks(fd, [(bytearray(3), 0, None)], path="a-directory")
        with pytest.raises(OSError, match="Bad file descriptor: 'a-directory'"):
            io.write_blocks(fd, [(b"abc", 0)], path="a-directory")
    finally:
        os.close(fd)


def test_of_many_blocks_that_fail_the_first_is_named(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    has_last_failed = threading.Event()

    def read_the_first_last(_fd: int, data: memoryview, offset: int) -> int:
        if offset == 24:
            has_last_failed.set()
        has_last_failed.wait(60)
        return max(0, 4 - offset)

    monkeypatch.setattr(_pure, "_pread_all", read_the_first_last)
    with pytest.raises(EOFError, match=r"wanted 32 bytes at offset 0, got 4$"):
        _pure.read_blocks(fd, [(bytearray(32), 0, None)], 8, 4, "here")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("missing", [1, BLOCK, 2 * BLOCK + 1, 3 * BLOCK + 7, 3 * BLOCK + 100])
def test_a_file_that_ends_early_says_what_is_missing(io: ModuleType, fd: int, missing: int, threads: int) -> None:
    nbytes = 3 * BLOCK + 7
    crcs = io.write_blocks(fd, [(b"x" * 100, 0), (b"y" * nbytes, 100)], block_bytes=BLOCK)
    os.ftruncate(fd, 100 + nbytes - missing)
    pieces = [(bytearray(100), 0, crcs[0]), (bytearray(nbytes), 100, crcs[1])]
    first_hit = (nbytes, 100, nbytes - missing) if missing <= nbytes else (100, 0, 100 + nbytes - missing)
    wanted = "here: ends early: wanted {} bytes at offset {}, got {}$".format(*first_hit)
    with pytest.raises(EOFError, match=wanted):
        io.read_blocks(fd, pieces, block_bytes=BLOCK, threads=threads, path="here")
