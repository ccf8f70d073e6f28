"""What there is of a run: of each cycle its checkpoints, and whether it is complete. Looked up on root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcckpt import tiers
from hpcckpt.core.options import Best, parse_best
from hpcckpt.rundir.discovery import StepInfo, find_step, newest_restorable, scan
from hpcckpt.train.config.cycles import Cycle
from hpcckpt.train.run.run_directory import TrainingDirectory


@dataclass(frozen=True, slots=True)
class CycleState:
    """What there is of a cycle.

    Attributes
    ----------
    steps : tuple of int
        Its checkpoints that can be restored, but for those that are on scratch alone.
    epochs : int
        Epochs done at the newest, even if on scratch only.
    complete : dict or None
        What its last weights say of it, once it is complete.
    is_on_scratch : bool
        Whether scratch has any.
    """

    steps: tuple[int, ...] = ()
    epochs: int = 0
    complete: dict[str, Any] | None = None
    is_on_scratch: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether there is anything."""
        return bool(self.steps) or self.complete is not None or self.is_on_scratch


class RunState:
    """What there is of a run. Root only.

    Parameters
    ----------
    directory : TrainingDirectory
        Where it is.
    cycles : sequence of Cycle
        Those of the configuration that is to be trained now.

    Attributes
    ----------
    wanted : sequence of Cycle
        These.
    before : list of dict or None
        The configuration that was trained.
    cycles : list of CycleState
        Of all cycles of both configurations.
    """

    def __init__(self, directory: TrainingDirectory, cycles: Sequence[Cycle]) -> None:
        self.directory = directory
        self.wanted = cycles
        self.before = directory.configuration()
        known = max(len(cycles), len(self.before or ()))
        self.cycles = [self._look(index) for index in range(known)]

    def _look(self, index: int) -> CycleState:
        path = self.path(index)
        found = [info for info in scan(path) if info.is_restorable]
        near = on_scratch(self.wanted[index], path) if index < len(self.wanted) else ()
        newest = max([*found, *near], key=lambda info: info.step, default=None)
        return CycleState(
            tuple(info.step for info in found), epochs_of(newest), read_final(self.final(index)), bool(near)
        )

    def path(self, index: int) -> Path:
        """Return where the checkpoints of a cycle are."""
        return self.directory.cycle(index, self._root(index))

    def final(self, index: int) -> Path:
        """Return where its last weights are."""
        return self.directory.final(index, self._root(index))

    def has_trained(self, index: int) -> bool:
        """Return whether the configuration that was trained has a cycle."""
        return self.before is not None and index < len(self.before)

    def _root(self, index: int) -> str | None:
        """Return where a run has put a cycle, whatever the configuration says that is to be trained now."""
        if self.before is not None and self.has_trained(index):
            found: str | None = (self.before[index].get("checkpoint") or {}).get("directory")
            return found
        return self.wanted[index].checkpoint.directory if index < len(self.wanted) else None

    def monitor(self, index: int) -> str:
        """Return the metric that says which checkpoint of a cycle is best."""
        return self.wanted[min(index, len(self.wanted) - 1)].checkpoint.monitor

    @property
    def begun(self) -> list[int]:
        """The cycles of which there is something."""
        return [index for index, cycle in enumerate(self.cycles) if cycle.has_begun]

    @property
    def has_run(self) -> bool:
        """Whether there is a run at all."""
        return self.before is not None or bool(self.begun)

    def epochs_at(self, index: int, step: int | None) -> int:
        """Return how many epochs of a cycle are done at a step, or at its newest."""
        return self.cycles[index].epochs if step is None else epochs_of(find_step(self.path(index), step))

    def __str__(self) -> str:
        if not self.begun:
            return str(self.directory.path)
        last = self.begun[-1]
        steps = self.cycles[last].steps
        return f"{self.directory.path} (cycle {last + 1}{f', step {steps[-1]}' if steps else ''})"


def on_scratch(cycle: Cycle, path: Path) -> tuple[StepInfo, ...]:
    """Return what scratch has of the checkpoints of a cycle, as far as this process sees it. Independent."""
    scratch = cycle.checkpoint.scratch
    return () if scratch is None else tiers.whole_on(Path(scratch), path)


def epochs_of(info: Any) -> int:
    """Return the epochs done at a checkpoint; 0 if it does not say. Pure."""
    objects = info.manifest.objects.get("user", {}) if info is not None and info.manifest is not None else {}
    epoch = objects.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def read_final(path: Path) -> dict[str, Any] | None:
    """Return what the last weights of a complete cycle say of it; ``None`` if there are none. Independent."""
    newest = newest_restorable(path)
    if newest is None or newest.manifest is None:
        return None
    about = newest.manifest.objects.get("user", {}).get("cycle")
    return dict(about) if isinstance(about, dict) else None


def best_by(monitor: str, count: int = 1) -> Best:
    """Return what is best by a metric: ``val_loss``, or with the direction ``max:reward``. Pure."""
    return replace(parse_best(monitor) or Best(monitor), count=count)
