"""Distribute samples to ranks so that any number of ranks can resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class EpochSampler:
    """Distributes the samples of each epoch, shuffled by seed and epoch, to ranks.

    A step takes ``batch_size`` samples per rank from the epoch's order, rank after rank. The position is
    the number of samples of the epoch that all ranks together have used. A run on another number of ranks
    therefore resumes with the next sample, and uses none twice. The samples at the end of an epoch that
    are too few for a step are dropped.

    Parameters
    ----------
    n_samples, batch_size : int
        Number of samples in the data set, and per rank and step.
    rank, size : int
        This rank, and the number of ranks.
    seed : int
        Seed of the orders of all epochs.
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
        """Return the index of the next batch in the epoch, in steps of this run.

        It is the number of steps per epoch minus the number of whole steps that remain.
        """
        return self.steps_per_epoch - (self.n_samples - self.samples) // self.per_step

    def advance(self, n_batches: int) -> None:
        """Advance the position by `n_batches` steps."""
        self.samples += n_batches * self.per_step
        self._end_epoch()

    def state_dict(self) -> dict[str, int]:
        """Return the position, which is identical on all ranks."""
        return {"epoch": self.epoch, "samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the position; it may come from a run on another number of ranks."""
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self.n_samples - self.samples < self.per_step:
            self.epoch, self.samples = self.epoch + 1, 0

    def indices(self) -> Iterator[np.ndarray]:
        """Yield this rank's sample indices for each step from the position, endlessly."""
        epoch, first = self.epoch, self.samples
        while True:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.n_samples)
            for start in range(first, self.n_samples - self.per_step + 1, self.per_step):
                mine = start + self.rank * self.batch_size
                yield order[mine : mine + self.batch_size]
            epoch, first = epoch + 1, 0
