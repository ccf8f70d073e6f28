"""Bars on a terminal: ours while data is skipped, on root only, and Keras' own, which our lines must not tear."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hpcckpt.core.std_streams import is_terminal, mark_open_line, write_wrapped
from hpcckpt.state.random_streams import undrawn

T = TypeVar("T")
PATIENCE_S = 2.0
"""Seconds of waiting after which the reason is logged."""


class Skipping:
    """Iterates over batches that are skipped.

    Parameters
    ----------
    is_shown : bool
        Whether this rank prints.
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
            write_wrapped(f"hpcckpt: skipped batches={count} seconds={seconds:.1f}")

    @contextlib.contextmanager
    def _bar(self, total: int | None) -> Iterator[Callable[[], None]]:
        if not (self._is_shown and total != 0 and is_terminal()):
            yield lambda: None
            return
        with undrawn():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("skipping batches"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)


def mark_bar(callbacks: Iterable[Any] | None) -> None:
    """Mark the line of the bar that Keras has drawn as open, for it has no end before its epoch ends. Independent.

    Parameters
    ----------
    callbacks : iterable of Callback or None
        Those of the ``fit``; ``None`` if they are unknown, or between epochs.
    """
    from keras.callbacks import ProgbarLogger  # here: `enable_exact_resume` loads this module before TensorFlow

    loggers = [each for each in callbacks or () if isinstance(each, ProgbarLogger) and each.verbose == 1]
    bar = getattr(loggers[0], "progbar", None) if loggers else None
    drawn_at = getattr(bar, "_last_update", 0)  # 0 before it is first drawn
    mark_open_line((id(bar), drawn_at) if drawn_at else None)
