"""The native part of LMS, compiled for the TensorFlow that is installed; see `hpcckpt.native.tf_ops`.

It is loaded when LMS is first used: swap ops, tiers, and the graph pass, which does nothing until it is armed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from hpcckpt.native import tf_ops

Planner = Callable[[str, bool, str], str | None]


class LmsModule(Protocol):
    """The library's functions in addition to its ops; see ``lms_src/module.cc``."""

    def configure(
        self,
        tier: str,
        directory: str,
        window: int,
        host_limit: int,
        file_limit: int,
        min_bytes: int,
        spare: int,
        rank: int,
        is_mapped: bool,
        is_named: bool,
        is_fallback: bool,
        /,
    ) -> None:
        """Set the tier, or what is set when a tensor leaves before; `OSError` if the directory takes no file."""

    def arm(self, match: str, sessions: bool, stalls: bool, batch_size: int, planner: Planner, /) -> None:
        """Let the pass ask for a plan for each function that the expression is found in the name of."""

    def disarm(self) -> None:
        """Let the pass do nothing."""

    def stats(self) -> str:
        """Return the figures as JSON."""

    def reset_stats(self) -> None:
        """Reset the counters."""

    def hinder(self, write_delay_ms: int, read_delay_ms: int, take: int, write: int, read: int, /) -> None:
        """Act as a bad disk does: slow, or failing with these values of errno. For tests."""

    def probe(self, nbytes: int, count: int, /) -> tuple[int, int]:
        """Return nanoseconds for writing and for reading so much; `RuntimeError` if it cannot."""

    def keeps_freed(self) -> bool:
        """Return whether TensorFlow's allocator keeps what is freed."""

    def start_op_times(self) -> bool:
        """Begin to record; return False if a recording is in progress."""

    def stop_op_times(self) -> list[tuple[str, int, int, int]]:
        """Return name, count, nanoseconds in all, and first start of each op."""


class Lms(NamedTuple):
    """The library, loaded: its ops, its functions, its file."""

    raw: Any
    module: LmsModule
    path: Path


@functools.cache
def load_lms() -> Lms:
    """Load the library, built first if there is none; once in a process. Independent.

    Raises
    ------
    BackendError
        If it cannot be built, or does not load; with what to do about it.
    """
    path = tf_ops.find_or_build(tf_ops.LMS)
    raw, module = tf_ops.open_library(path, tf_ops.LMS)
    return Lms(raw, cast(LmsModule, module), path)


if __name__ == "__main__":
    sys.exit(tf_ops.main(library=tf_ops.LMS))
