"""Which steps on scratch count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcckpt.discovery import StepInfo, scan
from hpcckpt.errors import HpcckptError
from hpcckpt.tiers.place import mark_of, mark_on_scratch, scratch_directory


def counting(near: Sequence[StepInfo], far: Sequence[StepInfo]) -> list[StepInfo]:
    """Return the steps on scratch that count. Pure.

    Those that the run directory holds too; those whose parents lead to its newest step, or any if it has none; those
    that cannot be read, which a restore tells of and passes over; and those beyond its newest step that can be, where
    it has others beyond it that cannot: nobody knows which these are, and here may be the only good copy.
    """
    known = {info.manifest.save_id: info.step for info in far if info.manifest and info.is_restorable}
    newest = max(known, key=lambda save_id: known[save_id], default=None)
    parents = {info.manifest.save_id: info.manifest.parent for info in near if info.manifest}
    beyond = known[newest] if newest is not None and any(i.step > known[newest] for i in far) else None

    def is_counting(info: StepInfo) -> bool:
        if info.manifest is None or known.get(info.manifest.save_id) == info.step or newest is None:
            return True
        if beyond is not None and info.step > beyond:
            return True
        ancestor, seen = info.manifest.parent, {info.manifest.save_id}
        while ancestor is not None and ancestor not in known and ancestor in parents and ancestor not in seen:
            seen.add(ancestor)
            ancestor = parents[ancestor]
        return ancestor == newest

    return [info for info in near if is_counting(info)]


def whole_on(scratch: Path, directory: Path) -> tuple[StepInfo, ...]:
    """Return the steps of a run directory that are whole on a scratch directory, and count. Independent."""
    near, mark = scratch_directory(directory, scratch), mark_of(directory)
    try:
        is_ours = bool(mark) and mark == mark_on_scratch(near)
    except HpcckptError:  # from a disk that is broken, or a directory of another user, nothing is restored
        is_ours = False
    if not is_ours:
        return ()
    return tuple(info for info in counting(scan(near), scan(directory)) if info.is_restorable)


def is_same(near: StepInfo, far: StepInfo | None) -> bool:
    """Say whether the run directory has the save that is on scratch. Pure."""
    if far is None or not far.is_restorable or near.manifest is None or far.manifest is None:
        return False
    return near.manifest.save_id == far.manifest.save_id
