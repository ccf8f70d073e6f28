"""The position of a ``model.fit``, and how Keras is made to begin there.

Keras 2.15 asks an object for the epoch and the batch to begin with; Keras 3 knows an epoch only, and its
steps are passed over where they are handed out (:mod:`hpcckpt.keras.data.data_source`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class DataPosition(Protocol):
    """An input pipeline that knows its position; it is saved and restored with the model."""

    @property
    def epoch(self) -> int:
        """Epochs done."""

    @property
    def batch(self) -> int:
        """Batches of this run's size done in the current epoch."""

    def advance(self, n_batches: int) -> None:
        """Count batches that were trained on (a pipeline reads ahead, so only the trainer knows)."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the position as JSON values, equal on all ranks."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` returned, maybe on another number of ranks."""


@dataclass(frozen=True, slots=True)
class FitPosition:
    """Epochs done, batches done in the next one, and batches done in all runs together."""

    epoch: int = 0
    batch: int = 0
    step: int = 0

    def scaled(self, size_before: int, size_now: int) -> FitPosition:
        """Return the position for batches of another size, of one rank or of all ranks together.

        Rounded down: a part of a batch is seen again rather than lost.
        """
        return FitPosition(self.epoch, self.batch * size_before // size_now, self.step)

    def within(self, steps: int | None) -> FitPosition:
        """Return the position with a finished epoch counted as such; `steps` per epoch, if known."""
        if steps is None or self.batch < steps:
            return self
        return FitPosition(self.epoch + 1, 0, self.step)


class _BeginAt:
    """What Keras 2.15 asks for the first epoch and batch; answers once."""

    def __init__(self, position: FitPosition) -> None:
        self._position: FitPosition | None = position

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: object
    ) -> tuple[int, int]:
        """Return epoch and batch to begin with."""
        del steps_per_epoch, mode
        position, self._position = self._position, None
        return (initial_epoch, 0) if position is None else (position.epoch, position.batch)


def begin_at(model: Any, position: FitPosition) -> None:
    """Make the running ``fit`` begin at `position`; call it in ``on_train_begin``."""
    if hasattr(model, "_maybe_load_initial_counters_from_ckpt"):
        model._training_state = _BeginAt(position)
    else:
        model._initial_epoch = position.epoch


def forget(model: Any) -> None:
    """Leave no trace for the next ``fit``."""
    for name in ("_training_state", "_initial_epoch"):
        if hasattr(model, name):
            setattr(model, name, None)
