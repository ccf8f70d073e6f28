"""Verification of a step: its memory is measured while it runs, and compared with the budget."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
ATTEMPTS = 3
OUT_OF_MEMORY = 1 << 62
"""The peak of a step that ran out of memory."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Memory of a step: peak above the level before it, samples, and that level."""

    peak: int
    curve: tuple[tuple[float, int], ...] = ()
    level: int | None = None


class MemoryWatch:
    """Measures the memory of this process, or of a GPU, from `begin` to `end`.

    It records the peak, and samples for the curve.

    Parameters
    ----------
    gpu : str, optional
        ``"GPU:0"``: read TensorFlow's allocator there, not the process.
    interval_s : float
        The time between two samples.
    """

    def __init__(self, gpu: str | None = None, interval_s: float = 0.005) -> None:
        self.gpu, self._interval_s = gpu, interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[tuple[float, int]] = []
        self._start = 0
        self._t0 = 0.0
        self._has_peak = True

    @property
    def is_on(self) -> bool:
        """Whether it is measuring."""
        return self._thread is not None

    def begin(self, level: int | None = None) -> None:
        """Start measuring from a level, by default the present one.

        A repeated step is measured from the level before the first one: otherwise memory that the first one left
        allocated would not be counted.
        """
        self.drop()
        self._has_peak = reset_peak(self.gpu)
        self._start = resident(self.gpu) if level is None else level
        self._t0, self._samples = time.perf_counter(), []
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, name="hpcckpt-lms-memory", daemon=True)
        self._thread.start()

    def end(self) -> Measured:
        """Stop measuring; return what was measured since `begin`."""
        peak = (peak_since if self._has_peak else resident)(self.gpu) - self._start
        self.drop()
        curve = tuple(self._samples)
        return Measured(max([0, peak, *(nbytes for _, nbytes in curve)]), curve, self._start)

    def drop(self) -> None:
        """Stop measuring."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._samples.append((time.perf_counter() - self._t0, resident(self.gpu) - self._start))


def resident(gpu: str | None = None) -> int:
    """Return the bytes in memory now, without pages of files.

    The kernel drops pages of files when memory is short.
    """
    if gpu is not None:
        return int(_gpu_memory(gpu)["current"])
    whole, of_files = _pages()
    return (whole - of_files) * _PAGE


def _pages() -> tuple[int, int]:
    """Return how many pages are resident, and how many of these are of files: code of libraries mostly."""
    words = _STATM.read_bytes().split()
    return int(words[1]), int(words[2])


def reset_peak(gpu: str | None = None) -> bool:
    """Reset the peak; return True if that was possible.

    Some containers do not allow it.
    """
    if gpu is not None:
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats(gpu)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def peak_since(gpu: str | None = None) -> int:
    """Return the peak since `reset_peak`."""
    if gpu is not None:
        return int(_gpu_memory(gpu)["peak"])
    now = resident()
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return max(now, (int(line.split()[1]) << 10) - _pages()[1] * _PAGE)
    return now


def _gpu_memory(gpu: str) -> dict[str, int]:
    import tensorflow as tf

    found: dict[str, int] = tf.config.experimental.get_memory_info(gpu)
    return found


def measured(step: Callable[[], Any], gpu: str | None = None) -> Measured:
    """Run a step, and return the memory that it took."""
    watch = MemoryWatch(gpu)
    watch.begin()
    try:
        step()
    except BaseException:
        watch.drop()
        raise
    return watch.end()


def tightened(target: int, budget: int, peak: int) -> int:
    """Return the next target, after a plan for `target` exceeded `budget`.

    All are in bytes; `peak` is what the plan took.
    """
    if peak >= OUT_OF_MEMORY:
        return target // 2
    return min(int(target * budget / max(peak, 1) * 0.98), target - 1)
