"""The steps of a run directory as one process of a job knows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcckpt.core.system import FileSystem
from hpcckpt.rundir import discovery
from hpcckpt.rundir.discovery import Manifests, StepInfo


class StepList:
    """The steps of a run directory: those on storage, and what restores of this job found out about them.

    Parameters
    ----------
    path : pathlib.Path
        The run directory.
    files : FileSystem
        Where it is.
    has_parts : bool
        True if it is on the disk of one node of several, and has only parts of steps.

    Attributes
    ----------
    manifests : Manifests
        Those that were read before.
    damaged : dict of int to str
        Steps that a restore of this job found damaged, with their `save_id`; the same on all ranks.
    kept : set of int
        Steps that this job does not retire, though they could not be pinned.
    """

    def __init__(self, path: Path, files: FileSystem, *, has_parts: bool = False) -> None:
        self.manifests = Manifests(files)
        self.damaged: dict[int, str] = {}
        self.kept: set[int] = set()
        self._path, self._files, self._has_parts = path, files, has_parts

    def numbers(self) -> list[int]:
        """Return the numbers of all step directories, whole or not, in rising order. Independent."""
        return discovery.step_numbers(self._path, self._files)

    def inspect(self, step: int) -> StepInfo:
        """Return one step as it is on storage. Independent."""
        return discovery.inspect_step(self._path, step, self.manifests, files=self._files)

    def discover(self) -> tuple[StepInfo, ...]:
        """Return all steps as they are on storage, in rising order. Independent."""
        return discovery.scan(self._path, self.manifests, self._files)

    def mark(self, info: StepInfo) -> StepInfo:
        """Return a step with the damage that restores found; of one node, the part that it has. Independent."""
        if self._has_parts:
            info = discovery.inspect_part(info, self.manifests, self._files)
        if info.manifest is None or self.damaged.get(info.step) != info.manifest.save_id:
            return info
        return replace(info, problem=info.problem or f"step {info.step}: a restore found its bytes damaged")
