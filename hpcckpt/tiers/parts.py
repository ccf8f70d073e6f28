"""What the places of a job have of the steps on scratch, and which steps are whole with all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcckpt import discovery, layout
from hpcckpt.discovery import Manifests, StepInfo
from hpcckpt.errors import StorageError
from hpcckpt.manifest import Manifest


class Part(NamedTuple):
    """What one place has of one save.

    Attributes
    ----------
    step : int
        Its number.
    save_id : str
        Its identity.
    files : frozenset of str
        Its data files that are there, with the sizes that the manifest says.
    manifest : Manifest or None
        Left out where root has it.
    """

    step: int
    save_id: str
    files: frozenset[str]
    manifest: Manifest | None


def parts_in(
    directory: Path, manifests: Manifests, known: Collection[str] = (), *, is_sure: bool = False
) -> tuple[Part, ...]:
    """Return what is in the directory of one place, without the manifests that are known. Independent.

    Raises
    ------
    StorageError
        If the directory cannot be read just now, or, with `is_sure`, a part of it.
    """
    found, steps = [], discovery.step_numbers(directory)
    manifests.forget_others(directory, steps)
    for step in steps:
        path = directory / layout.step_dirname(step)
        info = discovery.inspect_part(StepInfo(step, path, None), manifests)
        if info.is_unread and is_sure:
            raise StorageError(info.problem)
        manifest = info.manifest
        if manifest is not None:
            files = frozenset(file.path for file in manifest.files if discovery.is_there(path, file))
            told = None if manifest.save_id in known else manifest
            found.append(Part(step, manifest.save_id, files, told))
    return tuple(found)


def together(places: Iterable[Sequence[Part]], directory: Path) -> list[StepInfo]:
    """Return what all places have of each save, as if it were in one directory, in rising order. Pure.

    A step counts only if all places that wrote it are there: else it lacks files.
    """
    parts: dict[tuple[int, str], list[Part]] = defaultdict(list)
    for place in places:
        for part in place:
            parts[part.step, part.save_id].append(part)
    joined = (_joined(parts[key], directory) for key in sorted(parts))
    return [info for info in joined if info is not None]


def _joined(parts: Sequence[Part], directory: Path) -> StepInfo | None:
    manifest = next((part.manifest for part in parts if part.manifest is not None), None)
    if manifest is None:  # root has just retired what it said it knew
        return None
    there = frozenset[str]().union(*(part.files for part in parts))
    lost = [file.path for file in manifest.files if file.path not in there]
    problem = f"step {manifest.step}: {', '.join(lost[:5])} of it are at no place of this job" if lost else ""
    return StepInfo(manifest.step, directory / layout.step_dirname(manifest.step), manifest, problem)


def newest_of_each(infos: Iterable[StepInfo]) -> list[StepInfo]:
    """Return one save of each step, in rising order: places that had no word of each other may have two. Pure."""
    by_age = sorted(infos, key=lambda info: info.manifest.created if info.manifest else "")
    found = {info.step: info for info in by_age}
    return [found[step] for step in sorted(found)]
