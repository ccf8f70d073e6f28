"""A bar for people who wait while data is skipped; on root only, and only where somebody can see it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hpcckpt.keras.rng import undrawn
from hpcckpt.streams import write_message

T = TypeVar("T")
PATIENCE_S = 2.0
"""Whoever waits longer is told what for, also in a log."""


class Skipping:
    """Goes over batches that are skipped.

    Parameters
    ----------
    is_shown : bool
        Whether this rank says anything.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown

    def over(self, batches: Iterable[T], total: int | None) -> Iterator[T]:
        """Yield `batches`, of which there are `total` if that is known, and show how far that has got."""
        began = time.monotonic()
        count = 0
        with self._bar(total) as advance:
            for batch in batches:
                yield batch
                advance()
                count += 1
        seconds = time.monotonic() - began
        if self._is_shown and count and seconds > PATIENCE_S:
            write_message(f"hpcckpt: skipped batches={count} seconds={seconds:.1f}")

    @contextlib.contextmanager
    def _bar(self, total: int | None) -> Iterator[Callable[[], None]]:
        if not (self._is_shown and total != 0 and sys.stderr is not None and sys.stderr.isatty()):
            yield lambda: None
            return
        with undrawn():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("skipping batches"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)
