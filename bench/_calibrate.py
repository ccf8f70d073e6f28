"""The machine's own speed, from a few lines of C that are compiled when a benchmark starts."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("_calibrate.c")
COPY_BYTES = 128 << 20


class Machine:
    """Plain C writing, reading and copying."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            library = Path(place, "calibrate.so")
            compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
            self._c = ctypes.CDLL(str(library))
        self._from = np.full(COPY_BYTES, 1, np.uint8)
        self._to = np.full(COPY_BYTES, 2, np.uint8)

    def copy_rate(self) -> float:
        """Return bytes per second of a memcpy between warm buffers: the best of a few."""
        rates = []
        for _ in range(5):
            began = time.perf_counter()
            self._c.copy(_pointer(self._to), _pointer(self._from), ctypes.c_size_t(COPY_BYTES))
            rates.append(COPY_BYTES / (time.perf_counter() - began))
        return max(rates)

    def write_new_file(self, path: Path, pieces: Sequence[np.ndarray], *, is_early: bool = False) -> None:
        """Write bytes to a new file, with pwrite and fdatasync; with early write-back if `is_early`."""
        _check(self._c.write_new_file(os.fsencode(path), *_list_of(pieces), int(is_early)), path)

    def write_over_file(self, path: Path, pieces: Sequence[np.ndarray]) -> None:
        """Write bytes over those of a file that is as large, with pwrite and fdatasync."""
        _check(self._c.write_over_file(os.fsencode(path), *_list_of(pieces)), path)

    def read_and_check_file(self, path: Path, pieces: Sequence[np.ndarray]) -> None:
        """Fill arrays from a file, with pread, and compute the checksums of what was read in the same pass."""
        total = ctypes.c_uint64()
        _check(self._c.read_and_check_file(os.fsencode(path), *_list_of(pieces), ctypes.byref(total)), path)

    def read_file(self, path: Path, pieces: Sequence[np.ndarray], offset: int = 0) -> None:
        """Fill arrays from a file, with pread, from an offset on."""
        _check(self._c.read_file(os.fsencode(path), *_list_of(pieces), ctypes.c_size_t(offset)), path)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _list_of(pieces: Sequence[np.ndarray]) -> tuple[ctypes.Array, ctypes.Array, ctypes.c_size_t]:
    pointers = (ctypes.c_void_p * len(pieces))(*[piece.ctypes.data for piece in pieces])
    sizes = (ctypes.c_size_t * len(pieces))(*[piece.nbytes for piece in pieces])
    return pointers, sizes, ctypes.c_size_t(len(pieces))


def _check(error: int, path: Path) -> None:
    if error:
        raise OSError(error, os.strerror(error), os.fspath(path))
