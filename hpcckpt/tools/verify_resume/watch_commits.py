"""What a run commits while it runs: its directory is looked at again and again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.errors import HpcckptError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import discovery
from hpcckpt.rundir.discovery import Manifests
from hpcckpt.tools.verify_resume.results import ObservedStep


class CommitWatch:
    """Notes each step that appears in a run directory, until it is asked no more.

    Parameters
    ----------
    directory : Path
        The run directory, which need not be there yet.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: list[ObservedStep] = []
        self._manifests = Manifests()
        self._known = {manifest.save_id for manifest in self._there()}

    def look(self, elapsed_s: float) -> None:
        """Note what is new."""
        for manifest in self._there():
            if manifest.save_id not in self._known:
                self._known.add(manifest.save_id)
                self.seen.append(ObservedStep(manifest.step, elapsed_s, dict(manifest.metrics), manifest.save_id))

    def _there(self) -> Iterator[Manifest]:
        with contextlib.suppress(HpcckptError):
            for step in discovery.step_numbers(self.directory):
                with contextlib.suppress(HpcckptError):  # retired meanwhile
                    yield self._manifests.read(os.path.join(self.directory, layout.step_dirname(step)))


def newest(directory: Path) -> int | None:
    """Return the newest restorable step; ``None`` if there is none."""
    found = discovery.newest_restorable(directory) if directory.is_dir() else None
    return None if found is None else found.step
