"""Which rank trains on which samples, counted in samples, so that any number of ranks can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class EpochSampler:
    """Distributes the samples of each epoch, shuffled by seed and epoch, to the ranks.

    A step takes ``batch_size`` samples per rank from the epoch's order, rank after rank. The position
    is the number of samples that all ranks together have behind them in the epoch, so a run on other
    ranks begins with the very next sample: none is seen twice. What is left of an epoch and too little
    for a step is dropped.

    Parameters
    ----------
    n_samples, batch_size : int
        Samples in the data set, and per rank and step.
    rank, size : int
        This rank, and the number of ranks.
    seed : int
        Of all epochs' orders.
    """

    def __init__(self, n_samples: int, batch_size: int, rank: int, size: int, seed: int = 0) -> None:
        self.n_samples, self.batch_size, self.rank, self.seed = n_samples, batch_size, rank, seed
        self.per_step = batch_size * size
        self.steps_per_epoch = n_samples // self.per_step
        self.epoch = self.samples = 0
        if self.steps_per_epoch < 1:
            raise ValueError(f"{n_samples} samples are not enough for one step of {self.per_step}")

    @property
    def batch(self) -> int:
        """Steps of this run's size that the epoch has behind it, so that what is left is a whole number of steps."""
        return self.steps_per_epoch - (self.n_samples - self.samples) // self.per_step

    def advance(self, n_batches: int) -> None:
        """Count steps that were trained."""
        self.samples += n_batches * self.per_step
        self._end_epoch()

    def state_dict(self) -> dict[str, int]:
        """Return the position, the same on all ranks."""
        return {"epoch": self.epoch, "samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position, maybe one of another number of ranks."""
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self.n_samples - self.samples < self.per_step:
            self.epoch, self.samples = self.epoch + 1, 0

    def indices(self) -> Iterator[np.ndarray]:
        """Yield this rank's samples step by step, from the present position on, without end."""
        epoch, first = self.epoch, self.samples
        while True:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.n_samples)
            for start in range(first, self.n_samples - self.per_step + 1, self.per_step):
                mine = start + self.rank * self.batch_size
                yield order[mine : mine + self.batch_size]
            epoch, first = epoch + 1, 0
