"""``tf.train.Checkpoint`` with a ``CheckpointManager``, as in the guide "Training checkpoints"."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tests.campaign.peers.states import State, state_of

Say = Callable[[int], None]


class Library:
    """A manager that keeps three checkpoints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _make(self, state: State) -> tuple[tf.Variable, dict[str, tf.Variable], tf.train.CheckpointManager]:
        position = tf.Variable(0, dtype=tf.int64)
        variables = {name: tf.Variable(values) for name, values in state.items()}
        checkpoint = tf.train.Checkpoint(step=position, **variables)
        return position, variables, tf.train.CheckpointManager(checkpoint, str(self.directory), max_to_keep=3)

    def train(self, state: State, steps: int, begin: Say, saved: Say) -> None:
        """Save each step."""
        position, variables, manager = self._make(state)
        for step in range(1, steps):
            position.assign(step)
            for name, values in state_of(step).items():
                variables[name].assign(values)
            begin(step)
            manager.save()
            saved(step)

    def resume(self, state: State) -> tuple[int, State] | None:
        """Restore the manager's latest."""
        position, variables, manager = self._make(state)
        if manager.latest_checkpoint is None:
            return None
        manager.checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        return int(position.numpy()), {name: variable.numpy() for name, variable in variables.items()}


def make(directory: Path, variant: str) -> Library:
    """Return it."""
    del variant
    return Library(directory)
