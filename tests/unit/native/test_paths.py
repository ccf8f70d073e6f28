"""Paths whose bytes are not UTF-8, which Python has as strings with surrogate escapes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hpcckpt import Checkpointer

ODD = os.fsdecode(b"odd-\xff\xfe")


def odd_directory(parent: Path) -> Path:
    try:
        (parent / ODD).mkdir()
    except OSError as error:  # macOS, and file systems that check names
        pytest.skip(f"this file system takes no such names: {error}")
    return parent / ODD


@pytest.mark.parametrize("is_bytes", [False, True])
def test_errors_of_native_calls_name_a_path_that_is_not_utf8(io: ModuleType, is_bytes: bool) -> None:
    path: Any = os.fsencode(ODD) if is_bytes else ODD
    calls = (
        lambda: io.write_blocks(-1, [(b"abc", 0)], path=path),
        lambda: io.read_blocks(-1, [(bytearray(3), 0, None)], path=path),
        lambda: io.preallocate(-1, 10, path),
    )
    for call in calls:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            call()
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, ODD)


def test_a_file_that_ends_early_is_named_by_a_path_that_is_not_utf8(io: ModuleType, fd: int) -> None:
    with pytest.raises(EOFError, match=f"^{ODD}: ends early: wanted 3 bytes at offset 5, got 0$"):
        io.read_blocks(fd, [(bytearray(3), 5, None)], path=ODD)


@pytest.mark.parametrize(
    "options",
    [{}, {"async_save": False}, {"backend": "hdf5"}, {"scratch": "scratch"}],
    ids=["", "sync", "hdf5", "tier"],
)
def test_a_run_in_a_directory_that_is_not_utf8_is_saved_and_restored(
    io: ModuleType, tmp_path: Path, options: dict[str, Any]
) -> None:
    if options.get("backend") == "hdf5":
        pytest.importorskip("h5py")
    directory = odd_directory(tmp_path)
    if "scratch" in options:
        options = {"scratch": directory / "scratch"}
    state = {"w": np.arange(1000.0), "n": 3}
    with Checkpointer(directory / "run", **options) as checkpointer:
        checkpointer.save(1, state)
        checkpointer.save(2, state)
    state["w"] = np.zeros(1000)
    with Checkpointer(directory / "run", **options) as checkpointer:
        assert checkpointer.restore(state).step == 2
    assert (state["w"] == np.arange(1000.0)).all()
