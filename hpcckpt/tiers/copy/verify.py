"""A copy read back from storage, against the checksums that the step was saved with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.backends.base import Backend, ReadRequest
from hpcckpt.core import failpoints
from hpcckpt.core.plan import DamagedBlock, FileRecord, StoredEntry
from hpcckpt.core.results import Progress
from hpcckpt.errors import CorruptError, StorageError
from hpcckpt.format.manifest import Manifest
from hpcckpt.restoring.reader import make_reader
from hpcckpt.tiers.copy.file_segments import PIECE_BYTES, Pace, Rules


def verify_files(
    source: Path,
    target: Path,
    manifest: Manifest,
    files: Sequence[FileRecord],
    entries: Sequence[StoredEntry],
    rules: Rules,
    progress: Progress | None = None,
) -> None:
    """Compare headers of files and bytes of entries with the checksums that they were saved with. Independent.

    Raises
    ------
    CorruptError
        If the source is damaged already.
    StorageError
        If only the copy is.
    """
    problem = problem_in(target, manifest, files, entries, rules, progress)
    if not problem:
        failpoints.reached("copy-verified", 0)
        return
    backend = make_reader(manifest, rules.jobs)
    backend.index(source, _only(manifest, files))
    damaged = damage_in(source, manifest, backend, entries)
    if damaged:
        shown = "; ".join(map(str, damaged[:5])) + (" and more" if len(damaged) > 5 else "")
        raise CorruptError(f"step {manifest.step} in {source.parent}: {shown}; nothing was committed, use another")
    raise StorageError(
        f"{target.parent} does not give back what was written there: {problem}; nothing was committed, copy again"
    )


def problem_in(
    target: Path,
    manifest: Manifest,
    files: Sequence[FileRecord],
    entries: Sequence[StoredEntry],
    rules: Rules,
    progress: Progress | None = None,
) -> str:
    """Return which headers of files and bytes of entries are not as they were saved; "" if none. Independent."""
    backend = make_reader(manifest, rules.jobs)
    try:
        if files:
            backend.index(target, _only(manifest, files))
        damaged = damage_in(target, manifest, backend, entries, rules.pace, progress)
    except CorruptError as error:
        return str(error)
    return "; ".join(map(str, damaged[:5]))


def entries_of(path: Path, manifest: Manifest, files: Sequence[FileRecord]) -> list[StoredEntry]:
    """Return the entries of some files of a step. Independent."""
    index = make_reader(manifest, 1).index(path, _only(manifest, files))
    return [entry for found in index.values() for entry in found]


def _only(manifest: Manifest, files: Sequence[FileRecord]) -> Manifest:
    return replace(manifest, files=tuple(files))


def damage_in(
    path: Path,
    manifest: Manifest,
    backend: Backend,
    entries: Iterable[StoredEntry],
    pace: Pace | None = None,
    progress: Progress | None = None,
) -> list[DamagedBlock]:
    """Return the blocks of entries whose bytes are not those that were saved. Independent."""
    damaged: list[DamagedBlock] = []
    chunk = max(PIECE_BYTES // manifest.block_bytes, 1) * manifest.block_bytes
    scratch: Any = np.empty(chunk, np.uint8)
    for entry in entries:
        for start in range(0, entry.nbytes, chunk):
            stop = min(start + chunk, entry.nbytes)
            if pace:
                pace.spend(stop - start)
            damaged += backend.read(path, manifest, [ReadRequest(entry, start, stop, scratch[: stop - start])])
            if progress:
                progress(stop - start)
    return damaged
