"""Syncing and preallocating."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcckpt import native

pytestmark = pytest.mark.one_case


def fail_with(code: int) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_files_and_directories_can_be_synced(fd: int, tmp_path: Path) -> None:
    native.fsync(fd, "data")
    native.fdatasync(fd)
    native.fsync_dir(tmp_path)
    native.fsync_dir(str(tmp_path))


@pytest.mark.parametrize("sync", [native.fsync, native.fdatasync])
def test_an_error_of_syncing_names_the_file(sync: Callable[[int, str], None]) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument: 'pipes/dream'") as caught:
            sync(writer, "pipes/dream")
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "pipes/dream")
        with pytest.raises(OSError, match=r"Invalid argument$"):
            sync(writer, "")
    finally:
        os.close(reader)
        os.close(writer)


def test_a_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        native.fsync_dir(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        native.fsync_dir(tmp_path / "file")


def test_a_failing_directory_sync_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as caught:
        native.fsync_dir(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_a_file_system_that_cannot_sync_directories_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fail_with(errno.EINVAL))
    native.fsync_dir(tmp_path)


def test_preallocating_makes_room_and_never_shrinks(io: ModuleType, fd: int) -> None:
    io.preallocate(fd, 100_000)
    assert os.fstat(fd).st_size == 100_000
    assert os.fstat(fd).st_blocks * 512 >= 100_000
    os.pwrite(fd, b"kept", 99_990)
    for nbytes in (0, 10, 50_000):
        io.preallocate(fd, nbytes)
    assert os.fstat(fd).st_size == 100_000
    assert os.pread(fd, 4, 99_990) == b"kept"


def test_too_little_room_is_an_error_that_names_the_file(io: ModuleType, fd: int) -> None:
    with pytest.raises(OSError, match="there") as caught:
        io.preallocate(fd, 1 << 50, "there")
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert caught.value.filename == "there"


def test_a_negative_size_is_refused(io: ModuleType, fd: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        io.preallocate(fd, -1)
