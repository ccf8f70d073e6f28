"""Which steps are kept, and how the others go: decided purely, done under the run's lock.

Retiring a step, in this order, so that a kill at any point leaves nothing that looks whole:

    a. rename it to ``.retired-<nonce>`` and fsync the run directory: out of sight
    b. remove its manifest and fsync: no longer a checkpoint
    c. remove the rest, or keep its files for the next save, which writes over them (on most file systems
       several times faster than into new files)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from hpcckpt import layout, native, phases
from hpcckpt.config import Options
from hpcckpt.discovery import Manifests, StepInfo, best_of, drop_stale_pins, pins_to_obey, scan, step_numbers


def steps_to_keep(steps: tuple[StepInfo, ...], options: Options, pinned: Collection[int]) -> set[int]:
    """Return the steps that stay: the newest, the best, the periodic, the pinned, and whatever is damaged. Pure."""
    whole = [info.step for info in steps if info.is_restorable]
    kept = set(whole if options.max_to_keep is None else whole[-options.max_to_keep :])
    kept |= set(pinned) | {info.step for info in steps if not info.is_restorable}
    if options.keep_best is not None:
        kept |= set(best_of(steps, options.keep_best))
    if options.keep_period is not None:
        kept |= {step for step in whole if step % options.keep_period == 0}
    return kept


class Retained(NamedTuple):
    """What retention left: how many restorable steps, and files that the next save may write over; and what went."""

    n_steps: int
    reusable: Path | None = None
    removed: tuple[int, ...] = ()


def _unmarked(info: StepInfo) -> StepInfo:
    return info


def apply_retention(
    directory: Path,
    options: Options,
    mark: Callable[[StepInfo], StepInfo] = _unmarked,
    *,
    reusable: Path | None = None,
    manifests: Manifests | None = None,
) -> Retained:
    """Retire what need not stay. Root only, under the lock.

    Parameters
    ----------
    directory : pathlib.Path
        The run directory.
    options : Options
        What is to be kept.
    mark : callable
        Adds to what is on storage what this job knows of a step.
    reusable : pathlib.Path, optional
        Where the files of one retired step are kept for the next save: a name that no sweep takes away.
    manifests : Manifests, optional
        Those that were read before: after many saves that keep all of many steps, most of them.
    """
    if options.max_to_keep is None:
        return Retained(len(step_numbers(directory)))
    steps = tuple(map(mark, scan(directory, manifests)))
    kept = steps_to_keep(steps, options, pins_to_obey(directory))
    going = [info for info in steps if info.step not in kept]
    for info in going:
        if info is going[-1] and reusable is not None:
            take_out_of_sight(directory, info.path.name, reusable)
        else:
            retire(directory, info.path.name)
    n_steps = sum(info.is_restorable and info.step in kept for info in steps)
    return Retained(n_steps, reusable if going else None, tuple(info.step for info in going))


def take_out_of_sight(directory: Path, name: str, retired: Path | None = None) -> Path:
    """Make of a step a directory that is no checkpoint any more, and return its path. Root only, under the lock."""
    retired = retired or directory / layout.retired_dirname(layout.new_nonce())
    os.rename(directory / name, retired)  # step a
    native.fsync_dir(str(directory))
    phases.reached("8-retired", 0)
    _remove_manifest(retired)
    return retired


def retire(directory: Path, name: str) -> None:
    """Take a step directory out of sight, then remove it; of a symbolic link no more. Root only, under the lock."""
    if (directory / name).is_symlink():  # what it leads to is not ours
        os.unlink(directory / name)
        native.fsync_dir(str(directory))
        return
    shutil.rmtree(take_out_of_sight(directory, name))


def _remove_manifest(retired: Path) -> None:
    (retired / layout.MANIFEST).unlink(missing_ok=True)  # step b
    native.fsync_dir(str(retired))


def remove_retired(retired: Path) -> None:
    """Remove a directory that is out of sight, its manifest first. Root only, under the lock."""
    _remove_manifest(retired)
    shutil.rmtree(retired)  # step c


def leftovers(directory: Path) -> list[str]:
    """Return the names of temporary and retired directories. Independent."""
    return sorted(name for name in os.listdir(directory) if layout.is_temporary(name) or layout.is_retired(name))


def give_back_names(directory: Path) -> None:
    """Give directories that waited for an exchange of names theirs back, or retire them if it is taken. Root only."""
    for name in sorted(os.listdir(directory)):
        original = layout.replaced_original(name)
        if original is None or not (directory / name).is_dir():
            continue
        if os.path.lexists(directory / original):
            retire(directory, name)
        else:
            os.rename(directory / name, directory / original)
            native.fsync_dir(str(directory))


def sweep(directory: Path, spared: Collection[str] = ()) -> list[str]:
    """Undo and remove what killed jobs left half done, but for what this one uses. Root only, under the lock."""
    give_back_names(directory)
    drop_stale_pins(directory)
    names = [name for name in leftovers(directory) if name not in spared]
    if names:
        native.fsync_dir(
            str(directory)
        )  # else a name given back by a job that was killed may still be a step's on storage
    errors = [error for name in names if (error := _error_of_removing(directory / name)) is not None]
    if errors:
        raise errors[0]
    return names


def _error_of_removing(path: Path) -> OSError | None:
    """Remove a leftover, and return what keeps it from going: the others can go all the same."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            remove_retired(path)
    except OSError as error:
        return error
    return None
