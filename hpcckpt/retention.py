"""Which steps are kept, and how the others go: decided purely, done under the run's lock.

Retiring a step, in this order, so that a kill at any point leaves nothing that looks whole:

    a. rename it to ``.retired-<nonce>`` and fsync the run directory: out of sight
    b. remove its manifest and fsync: no longer a checkpoint
    c. remove the rest
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from hpcckpt import layout, native, phases
from hpcckpt.config import Options
from hpcckpt.discovery import StepInfo, best_of, pins, scan, step_numbers


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


def apply_retention(directory: Path, options: Options) -> int:
    """Retire what need not stay; return how many restorable steps are left. Root only, under the lock."""
    if options.max_to_keep is None:
        return len(step_numbers(directory))
    steps = scan(directory)
    kept = steps_to_keep(steps, options, pins(directory))
    for info in steps:
        if info.step not in kept:
            retire(directory, info.path.name)
    return sum(info.is_restorable and info.step in kept for info in steps)


def retire(directory: Path, name: str) -> None:
    """Take a step directory out of sight, then remove it. Root only, under the lock."""
    retired = directory / layout.retired_dirname(layout.new_nonce())
    os.rename(directory / name, retired)  # step a
    native.fsync_dir(str(directory))
    phases.reached("8-retired", 0)
    remove_retired(retired)


def remove_retired(retired: Path) -> None:
    """Remove a directory that is out of sight, its manifest first. Root only, under the lock."""
    (retired / layout.MANIFEST).unlink(missing_ok=True)  # step b
    native.fsync_dir(str(retired))
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


def sweep(directory: Path) -> list[str]:
    """Undo and remove what killed jobs left half done. Root only, under the lock."""
    give_back_names(directory)
    names = leftovers(directory)
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
