"""Tiers: what leaves comes back as it was, the room for it too, and what goes wrong is said."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import ConfigError, HpcckptError, NoSpaceError, OptionError, StorageError
from hpcckpt.lms.runtime import native_engine
from hpcckpt.lms.storage_tiers import TierConfig
from tests.support.lms import native as lms_native
from tests.support.programs import environment

MIB = 1 << 20
Configure = Callable[..., str]


@pytest.fixture
def configure(tmp_path: Path) -> Iterator[Configure]:
    """Set a tier for a test: ``configure("file", window=...)``; nothing may be left over behind it."""

    def run(tier: str = "file", **more: Any) -> str:
        told = native_engine.configure(TierConfig(**{"tier": tier, "directory": tmp_path, "min_bytes": 1, **more}))
        native_engine.reset_stats()
        return told

    yield run
    native_engine.hinder()
    gc.collect()  # errors hold frames that hold handles
    assert native_engine.wait_until_idle()
    assert native_engine.stats().host_bytes == 0
    assert list(tmp_path.iterdir()) == []


def ones(nbytes: int) -> Any:
    return tf.fill([nbytes // 4], 1.0)


@pytest.mark.parametrize("tier", ["file", "host", "host-then-file"])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_what_leaves_comes_back_bit_for_bit(configure: Configure, tier: str, is_mapped: bool) -> None:
    configure(tier, host_limit=MIB if tier == "host-then-file" else 0, is_mapped=is_mapped)
    for dtype in (tf.float32, tf.float16, tf.bfloat16, tf.int8, tf.complex64, tf.bool):
        for shape in ((), (0, 3), (1,), (4095,), (4097,), (3, 5, 7, 11, 13), (5 * MIB + 3,)):
            bits = np.random.default_rng(0).integers(0, 2, [*shape, dtype.size], np.uint8)
            tensor = (
                tf.bitcast(bits, dtype) if dtype is not tf.bool and dtype.size > 1 else tf.cast(bits[..., 0], dtype)
            )
            back = lms_native.away_and_back(tensor)
            assert back.dtype == tensor.dtype
            assert back.shape == tensor.shape
            assert lms_native.same(back, tensor)
    assert native_engine.wait_until_idle()
    stats = native_engine.stats()
    assert stats.bytes_in == stats.bytes_out == stats.written_bytes == stats.read_bytes


def test_what_is_small_stays(configure: Configure) -> None:
    configure(min_bytes=4096)
    lms_native.away_and_back(ones(4092))
    stats = native_engine.stats()
    assert stats.written_bytes == stats.read_bytes == 0
    assert stats.n_hot == 1


def test_room_in_the_file_is_used_again(configure: Configure) -> None:
    configure(file_limit=3 * MIB)
    for nbytes in (2 * MIB, MIB, 3 * MIB, 2 * MIB, MIB // 2, 3 * MIB):
        lms_native.away_and_back(ones(nbytes))
        assert native_engine.wait_until_idle()
    file = native_engine.stats().file
    assert file is not None
    assert (file.used, file.peak) == (0, 3 * MIB)


def test_a_file_that_is_no_longer_used_shrinks(configure: Configure) -> None:
    configure()
    lms_native.away_and_back(ones(8 * MIB))
    assert native_engine.wait_until_idle()
    end = time.monotonic() + 60.0
    while (file := native_engine.stats().file) is not None and file.size > 0 and time.monotonic() < end:
        time.sleep(0.01)
    assert file is not None
    assert (file.size, file.used) == (0, 0)
    assert lms_native.same(lms_native.away_and_back(ones(MIB)), ones(MIB))


def test_threads_that_swap_out_at_once_never_exceed_the_limit_of_the_host_tier(configure: Configure) -> None:
    configure("host", host_limit=3 * 4096)
    ops, tensor, failed = native_engine.load(), ones(4096), []

    def swap() -> None:
        for _ in range(300):
            try:
                ops.hpcckpt_swap_out(tensor)
            except tf.errors.ResourceExhaustedError:
                failed.append(True)

    threads = [threading.Thread(target=swap) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert native_engine.wait_until_idle()
    assert native_engine.stats().peak_host_bytes <= 3 * 4096


def test_tensors_of_many_sizes_that_come_and_go_never_meet_in_the_file(configure: Configure) -> None:
    configure()
    ops, random = native_engine.load(), np.random.default_rng(0)
    held: dict[int, Any] = {}
    for number in range(200):
        if len(held) > 10:
            which = sorted(held)[int(random.integers(len(held)))]
            back = ops.hpcckpt_swap_in(held.pop(which), T=tf.int32)
            assert bool(tf.reduce_all(back == which))
        held[number] = ops.hpcckpt_swap_out(tf.fill([int(random.integers(1, 20000))], number))


@pytest.mark.parametrize("tier", ["file", "host"])
def test_a_tier_that_is_full_is_an_error_that_says_where_how_much_and_what_to_do(
    configure: Configure, tmp_path: Path, tier: str
) -> None:
    configure(tier, file_limit=MIB, host_limit=MIB, rank=3)
    with pytest.raises(NoSpaceError, match=r"^\[rank 3\] .*2097152 bytes") as caught, native_engine.typed_errors():
        lms_native.away_and_back(ones(2 * MIB))
    place = str(tmp_path) if tier == "file" else "host tier"
    assert place in str(caught.value)
    assert f"raise {tier}_limit" in str(caught.value)
    assert lms_native.same(lms_native.away_and_back(ones(MIB)), ones(MIB))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_system_that_is_full_is_an_error_before_anything_is_written(configure: Configure, code: int) -> None:
    configure()
    native_engine.hinder(take=code)
    with pytest.raises(NoSpaceError, match=os.strerror(code)), native_engine.typed_errors():
        lms_native.away_and_back(ones(MIB))
    assert native_engine.stats().written_bytes == 0


def test_a_host_that_is_full_hands_on_to_the_file(configure: Configure) -> None:
    configure("host-then-file", host_limit=MIB)
    ops = native_engine.load()
    tensors = [tf.fill([MIB // 8], float(number)) for number in range(4)]
    handles = [ops.hpcckpt_swap_out(tensor) for tensor in tensors]
    stats = native_engine.stats()
    assert stats.peak_host_bytes == MIB
    assert stats.file is not None
    assert stats.file.used == MIB
    assert lms_native.same([ops.hpcckpt_swap_in(handle, T=tf.float32) for handle in handles], tensors)


def test_a_disk_that_cannot_write_is_an_error_of_the_swap_out(configure: Configure, tmp_path: Path) -> None:
    configure()
    native_engine.hinder(write=errno.EIO)
    with (
        pytest.raises(StorageError, match=f"writing 1048576 bytes to the file in {tmp_path}"),
        native_engine.typed_errors(),
    ):
        native_engine.load().hpcckpt_swap_out(ones(MIB))


def test_a_write_that_fails_after_the_swap_out_is_an_error_of_the_swap_in(configure: Configure) -> None:
    configure(window=MIB)
    native_engine.hinder(write=errno.EIO)
    handle = native_engine.load().hpcckpt_swap_out(ones(MIB))
    while native_engine.stats().in_flight_bytes:
        pass
    with pytest.raises(StorageError, match="writing 1048576 bytes"), native_engine.typed_errors():
        native_engine.load().hpcckpt_swap_in(handle, T=tf.float32)


def test_a_disk_that_cannot_read_is_an_error_of_the_swap_in(configure: Configure) -> None:
    configure()
    native_engine.hinder(read=errno.EIO)
    with pytest.raises(StorageError, match="reading 1048576 bytes back"), native_engine.typed_errors():
        lms_native.away_and_back(ones(MIB))


def test_what_is_still_on_its_way_out_comes_back_from_there(configure: Configure) -> None:
    configure(window=MIB)
    native_engine.hinder(write_delay_ms=-1)
    assert lms_native.same(lms_native.away_and_back(ones(MIB)), ones(MIB))
    native_engine.hinder()
    assert native_engine.stats().n_hot == 1
    assert native_engine.stats().read_bytes == 0


def test_a_slow_disk_lets_a_swap_out_wait_once_the_window_is_full(configure: Configure) -> None:
    configure(window=MIB)
    native_engine.hinder(write_delay_ms=-1)
    ops, handles = native_engine.load(), []
    handles.append(ops.hpcckpt_swap_out(ones(MIB)))  # fits
    thread = threading.Thread(target=lambda: handles.append(ops.hpcckpt_swap_out(ones(MIB))))
    thread.start()
    while native_engine.stats().in_flight_bytes < 2 * MIB:
        assert thread.is_alive()
    thread.join(0.1)
    assert thread.is_alive()
    native_engine.hinder()
    thread.join()
    assert len(handles) == 2
    assert native_engine.stats().peak_in_flight_bytes == 2 * MIB


def test_what_nobody_wants_back_is_not_written_and_leaves_no_room_taken(configure: Configure) -> None:
    configure(window=4 * MIB)
    native_engine.hinder(write_delay_ms=-1)
    handles = [native_engine.load().hpcckpt_swap_out(ones(MIB)) for _ in range(3)]
    del handles
    native_engine.hinder()
    assert native_engine.wait_until_idle()
    assert native_engine.stats().written_bytes <= MIB  # the first may have been begun
    file = native_engine.stats().file
    assert file is not None
    assert file.used == 0


def test_what_is_away_comes_back_from_the_tier_that_it_went_to(configure: Configure, tmp_path: Path) -> None:
    configure()
    ops = native_engine.load()
    handle = ops.hpcckpt_swap_out(ones(MIB))
    configure("host")
    assert lms_native.same(ops.hpcckpt_swap_in(handle, T=tf.float32), ones(MIB))


def test_the_same_settings_once_more_keep_the_file(configure: Configure) -> None:
    configure()
    handle = native_engine.load().hpcckpt_swap_out(ones(MIB))
    configure()
    file = native_engine.stats().file
    assert file is not None
    assert file.used == MIB
    configure(file_limit=MIB)
    file = native_engine.stats().file
    assert file is not None
    assert file.used == 0
    assert lms_native.same(native_engine.load().hpcckpt_swap_in(handle, T=tf.float32), ones(MIB))


def test_memory_of_what_came_back_goes_back_to_the_kernel_when_none_is_to_be_kept(configure: Configure) -> None:
    configure(spare=0)
    held = [lms_native.away_and_back(ones(16 * MIB)) for _ in range(8)]
    with native_engine.peak_resident() as before:
        pass
    del held
    with native_engine.peak_resident() as after:
        pass
    assert before.start - after.start > 5 * 16 * MIB


def test_nothing_comes_back_from_what_no_swap_out_made(configure: Configure) -> None:
    configure()
    handle = native_engine.load().hpcckpt_swap_out(ones(MIB))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not given what a swap-out of its type made"):
        native_engine.load().hpcckpt_swap_in(handle, T=tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not given what a swap-out"):
        native_engine.load().hpcckpt_swap_in(tf.raw_ops.EmptyTensorMap(), T=tf.int32)


# -- directories -----------------------------------------------------------------------------------


def test_a_directory_that_is_not_there_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: No such file.*LMS\(directory=\.\.\.\) or HPCCKPT_LMS_DIR"):
        native_engine.configure(TierConfig("file", tmp_path / "nowhere"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file: Not a directory"):
        native_engine.configure(TierConfig("file", tmp_path / "file"))


def test_a_directory_whose_name_is_not_utf8_works_and_is_named(configure: Configure, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"odd-\xff")
    with pytest.raises(ConfigError, match="odd-\udcff"):
        configure(directory=odd)
    odd.mkdir()
    configure(directory=odd)
    assert lms_native.same(lms_native.away_and_back(ones(MIB)), ones(MIB))
    file = native_engine.stats().file
    assert file is not None
    assert file.directory == str(odd)
    native_engine.hinder(read=errno.EIO)
    with pytest.raises(StorageError, match="odd-"), native_engine.typed_errors():
        lms_native.away_and_back(ones(MIB))
    odd.rmdir()


def test_a_directory_that_can_hold_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HpcckptError, match="/proc"):
        native_engine.configure(TierConfig("file", "/proc"))


def test_a_directory_that_will_not_do_leaves_the_tier_as_it_was(configure: Configure, tmp_path: Path) -> None:
    configure()
    with pytest.raises(ConfigError):
        native_engine.configure(TierConfig("file", tmp_path / "nowhere"))
    assert lms_native.same(lms_native.away_and_back(ones(MIB)), ones(MIB))


def is_tmpfs(path: str) -> bool:
    with open("/proc/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1:3] == [path, "tmpfs"] for line in mounts)


@pytest.mark.skipif(not is_tmpfs("/dev/shm") or not os.access("/dev/shm", os.W_OK), reason="no tmpfs that is writable")
def test_a_tier_on_tmpfs_works_and_says_that_it_frees_nothing(configure: Configure) -> None:
    assert "/dev/shm is on tmpfs, which is memory itself" in configure(directory="/dev/shm")
    assert lms_native.same(lms_native.away_and_back(ones(MIB)), ones(MIB))
    file = native_engine.stats().file
    assert file is not None
    assert not file.is_direct


@pytest.mark.parametrize("is_named", [False, True])
def test_the_file_has_no_name(configure: Configure, tmp_path: Path, is_named: bool) -> None:
    configure(is_named=is_named)
    handle = native_engine.load().hpcckpt_swap_out(ones(MIB))
    assert list(tmp_path.iterdir()) == []
    assert lms_native.same(native_engine.load().hpcckpt_swap_in(handle, T=tf.float32), ones(MIB))


KILLED = """
import sys
import tensorflow as tf
from hpcckpt.lms.runtime import native_engine as engine
engine.configure(engine.TierConfig("file", sys.argv[1], window=1 << 30, is_named=True))
engine.hinder(write_delay_ms=100)
handles = [engine.load().hpcckpt_swap_out(tf.ones([1 << 20])) for _ in range(20)]
print("now", flush=True)
sys.stdin.read()
"""


def test_what_is_killed_while_it_writes_leaves_no_file(tmp_path: Path) -> None:
    environ = environment(TF_CPP_MIN_LOG_LEVEL="3")
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


# -- settings --------------------------------------------------------------------------------------


def test_settings_that_cannot_be_are_named_all_at_once() -> None:
    with pytest.raises(OptionError, match=r"tier: 'disk' – one of auto, host, .*; window: -1 – .*; min_bytes: 1\.5"):
        TierConfig("disk", window=-1, min_bytes=1.5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="host_limit: 0 – how many bytes go to the host"):
        TierConfig("host-then-file")


def test_the_directory_is_the_one_that_is_named_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPCCKPT_LMS_DIR", "/from/the/environment")
    assert TierConfig(directory=tmp_path).place == str(tmp_path)
    assert TierConfig().place == "/from/the/environment"


def test_the_speed_of_a_tier_is_measured_and_leaves_nothing(configure: Configure) -> None:
    configure()
    assert min(native_engine.bandwidth()) > 0
    for wrong in ((-1, 1), (0, 1), (1, 0)):
        with pytest.raises(ValueError, match="cannot measure"):
            native_engine._module().probe(*wrong)
    configure(file_limit=MIB)
    with pytest.raises(NoSpaceError, match="the probe: 16777216 bytes do not fit"):
        native_engine.bandwidth()
