"""What a job leaves that is killed when its first step is on scratch, and not in the run directory yet."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.core import failpoints
from hpcckpt.format import layout


@contextlib.contextmanager
def killed_before_the_first_drain(run: Path, scratch: Path) -> Iterator[None]:
    """Restore both directories, after the block, as they were before its first drain began. For one rank.

    They are copied where the thread that trains takes in that the step is on scratch: there are no writes meanwhile.
    """
    kept = {place: place.with_name(f"{place.name}-kept") for place in (run, scratch)}

    def keep(phase: str, _rank: int) -> None:
        if phase == "7-outcome" and not any(copy.exists() for copy in kept.values()):
            for place, copy in kept.items():
                shutil.copytree(place, copy, symlinks=True, ignore=shutil.ignore_patterns(layout.LOCK))

    failpoints.install_hook(keep)
    try:
        yield
    finally:
        failpoints.install_hook(None)
    for place, copy in kept.items():
        shutil.rmtree(place)
        os.rename(copy, place)
