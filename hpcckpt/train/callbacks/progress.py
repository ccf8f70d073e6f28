"""How far a cycle has got: a bar on a terminal, with the state of its checkpoints; else lines. Root only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from keras.callbacks import Callback

from hpcckpt.collective.communicator import launched_rank
from hpcckpt.core import std_streams
from hpcckpt.core.results import SavedStep
from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.core.units import nbytes_text
from hpcckpt.keras.callbacks.backup_and_restore import plain_metrics
from hpcckpt.state.random_streams import undrawn
from hpcckpt.train.callbacks.backup_callback import BackupCallback
from hpcckpt.train.config_errors import did_you_mean, shown

__all__ = ["Bar", "Lines", "MonitorCheck", "Progress", "progress"]

LINE_EVERY_S = 60.0
BAR_EVERY_S = 0.2
_SHOWN = 6


class Progress(Callback):  # type: ignore[misc]  # Keras has no types
    """Shows how far a cycle has got.

    Parameters
    ----------
    title : str
        ``cycle=1/2``.
    backup : BackupCallback
        Knows the position of the training.
    steps : int or None
        Batches of an epoch.
    """

    every_s = LINE_EVERY_S
    shows_steps = False
    """Whether it shows checkpoints itself, so that they need no log lines."""

    def __init__(self, title: str, backup: BackupCallback, steps: int | None) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self._title, self._backup, self._steps = title, backup, steps
        self._next = self._epoch_began = time.monotonic()
        self._first = 0
        self._epoch = 0
        self._saved: tuple[SavedStep, float] | None = None

    # -- what Keras calls --------------------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch."""
        del logs
        self._epoch, self._first = epoch, self._backup.batch if self._backup.epoch == epoch else 0
        self._epoch_began = time.monotonic()
        self._next = self._epoch_began + self.every_s

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Show it, if it is time."""
        if time.monotonic() >= self._next:
            self.show(batch + 1, plain_metrics(logs or {}))
            self._next = time.monotonic() + self.every_s

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Show the epoch."""
        self.show_epoch(epoch + 1, plain_metrics(logs or {}))

    def on_train_end(self, logs: Any = None) -> None:
        """End."""
        del logs
        self.close()

    # -- what is shown -----------------------------------------------------------------------------

    def on_commit(self, saved: SavedStep, epoch: int) -> None:
        """Remember the step that was committed last. Independent."""
        del epoch
        self._saved = saved, time.monotonic()

    def show(self, batch: int, metrics: dict[str, float]) -> None:
        """Show how far the epoch has got."""
        of = f"/{self._steps}" if self._steps else ""
        write_wrapped(f"hpcckpt: {self._place} batch={batch}{of} {self._rate(batch)}{_figures(metrics)}")

    def show_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        """Show an epoch that is over."""
        del epoch
        seconds = time.monotonic() - self._epoch_began
        write_wrapped(f"hpcckpt: {self._place} seconds={seconds:.1f}{_figures(metrics)}")

    def close(self) -> None:
        """Show no more."""

    @property
    def _place(self) -> str:
        epochs = (self.params or {}).get("epochs")
        return f"{self._title} epoch={self._epoch + 1}" + (f"/{epochs}" if epochs else "")

    def _rate(self, batch: int) -> str:
        seconds = max(time.monotonic() - self._epoch_began, 1e-9)
        return f"batches/s={(batch - self._first) / seconds:.1f}"


class Lines(Progress):
    """A line for each epoch, and one a minute within."""


class Bar(Progress):
    """A bar for each epoch; below it the metrics and the state of the checkpoints, cut at the terminal's width."""

    every_s = BAR_EVERY_S
    shows_steps = True

    def __init__(self, title: str, backup: BackupCallback, steps: int | None) -> None:
        super().__init__(title, backup, steps)
        self._bars: Any = None
        self._task: Any = None
        self._doing = ""
        self._is_saving = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch, with a bar."""
        super().on_epoch_begin(epoch, logs)
        if self._bars is None:
            self._bars = _bars(lambda: (self._doing, self.checkpoints))
            self._bars.start()
        self._doing = ""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(self._place, total=self._steps, completed=self._first)

    def on_test_begin(self, logs: Any = None) -> None:
        """Show what takes long at the end of an epoch."""
        del logs
        if self._bars is not None:
            self._look("validating")
            self._bars.update(self._task, completed=self._steps)

    def show(self, batch: int, metrics: dict[str, float]) -> None:
        """Move the bar."""
        self._look(_figures(metrics).strip())
        self._bars.update(self._task, completed=batch)

    def _look(self, doing: str) -> None:
        self._doing, self._is_saving = doing, self._backup.is_saving

    @property
    def checkpoints(self) -> str:
        """Description of the state of the checkpoints; called from the drawing thread."""
        words = ["saving"] if self._is_saving else []
        if self._saved is not None:
            saved, at = self._saved
            words.append(f"saved step {saved.step} {time.monotonic() - at:.0f} s ago ({nbytes_text(saved.nbytes)})")
        return ", ".join(words) or "nothing saved yet"

    def close(self) -> None:
        """Take the bar away."""
        bars, self._bars, self._task = self._bars, None, None
        if bars is not None:
            bars.stop()


def _bars(rows: Callable[[], Sequence[str]]) -> Any:
    """Return bars that have rows of text below them, which are asked for each time they are drawn."""
    with undrawn():
        from rich import progress as rich
        from rich.console import Console
        from rich.text import Text

    class Bars(rich.Progress):
        def get_renderables(self) -> Iterator[Any]:
            yield from super().get_renderables()
            for row in filter(None, rows()):
                yield Text(f"  {row}", no_wrap=True, overflow="ellipsis")

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=24),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
    )
    return Bars(*columns, console=Console(stderr=True, soft_wrap=True), transient=True, refresh_per_second=4)


def _figures(metrics: dict[str, float]) -> str:
    return "".join(f" {name}={value:.4g}" for name, value in list(metrics.items())[:_SHOWN])


def progress(title: str, backup: BackupCallback, steps: int | None) -> Progress:
    """Return what shows the progress of a cycle here: a bar on a terminal, else lines. Root only."""
    return (Bar if is_terminal() else Lines)(title, backup, steps)


def is_terminal() -> bool:
    """Return True if standard error is a terminal that shows bars; under a launcher it may not be visible."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or launched_rank() is not None
    return not is_plain and std_streams.is_terminal()


# -- the metric of the best checkpoints -----------------------------------------------------------


class MonitorCheck(Callback):  # type: ignore[misc]  # Keras has no types
    """Warns after the first epoch if a metric does not exist: nothing would be kept as the best. Root only.

    Parameters
    ----------
    name : str
        Of the metric.
    warn : callable
        Called with the warning.
    """

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self._name, self._warn = name, warn
        self._is_known = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Check, once."""
        del epoch
        metrics = plain_metrics(logs or {})
        if not self._is_known and self._name not in metrics:
            self._warn(no_metric_text(self._name, metrics))
        self._is_known = True


def no_metric_text(name: str, metrics: Iterable[str]) -> str:
    """Return the warning that a metric for ``keep_best`` does not exist. Pure."""
    remedy = did_you_mean(name, metrics, "there are")
    return f"checkpoint.monitor: there is no metric {shown(name)!r}, keep_best keeps nothing; {remedy}"
