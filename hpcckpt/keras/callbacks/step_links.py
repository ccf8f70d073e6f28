"""The names that users give checkpoints, ``training/cp-{epoch:04d}.ckpt``, over a run directory with steps in it.

The run directory is the path before the first part with a placeholder; each step in it
has its user's name as a symbolic link, so that either name opens it::

    training/cp-0003.ckpt -> step-0000001407
    training/step-0000001407/manifest.json

A path without placeholders is the run directory itself: the newest step in it is the checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path, PurePath

from hpcckpt.core import files
from hpcckpt.format import layout


def run_directory(filepath: str) -> str:
    """Return the run directory of a path with or without placeholders. Pure."""
    fixed = itertools.takewhile(lambda part: "{" not in part, PurePath(filepath).parts)
    return os.fspath(PurePath(*fixed))


def link(directory: Path, name: str, step: int) -> str:
    """Give a step its user's name, relative to the run directory; return the problem, or an empty text. Root only."""
    place = directory / name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _point(place, os.path.relpath(directory / layout.step_dirname(step), place.parent))
    except OSError as error:
        return f"{place} cannot be linked to step {step}: {error.strerror or error}"
    return ""


def _point(place: Path, target: str) -> None:
    """Make a link, or have one point elsewhere, at once."""
    if place.is_symlink() and os.readlink(place) == target:
        return
    if os.path.lexists(place) and not place.is_symlink():
        raise FileExistsError(errno.EEXIST, "something else of that name is there")
    temporary = place.with_name(f".{place.name}.{layout.new_nonce()}")
    os.symlink(target, temporary)
    try:
        files.rename(temporary, place)
    except OSError:
        files.unlink(temporary)
        raise


def sweep(directory: Path, name: str) -> None:
    """Remove the links beside this name that point to steps which are not there any more. Root only."""
    real = os.path.realpath(directory)
    with contextlib.suppress(OSError):
        for entry in list(os.scandir((directory / name).parent)):
            if entry.is_symlink() and not os.path.exists(entry.path) and _is_of(os.path.realpath(entry.path), real):
                files.unlink(entry.path)


def _is_of(target: str, directory: str) -> bool:
    return os.path.dirname(target) == directory and layout.parse_step(os.path.basename(target)) is not None
