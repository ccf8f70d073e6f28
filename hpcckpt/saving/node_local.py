"""A save on the disks of several nodes: each node leader commits the part of its node, and root's part is the last.

A node is the ranks that see one scratch directory (:class:`hpcckpt.rundir.run_directory.NodeMap`); its lowest rank
leads it.  Each rank has written its files into the staging directory of its node.  Instead of steps 4 to 6 of the
commit protocol (:mod:`hpcckpt.rundir.commit`):

    4a  (root)     check what was written, let the backend complete it, compose the manifest; list where each file is
    4b  (leaders)  but root: check the files of the node, remove all others, then steps 4 to 6 there, and pin
    4c  (root)     when all leaders have: the same on its own node.  That is the commit
    7   (leaders)  if the step was aborted: restore all names, and remove the part

A kill before 4c leaves parts without root's, and so no step (:mod:`hpcckpt.tiers.scratch_steps`).  Where all ranks see
one directory root is the only leader, and nothing of this is done.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from hpcckpt.collective.planner import SavePlan
from hpcckpt.core.plan import WriteReport
from hpcckpt.errors import HpcckptError, StorageError, as_failure
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.rundir import commit, discovery, pins
from hpcckpt.rundir.run_directory import NodeMap, RunDirectory
from hpcckpt.saving.pending import InFlightSave, NodeParts
from hpcckpt.saving.save_queue import SaveQueue

_log = logging.getLogger("hpcckpt")


# -- 1 and 2: before and while the ranks write -----------------------------------------------------


def stage_part(rundir: RunDirectory, this: InFlightSave, plan: SavePlan, *, may_link: bool) -> None:
    """Make the staging directory on this rank's node, whichever rank is first; leaders check the node. Independent."""
    if rundir.nodes.is_shared:  # root has made it, and checked
        return
    if rundir.is_leading_other_node:
        rundir.reacquire()
        rundir.workspace.reserve(this.staged.name, rundir)
        rundir.open()
        rundir.check_space(plan, may_link=may_link)
    for directory in (this.staged.path, this.staged.path / layout.DATA):
        rundir.system.files.mkdir(directory)


def reserve_part(rundir: RunDirectory, name: str) -> None:
    """Reserve the name of the staging directory of a later save, so that no leader sweeps it. Independent."""
    if rundir.is_leading_other_node:
        rundir.workspace.reserve(name, rundir)


# -- 4: the parts ----------------------------------------------------------------------------------


def leaders_of_files(nodes: NodeMap, manifest: Manifest, reports: Sequence[WriteReport]) -> tuple[int, ...]:
    """Return the leader of the node of each file: that of the rank that wrote it, or else root's. Pure."""
    writer = {record.path: rank for rank, report in enumerate(reports) for record in report.files}
    return tuple(nodes.leader_of(writer.get(file.path, 0)) for file in manifest.files)


def commit_part(queue: SaveQueue, this: InFlightSave, parts: NodeParts) -> None:
    """Commit the part of this rank's node, unless that is root's to do. Independent."""
    if not queue.rundir.is_leading_other_node:
        return
    lock = queue.rundir.held_lock()
    check_part(queue.rundir, this, parts)  # step 4b
    step = parts.manifest.step
    staged = replace(this.staged, rank=queue.comm.rank)
    with queue.rundir.workspace.renaming(lock) as renames:
        queue.rundir.check_reserved(staged.name)
        conflicts = queue.rundir.check_conflicts(step, overwrite=this.request.overwrite)
        place = queue.rundir.path / layout.step_dirname(step)
        was_pinned = pins.is_pinned(queue.rundir.path, step, place, queue.rundir.system)
        commit.commit_step(staged, parts.manifest, renames, conflicts)
        queue.rundir.undo_part[this.staged.name] = renames, was_pinned
    if queue.drains is not None:
        queue.drains.committed(step)


def check_part(rundir: RunDirectory, this: InFlightSave, parts: NodeParts) -> None:
    """Raise unless all files of this rank's node are there; remove all others. Independent."""
    path, files = this.staged.path, rundir.system.files
    here = [file for file, at in zip(parts.manifest.files, parts.at, strict=True) if at == rundir.rank]
    known = {os.path.basename(file.path) for file in here}
    for name in files.names(path / layout.DATA):
        if name not in known:
            files.unlink(path / layout.DATA / name)
    files.fsync_dir(path / layout.DATA)
    lost = [file.path for file in here if not discovery.is_there(path, file, files)]
    if lost:
        raise StorageError(f"{path}: {', '.join(lost[:5])} is not as it was written; nothing was committed, save again")


# -- 7 and 8: afterwards ---------------------------------------------------------------------------


def finish_part(rundir: RunDirectory, this: InFlightSave, *, is_committed: bool) -> None:
    """Keep the part of this rank's node, or undo its commit. Independent."""
    if not rundir.is_leading_other_node:
        return
    rundir.workspace.release(this.staged.name)
    files = rundir.system.files
    try:
        if not is_committed:
            _abort_part(rundir, this)
        elif files.exists(this.staged.path):  # the step that was replaced; `retain_parts` removes it
            files.rename(this.staged.path, rundir.path / layout.retired_dirname(layout.new_nonce()))
    except (OSError, HpcckptError) as error:
        _log.warning("hpcckpt: [rank %d] %s: %s", rundir.rank, this.staged.path, as_failure(error).text)
    rundir.undo_part.pop(this.staged.name, None)


def _abort_part(rundir: RunDirectory, this: InFlightSave) -> None:
    """Restore all names, and remove what the save left. Independent."""
    if this.staged.name in rundir.undo_part:
        renames, was_pinned = rundir.undo_part[this.staged.name]
        rundir.workspace.undo(renames)
        if not was_pinned:  # else the step that was to be replaced is not drained yet
            pins.unpin(rundir.path, this.request.step, files=rundir.system.files)
    rundir.abort(this.staged)


def retain_parts(rundir: RunDirectory) -> tuple[str, ...]:
    """Retire old parts on this rank's node, unless that is root's to do; return what prevents it. Independent."""
    if not rundir.is_leading_other_node:
        return ()
    try:
        lock = rundir.held_lock()
        problem = rundir.workspace.retain(lock, rundir.options, rundir.steps).problem
        rundir.workspace.sweep(lock, layout.is_retired)
    except Exception as error:  # noqa: BLE001 - whatever it is, the steps are there
        problem = as_failure(error).text
    return (f"retention in {rundir.path} failed: {problem}",) if problem else ()
