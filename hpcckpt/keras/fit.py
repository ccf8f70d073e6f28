"""The ``fit`` that is running: its callbacks, and what it reads its data with.

Keras shows a callback neither of them, so they are looked up in the calls that are under way; both
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

from hpcckpt.keras.feeds import Feed, make_feed


@dataclass(frozen=True, slots=True)
class Fit:
    """A running ``fit``.

    Attributes
    ----------
    callbacks : list or None
        All callbacks, in the order in which they are called; Keras' own list.
    feed : Feed or None
        What the data is read with.
    initial_epoch : int
        The epoch that the program asked to begin with.
    """

    callbacks: list[Any] | None = None
    feed: Feed | None = None
    initial_epoch: int = 0


def running_fit() -> Fit:
    """Return the ``fit`` whose callback this is called from. Independent."""
    callbacks: list[Any] | None = None
    for frame in _frames():
        values = frame.f_locals
        owner = values.get("self")
        if callbacks is None and type(owner).__name__ == "CallbackList":
            callbacks = getattr(owner, "callbacks", None)
        elif frame.f_code.co_name == "fit" and (feed := _feed_of(values)) is not None:
            return Fit(callbacks, feed, int(values.get("initial_epoch") or 0))
    return Fit(callbacks)


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


def _feed_of(values: Mapping[str, Any]) -> Feed | None:
    source = values.get("data_handler") or values.get("epoch_iterator")
    feed = make_feed(source) if source is not None else None
    if feed is not None:
        feed.validation = values.get("validation_data")
    return feed


class Last(Callback):  # type: ignore[misc]  # Keras has no types
    """Stands behind all callbacks, whatever their order, and hands on what it is told to the one that put it there."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self.owner = owner

    def on_train_begin(self, logs: Any = None) -> None:
        """Hand on."""
        self.owner.begin_training(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Hand on."""
        self.owner.begin_epoch(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Hand on."""
        self.owner.end_batch(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Hand on."""
        self.owner.end_epoch(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Hand on, for the last time: the list that it stands in is being gone through, so it cannot leave it now."""
        owner, self.owner = self.owner, None
        owner.end_training(logs)


def others_in(fit: Fit, owner: Any) -> list[Any]:
    """Return the callbacks of a ``fit`` but for one, and for what stands last."""
    return [each for each in fit.callbacks or () if each is not owner and not isinstance(each, Last)]


def stand_last(owner: Callback, callbacks: list[Any]) -> None:
    """Put a callback's `Last` behind all others of a running ``fit``; those that earlier ones left go."""
    callbacks[:] = [each for each in callbacks if not (isinstance(each, Last) and each.owner in (owner, None))]
    last = Last(owner)
    last.set_model(owner.model)
    last.set_params(owner.params)
    callbacks.append(last)
