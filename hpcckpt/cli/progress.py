"""Progress bars on stderr, where there is a terminal to show them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpcckpt.cli.output import is_fancy
from hpcckpt.core.units import nbytes_text

Advance = Callable[[int], None]


@contextmanager
def byte_progress(what: str, total: int, *, is_quiet: bool = False) -> Iterator[Advance]:
    """Show a bar while the block runs; give it a function to call with the bytes that were done.

    Parameters
    ----------
    what : str
        The word before the bar.
    total : int
        Bytes in all.
    is_quiet : bool
        Show nothing; nothing is shown either without a terminal, with NO_COLOR, or without rich.
    """
    if is_quiet or not is_fancy(sys.stderr) or importlib.util.find_spec("rich") is None:
        yield lambda _nbytes: None
        return
    with _rich_bar(what, total) as advance:
        yield advance


def rate_column() -> Any:
    """Return a column of a bar: bytes per second, in the units of all other output."""
    from rich import progress
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{nbytes_text(speed)}/s", style="progress.data.speed")

    return Rate()


@contextmanager
def _rich_bar(what: str, total: int) -> Iterator[Advance]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(binary_units=True),
        rate_column(),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda nbytes: bars.advance(task, nbytes)
        bars.update(task, completed=total)
