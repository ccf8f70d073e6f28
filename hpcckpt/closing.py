"""How a save ends on the disks of several nodes: each place gives its part its name, and root's place is the last.

A *place* is the ranks that see one scratch directory (:class:`hpcckpt.run.Places`); its lowest rank leads it.  Each
rank has written its files into the staging directory of its own place.  Instead of steps 4 to 6 of the commit protocol
(:mod:`hpcckpt.collective.commit`):

    4a  (root)     check what was written, let the backend complete it, compose the manifest; say where each file is
    4b  (leaders)  but root: check the files of the place, take away all others, then steps 4 to 6 there, and pin
    4c  (root)     when all leaders have: the same at its own place.  That is the commit
    7   (leaders)  when the step was given up: give all names back, and remove the part

A kill before 4c leaves parts that lack root's, and so no step (:mod:`hpcckpt.tiers.parts`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from hpcckpt import discovery, files, layout, native, publishing
from hpcckpt.collective import commit
from hpcckpt.collective.planner import SavePlan
from hpcckpt.errors import HpcckptError, StorageError, as_failure
from hpcckpt.manifest import Manifest
from hpcckpt.plan import WriteReport
from hpcckpt.run import Places, Run
from hpcckpt.underway import Closing, Underway

_log = logging.getLogger("hpcckpt")


# -- 1 and 2: before and while the ranks write -----------------------------------------------------


def get_ready(run: Run, this: Underway, plan: SavePlan) -> None:
    """Make the staging directory of a save at this rank's place, whoever comes first; the leader looks. Independent."""
    if run.is_leading and not run.comm.is_root:  # root has looked already
        publishing.regain(run)
        run.workspace.reserve(this.staged.name, run)
        publishing.open_for_writing(run)
        publishing.check_space(run, plan)
    for directory in (this.staged.path, this.staged.path / layout.DATA):
        directory.mkdir(exist_ok=True)


def announced(run: Run, name: str) -> None:
    """Let a leader know the staging directory of a save to come for its own, so that nobody sweeps it. Independent."""
    if run.places is not None and run.is_leading:
        run.workspace.reserve(name, run)


# -- 4: the parts ----------------------------------------------------------------------------------


def closing_of(places: Places, manifest: Manifest, reports: Sequence[WriteReport]) -> Closing:
    """Say at which place each file of a save is: at that of the rank that wrote it, or else at root's. Pure."""
    writer = {record.path: rank for rank, report in enumerate(reports) for record in report.files}
    return Closing(manifest, tuple(places.leader_of[writer.get(file.path, 0)] for file in manifest.files))


def close_part(run: Run, this: Underway, closing: Closing) -> None:
    """Give the part of this rank's place its name, durably, unless that is root's to do. Independent."""
    if not run.is_leading or run.comm.is_root:
        return
    lock = publishing.open_for_writing(run)  # it may have been lost
    check_part(run, this, closing)  # step 4b
    step = closing.manifest.step
    with run.workspace.changing:
        publishing.check_reserved(run, this.staged.name)
        way = publishing.look_ahead(run, step, overwrite=this.request.overwrite)
        staged = replace(this.staged, rank=run.comm.rank)
        this.undo = commit.publish_part(staged, closing.manifest, lock, way)
    if run.tier is not None:
        run.tier.committed(step)


def check_part(run: Run, this: Underway, closing: Closing) -> None:
    """Check that the files of this rank's place are there, and take away what else is. Independent."""
    path = this.staged.path
    here = [file for file, at in zip(closing.manifest.files, closing.at, strict=True) if at == run.comm.rank]
    known = {os.path.basename(file.path) for file in here}
    for entry in [*os.scandir(path / layout.DATA)]:
        if entry.name not in known:
            files.unlink(entry.path)
    native.fsync_dir(str(path / layout.DATA))
    lost = [file.path for file in here if not discovery.is_there(path, file)]
    if lost:
        raise StorageError(f"{path}: {', '.join(lost[:5])} is not as it was written; nothing was published, save again")


# -- 7 and 8: afterwards ---------------------------------------------------------------------------


def settle_part(run: Run, this: Underway, *, is_committed: bool) -> None:
    """Keep the part of this rank's place, or take it back. Independent."""
    if run.places is None or not run.is_leading or run.comm.is_root:
        return
    run.workspace.release(this.staged.name)
    try:
        if is_committed:
            if os.path.lexists(this.staged.path):  # the step that was replaced; `tidy` removes it
                files.rename(this.staged.path, run.directory / layout.retired_dirname(layout.new_nonce()))
        else:
            _take_back(run, this)
    except (OSError, HpcckptError) as error:
        _log.warning("hpcckpt: [rank %d] %s: %s", run.comm.rank, this.staged.path, as_failure(error).text)
    this.undo = None


def _take_back(run: Run, this: Underway) -> None:
    """Restore all names, and remove what the save left. Independent."""
    if this.undo is not None:
        this.undo.close()
        discovery.unpin(run.directory, this.request.step)
    publishing.abandon(run, this.staged)


def tidy(run: Run) -> tuple[str, ...]:
    """Retire old parts of this rank's place, unless that is root's to do; say what keeps them. Independent."""
    if run.places is None or not run.is_leading or run.comm.is_root:
        return ()
    try:
        lock = publishing.open_for_writing(run)
        problem = run.workspace.retain(lock, run.options, run.marked, run.manifests).problem
        run.workspace.sweep(lock, layout.is_retired)
    except Exception as error:  # noqa: BLE001 - whatever it is, the steps are there
        problem = as_failure(error).text
    return (f"retention in {run.directory} failed: {problem}",) if problem else ()
