"""hpcckpt, as its README says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import hpcckpt as hc
from tests.campaign.peers.states import State, state_of

Say = Callable[[int], None]


class Library:
    """One run directory; the newest whole step is found by `restore`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def train(self, state: State, steps: int, begin: Say, saved: Say) -> None:
        """Save each step."""
        with hc.Checkpointer(self.directory) as ckpt:
            for step in range(1, steps):
                for name, values in state_of(step).items():
                    np.copyto(state[name], values)
                begin(step)
                ckpt.save(step, state).result()
                saved(step)

    def resume(self, state: State) -> tuple[int, State] | None:
        """Restore the newest step."""
        with hc.Checkpointer(self.directory) as ckpt:
            if ckpt.latest_step() is None:
                return None
            return ckpt.restore(state).step, state


def make(directory: Path, variant: str) -> Library:
    """Return it."""
    del variant
    return Library(directory)
