"""When a `CheckpointCallback` saves: pure counting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcckpt.errors import OptionError, Problem, list_problems

KEYS = ("epoch", "batch", "step", "minutes")


@dataclass(frozen=True, slots=True)
class Frequency:
    """After how many epochs, batches of an epoch, batches in all, and minutes to save; ``None`` is never."""

    epoch: int | None = None
    batch: int | None = None
    step: int | None = None
    minutes: float | None = None

    @classmethod
    def parse(cls, given: Any) -> Frequency:
        """Return the frequency that a user gave.

        Raises
        ------
        TypeError
            If it is no dictionary.
        OptionError
            Naming every key and value that is wrong.
        """
        if not isinstance(given, Mapping):
            raise TypeError("frequency should be a dictionary")
        problems = [Problem(f"frequency: {key!r}", f"one of {', '.join(KEYS)}") for key in given if key not in KEYS]
        problems += [
            Problem(f"frequency.{key}", f"{value!r} – a positive {'number' if key == 'minutes' else 'whole number'}")
            for key, value in given.items()
            if key in KEYS and not _is_positive(value, (int, float) if key == "minutes" else (int,))
        ]
        if problems or not given:
            raise OptionError(list_problems(problems) or f"frequency: {{}} – at least one of {', '.join(KEYS)}")
        return cls(**given)

    def is_due_after_epoch(self, n_epochs: int) -> bool:
        """Return True if a save is due after an epoch; the first one is epoch number 1."""
        return self.epoch is not None and n_epochs % self.epoch == 0

    def is_due_after_batches(self, of_epoch: range, in_all: range) -> bool:
        """Return True if a save is due after some batches, given their numbers, from 1, in the epoch and in all."""
        return _passed(self.batch, of_epoch) or _passed(self.step, in_all)

    def is_due_after_minutes(self, minutes: float) -> bool:
        """Return True if a save is due `minutes` after the last one."""
        return self.minutes is not None and minutes >= self.minutes


def _is_positive(value: Any, kinds: tuple[type[Any], ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and value > 0


def _passed(interval: int | None, numbers: range) -> bool:
    return interval is not None and (numbers.stop - 1) // interval > (numbers.start - 1) // interval
