"""PyTorch: ``torch.save`` to one path, and distributed checkpoints.

``one-path``       torch.save(..., PATH), over and over, as in "Saving and Loading Models"
``one-directory``  dcp.save(..., checkpoint_id=CHECKPOINT_DIR), over and over, as in "Getting Started with DCP"
``directories``    the same into a new directory for each step, three kept; resuming takes the newest
``directories-whole``  the same, but resuming takes the newest that has a ``.metadata`` file, as torchtitan does
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from tests.campaign.peers.states import State, state_of

Say = Callable[[int], None]
KEPT = 3


class Library:
    """One of these ways."""

    def __init__(self, directory: Path, variant: str) -> None:
        warnings.simplefilter("ignore")
        self.directory, self.variant = directory, variant
        directory.mkdir(exist_ok=True)

    def train(self, state: State, steps: int, begin: Say, saved: Say) -> None:
        """Save each step."""
        del state
        for step in range(1, steps):
            document = _document(step, state_of(step))
            begin(step)
            self._save(step, document)
            saved(step)
            for old in self._steps()[:-KEPT]:
                shutil.rmtree(old)

    def _save(self, step: int, document: dict[str, Any]) -> None:
        if self.variant == "one-path":
            torch.save(document, self.directory / "checkpoint.pt")
        else:
            where = self.directory if self.variant == "one-directory" else self.directory / f"step-{step:06d}"
            dcp.save(document, checkpoint_id=where)

    def _steps(self) -> list[Path]:
        return sorted(self.directory.glob("step-*")) if self.variant.startswith("directories") else []

    def resume(self, state: State) -> tuple[int, State] | None:
        """Load what a program of this kind loads."""
        if self.variant == "one-path":
            path = self.directory / "checkpoint.pt"
            return _values(torch.load(path)) if path.exists() else None
        where = self._newest()
        if where is None:
            return None
        document = _document(0, state)
        dcp.load(document, checkpoint_id=where)
        return _values(document)

    def _newest(self) -> Path | None:
        if self.variant == "one-directory":
            return self.directory if any(self.directory.iterdir()) else None
        steps = [p for p in self._steps() if self.variant == "directories" or (p / ".metadata").exists()]
        return steps[-1] if steps else None


def _document(step: int, state: State) -> dict[str, Any]:
    return {"step": torch.tensor(step), "model": {name: torch.from_numpy(values) for name, values in state.items()}}


def _values(document: dict[str, Any]) -> tuple[int, State]:
    return int(document["step"]), {name: tensor.numpy() for name, tensor in document["model"].items()}


def make(directory: Path, variant: str) -> Library:
    """Return it."""
    return Library(directory, variant)
