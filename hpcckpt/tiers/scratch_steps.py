"""Which steps are on scratch, whole with the parts of all nodes, and which of them are valid."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.system import FileSystem
from hpcckpt.errors import HpcckptError, StorageError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.native.posix_files import POSIX
from hpcckpt.rundir import discovery
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.run_directory import RunDirectory
from hpcckpt.tiers.scratch_dir import owner_id_of, owner_id_on_scratch, scratch_directory

_log = logging.getLogger("hpcckpt")


class ScratchSteps:
    """The steps that a job has on scratch; root knows them all."""

    def __init__(self, comm: Communicator, scratch: RunDirectory, persistent: RunDirectory) -> None:
        self._comm, self._scratch, self._persistent = comm, scratch, persistent
        self._joined: list[StepInfo] = []

    def discover(self, *, is_strict: bool = False) -> None:
        """Have the node leaders report to root what their nodes have; root alone needs no report. Collective.

        Parameters
        ----------
        is_strict : bool
            Raise if something cannot be read, because what is not found will be taken for gone.

        Raises
        ------
        CollectiveError
            If the directory of a node cannot be read.
        """
        if self._scratch.nodes.is_shared:
            return
        comm, what = self._comm, "list steps on scratch"
        known = comm.on_root(what, lambda: {part.save_id for part in self._parts((), is_strict=is_strict)})
        parts = comm.reduce_on_root(what, lambda: self._parts(() if comm.is_root else known, is_strict=is_strict))
        self._joined = joined_steps(parts or (), self._scratch.path)

    def _parts(self, known: Collection[str], *, is_strict: bool) -> tuple[PartialStep, ...]:
        """Return what this rank's node has, if this rank is its leader. Independent."""
        if not self._scratch.is_leading or not self._is_ours(is_strict=is_strict):
            return ()
        return partial_steps(self._scratch, known, is_strict=is_strict)

    def _is_ours(self, *, is_strict: bool) -> bool:
        """Return True if scratch belongs to the run directory, not to one that was there before it. Independent."""
        files = self._scratch.system.files
        owner_id = owner_id_of(self._persistent.path, files)
        try:
            return bool(owner_id) and owner_id == owner_id_on_scratch(self._scratch.path, files)
        except HpcckptError as error:
            if is_strict:
                raise
            _log.warning("hpcckpt: [rank %d] scratch is ignored: %s", self._comm.rank, error)
            return False

    def found(self, *, is_strict: bool = False) -> Sequence[StepInfo]:
        """Return all saves on scratch, in rising order of their steps. Root only, after `discover`."""
        if not self._scratch.nodes.is_shared:
            return self._joined
        return self._scratch.steps.discover() if self._is_ours(is_strict=is_strict) else ()

    def valid(self, persistent: Sequence[StepInfo], found: Sequence[StepInfo] | None = None) -> list[StepInfo]:
        """Return those on scratch that are valid, given what the run directory holds. Root only, after `discover`.

        One that lacks parts of nodes is not; what else cannot be read is, for a restore to report it.
        """
        found = self.found() if found is None else found
        whole = [info for info in found if info.is_restorable or self._scratch.nodes.is_shared]
        return newest_of_each(valid_steps(whole, persistent))


# -- parts of several nodes -----------------------------------------------------------------------


class PartialStep(NamedTuple):
    """What one node has of one save.

    Attributes
    ----------
    step : int
        Its number.
    save_id : str
        Its identity.
    files : frozenset of str
        Its data files that are there, of the sizes in the manifest.
    manifest : Manifest or None
        Left out where root has it.
    """

    step: int
    save_id: str
    files: frozenset[str]
    manifest: Manifest | None


def partial_steps(
    scratch: RunDirectory, known: Collection[str] = (), *, is_strict: bool = False
) -> tuple[PartialStep, ...]:
    """Return what is in the directory of one node, without the manifests that are known. Independent.

    Raises
    ------
    StorageError
        If the directory cannot be read now, or, with `is_strict`, a part of it.
    """
    files, manifests = scratch.system.files, scratch.steps.manifests
    found, steps = [], scratch.steps.numbers()
    manifests.forget_others(scratch.path, steps)
    for step in steps:
        path = scratch.path / layout.step_dirname(step)
        info = discovery.inspect_part(StepInfo(step, path, None), manifests, files)
        if info.is_unread and is_strict:
            raise StorageError(info.problem)
        manifest = info.manifest
        if manifest is not None:
            there = frozenset(file.path for file in manifest.files if discovery.is_there(path, file, files))
            found.append(PartialStep(step, manifest.save_id, there, None if manifest.save_id in known else manifest))
    return tuple(found)


def joined_steps(nodes: Iterable[Sequence[PartialStep]], directory: Path) -> list[StepInfo]:
    """Return what all nodes have of each save, as if it were in one directory, in rising order. Pure.

    A step is whole only if all nodes that wrote it are in the job: else it lacks files.
    """
    parts: dict[tuple[int, str], list[PartialStep]] = defaultdict(list)
    for node in nodes:
        for part in node:
            parts[part.step, part.save_id].append(part)
    joined = (_joined(parts[key], directory) for key in sorted(parts))
    return [info for info in joined if info is not None]


def _joined(parts: Sequence[PartialStep], directory: Path) -> StepInfo | None:
    manifest = next((part.manifest for part in parts if part.manifest is not None), None)
    if manifest is None:  # root has retired it since it listed what it knows
        return None
    there = frozenset[str]().union(*(part.files for part in parts))
    lost = [file.path for file in manifest.files if file.path not in there]
    problem = f"step {manifest.step}: {', '.join(lost[:5])} of it are on no node of this job" if lost else ""
    return StepInfo(manifest.step, directory / layout.step_dirname(manifest.step), manifest, problem)


def newest_of_each(infos: Iterable[StepInfo]) -> list[StepInfo]:
    """Return the newest save of each step, in rising order: nodes of different jobs may have two. Pure."""
    by_age = sorted(infos, key=lambda info: info.manifest.created if info.manifest else "")
    found = {info.step: info for info in by_age}
    return [found[step] for step in sorted(found)]


# -- which steps on scratch are valid -------------------------------------------------------------


def valid_steps(scratch: Sequence[StepInfo], persistent: Sequence[StepInfo]) -> list[StepInfo]:
    """Return the steps on scratch that are valid. Pure.

    Those that the run directory holds too; those whose parents lead to its newest step, or any if it has none; those
    that cannot be read, which a restore reports and skips; and those beyond its newest step that can be, where it has
    others beyond it that cannot: it is unknown which these are, and scratch may have the only good copy.
    """
    known = {info.manifest.save_id: info.step for info in persistent if info.manifest and info.is_restorable}
    newest = max(known, key=lambda save_id: known[save_id], default=None)
    parents = {info.manifest.save_id: info.manifest.parent for info in scratch if info.manifest}
    beyond = known[newest] if newest is not None and any(i.step > known[newest] for i in persistent) else None

    def is_valid(info: StepInfo) -> bool:
        if info.manifest is None or known.get(info.manifest.save_id) == info.step or newest is None:
            return True
        if beyond is not None and info.step > beyond:
            return True
        ancestor, seen = info.manifest.parent, {info.manifest.save_id}
        while ancestor is not None and ancestor not in known and ancestor in parents and ancestor not in seen:
            seen.add(ancestor)
            ancestor = parents[ancestor]
        return ancestor == newest

    return [info for info in scratch if is_valid(info)]


def whole_on(scratch: Path, directory: Path, files: FileSystem = POSIX) -> tuple[StepInfo, ...]:
    """Return the valid steps of a run directory that are whole on a scratch directory. Independent."""
    path, owner_id = scratch_directory(directory, scratch, files), owner_id_of(directory, files)
    try:
        is_ours = bool(owner_id) and owner_id == owner_id_on_scratch(path, files)
    except HpcckptError:  # from a disk that is broken, or a directory of another user, nothing is restored
        is_ours = False
    if not is_ours:
        return ()
    valid = valid_steps(discovery.scan(path, files=files), discovery.scan(directory, files=files))
    return tuple(info for info in valid if info.is_restorable)


def by_save_id(infos: Iterable[StepInfo]) -> dict[str, StepInfo]:
    """Return steps by their `save_id`, without those whose manifest cannot be read. Pure."""
    return {info.manifest.save_id: info for info in infos if info.manifest is not None}


def not_drained(infos: Iterable[StepInfo], persistent: Iterable[StepInfo]) -> dict[str, StepInfo]:
    """Return those of the steps that the run directory has not, by their `save_id`. Pure."""
    drained = by_save_id(info for info in persistent if info.is_restorable)
    return {save_id: info for save_id, info in by_save_id(infos).items() if save_id not in drained}
