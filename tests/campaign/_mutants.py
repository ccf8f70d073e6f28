"""Engines that break a promise, on purpose: a campaign that does not notice has no teeth.

``HPCCKPT_MUTANT=NAME`` in the environment lets every process of a campaign run that one.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt import errors, native
from hpcckpt.backends import base
from hpcckpt.checkpointer import checkpointer
from hpcckpt.core import failpoints
from hpcckpt.format import layout
from hpcckpt.native.arena import ArenaPool
from hpcckpt.rundir import commit, retention
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.saving import outcome, save, snapshot, write

VARIABLE = "HPCCKPT_MUTANT"


def apply_from_environment() -> None:
    """Mutate the engine of this process, if the environment says so."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name]()


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of the engine, which has to be there: else the mutant would mutate nothing."""
    if not callable(getattr(owner, name)):
        raise TypeError(f"{owner.__name__}.{name} is not a function")
    setattr(owner, name, function)


# -- commit and retention ----------------------------------------------------------------------------


def _visible_before_it_is_whole() -> None:
    """The step gets its name first, then its manifest."""

    def commit_step(staged: Any, manifest: Any, renames: Any, conflicts: Any = commit.NO_CONFLICTS, **_: Any) -> Path:
        final: Path = staged.directory / layout.step_dirname(manifest.step)
        commit._rename_to_step(staged, final, conflicts, renames)
        commit._write_manifest(dataclasses.replace(staged, name=final.name), manifest, renames.lock.system.files)
        return final

    _replace(commit, "commit_step", commit_step)


def _retired_before_its_successor() -> None:
    """Room is made for the new step before it is there."""
    original = commit.commit_step

    def commit_step(staged: Any, *more: Any, **named: Any) -> Path:
        for step in step_numbers(staged.directory):
            Workspace.at(staged.directory).retire(layout.step_dirname(step))
        return original(staged, *more, **named)

    _replace(commit, "commit_step", commit_step)


def _removed_in_sight() -> None:
    """A retired step loses its files first, then its name."""
    original = retention.take_out_of_sight

    def take_out_of_sight(path: Path, retired: Path, files: Any, *more: Any) -> bool:
        for file in (path / layout.DATA).iterdir():
            file.unlink()
        failpoints.reached("8-retired", 0)
        return original(path, retired, files, *more)

    _replace(retention, "take_out_of_sight", take_out_of_sight)


def _told_before_it_is_committed() -> None:
    """A result is made up before there is one."""

    def result(self: Any) -> Any:
        this = self._save
        if this.outcome is not None:
            return this.result()
        name = layout.step_dirname(this.request.step)
        return checkpointer.SavedStep(
            this.request.step, self._session.rundir.path / name, 0, 0, 0.0, 0.0, 0, "rankfile"
        )

    _replace(checkpointer.PendingSave, "result", result)


def _nothing_is_swept() -> None:
    """What killed jobs left stays."""
    _replace(Workspace, "sweep", lambda *_: [])


# -- holding still -----------------------------------------------------------------------------------


def _not_copied() -> None:
    """The writer looks at the program's own memory."""

    def take(tree: Any, items: Any, pool: Any, threads: int) -> Any:
        return dataclasses.replace(snapshot.view(tree, items, pool, threads), is_view=False)

    _replace(write, "take", take)


def _one_arena_for_all() -> None:
    """A second save copies into the arena that the first one is being written from."""
    original = ArenaPool.take

    def take(self: Any, nbytes: int) -> Any:
        arena = original(self, nbytes)
        self._free.append(arena)
        return arena

    _replace(ArenaPool, "take", take)


def _unowned(data: Any) -> Any:
    """Return a view that keeps nothing alive."""
    where, nbytes = data.__array_interface__["data"][0], data.nbytes
    if not nbytes:
        return data
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(where))
    return raw.view(data.dtype).reshape(data.shape)


def _held_by_nobody() -> None:
    """TensorFlow's buffers are looked at, and not held: the next update changes them in place."""
    from hpcckpt.state import tf_hold as tensorflow

    each, at_once = tensorflow._view, tensorflow._hold_at_once
    _replace(tensorflow, "_view", lambda tensor: _unowned(each(tensor)))
    _replace(tensorflow, "_hold_at_once", lambda ops, variables: [_unowned(array) for array in at_once(ops, variables)])


def _a_pointer_is_enough() -> None:
    """What has the same pointer as before counts as unchanged, though it was not referenced meanwhile."""

    def release(self: Any) -> None:
        self._data = _unowned(self._data)

    def written(self: Any, crcs: Sequence[int], file: Any = None, n_in_file: int = 0) -> None:
        if self.is_held:
            where = base.LinkSource(file, n_in_file, tuple(crcs)) if file is not None else None
            self.record = base.BlockRecord(tuple(crcs), _unowned(self._data), where)
        self._data = None

    _replace(base.Payload, "release", release)
    _replace(base.Payload, "written", written)


# -- failures ----------------------------------------------------------------------------------------


def _fsync_is_tried_again() -> None:
    """After an fsync that failed comes another one, which is believed."""

    def twice(sync: Callable[..., None]) -> Callable[..., None]:
        def again(fd: int, path: Any = "") -> None:
            try:
                sync(fd, path)
            except OSError:
                sync(fd, path)

        return again

    _replace(native, "fsync", twice(native.fsync))
    _replace(native, "fdatasync", twice(native.fdatasync))


def _a_failure_is_dropped() -> None:
    """A write that fails is passed over."""
    original = native.write_blocks

    def write_blocks(fd: int, pieces: Any, **named: Any) -> Any:
        try:
            return original(fd, pieces, **named)
        except OSError:
            return [native.crc32c_blocks(data, named.get("block_bytes", 1 << 20)) for data, _ in pieces]

    _replace(native, "write_blocks", write_blocks)


def _each_rank_tells_its_own() -> None:
    """Ranks raise different errors."""
    original = save.report

    def report(queue: Any, this: Any, result: Any) -> None:
        original(queue, this, result)
        if this.outcome is not None and this.outcome.failures and queue.comm.rank:
            failures = {0: errors.Failure("storage", "something failed on another rank")}
            this.outcome = this.outcome._replace(failures=failures)

    _replace(save, "report", report)
    _replace(outcome, "report", report)


def _failed_steps_stay() -> None:
    """A name that could not be made durable is kept, though the save has failed."""

    def rename_to_step(staged: Any, final: Path, *_: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(final)
        os.rename(staged.path, final)
        native.fsync_dir(str(staged.directory))

    assert callable(commit._rename_to_step)
    _replace(commit, "_rename_to_step", rename_to_step)


MUTANTS: dict[str, Callable[[], None]] = {
    mutate.__name__.strip("_").replace("_", "-"): mutate
    for mutate in (
        _visible_before_it_is_whole,
        _retired_before_its_successor,
        _removed_in_sight,
        _told_before_it_is_committed,
        _nothing_is_swept,
        _not_copied,
        _one_arena_for_all,
        _held_by_nobody,
        _a_pointer_is_enough,
        _fsync_is_tried_again,
        _a_failure_is_dropped,
        _each_rank_tells_its_own,
        _failed_steps_stay,
    )
}
