"""The ``fit`` that is running: its callbacks, and what it reads its data with.

Keras shows a callback neither of them, so they are looked up in the frames of the call stack; both
are made before the first ``on_train_begin``, by Keras 2.15 and by Keras 3.  Who calls callbacks by hand,
without ``fit``, has neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from keras.callbacks import Callback

from hpcckpt.keras.data.data_source import DataSource, make_data_source


@dataclass(frozen=True, slots=True)
class RunningFit:
    """A running ``fit``.

    Attributes
    ----------
    callbacks : list or None
        All callbacks, in the order in which they are called; Keras' own list.
    data_source : DataSource or None
        The source of the data.
    initial_epoch : int
        The epoch that the program asked to begin with.
    """

    callbacks: list[Any] | None = None
    data_source: DataSource | None = None
    initial_epoch: int = 0


def running_fit() -> RunningFit:
    """Return the ``fit`` whose callback this is called from. Independent."""
    callbacks: list[Any] | None = None
    for frame in _frames():
        values = frame.f_locals
        owner = values.get("self")
        if callbacks is None and type(owner).__name__ == "CallbackList":
            callbacks = getattr(owner, "callbacks", None)
        elif frame.f_code.co_name == "fit" and (data_source := _data_source_of(values)) is not None:
            return RunningFit(callbacks, data_source, int(values.get("initial_epoch") or 0))
    return RunningFit(callbacks)


def running_callbacks() -> list[Any] | None:
    """Return Keras' list of the callbacks of which one is being called. Independent."""
    for frame in _frames():
        owner = frame.f_locals.get("self")
        if type(owner).__name__ == "CallbackList":
            return getattr(owner, "callbacks", None)
    return None


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _data_source_of(values: Mapping[str, Any]) -> DataSource | None:
    source = values.get("data_handler") or values.get("epoch_iterator")
    data_source = make_data_source(source) if source is not None else None
    if data_source is not None:
        data_source.validation = values.get("validation_data")
    return data_source


class Last(Callback):  # type: ignore[misc]  # Keras has no types
    """Runs after all other callbacks, whatever their order, and forwards each call to its owner."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self.owner = owner

    def on_train_begin(self, logs: Any = None) -> None:
        """Forward to the owner."""
        self.owner.begin_training(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forward to the owner."""
        self.owner.begin_epoch(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Forward to the owner."""
        self.owner.end_batch(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Forward to the owner."""
        self.owner.end_epoch(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Forward, for the last time. Keras iterates over its list just now, so this callback cannot leave it."""
        owner, self.owner = self.owner, None
        owner.end_training(logs)


def other_callbacks(fit: RunningFit, owner: Any) -> list[Any]:
    """Return the callbacks of a ``fit`` without `owner` and without any `Last`."""
    return [each for each in fit.callbacks or () if each is not owner and not isinstance(each, Last)]


def append_last(owner: Callback, callbacks: list[Any]) -> None:
    """Append `owner`'s `Last` to the callbacks of a running ``fit``; remove those of earlier fits."""
    callbacks[:] = [each for each in callbacks if not (isinstance(each, Last) and each.owner in (owner, None))]
    last = Last(owner)
    last.set_model(owner.model)
    last.set_params(owner.params)
    callbacks.append(last)
