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

from hpcckpt import (
    checkpointer,
    errors,
    holding,
    layout,
    native,
    phases,
    retention,
    saving,
    settling,
    writing,
)
from hpcckpt.backends import base
from hpcckpt.collective import commit
from hpcckpt.discovery import step_numbers
from hpcckpt.workspace import Workspace

VARIABLE = "HPCCKPT_MUTANT"


def apply_from_environment() -> None:
    """Mutate the engine of this process, if the environment says so."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name]()


# -- commit and retention ----------------------------------------------------------------------------


def _visible_before_it_is_whole() -> None:
    """The step gets its name first, then its manifest."""

    def publish(staged: Any, manifest: Any, lock: Any, way: Any = commit.CLEAR, **_: Any) -> Path:
        final: Path = staged.directory / layout.step_dirname(manifest.step)
        commit._take_name(staged, final, way)
        commit._write_manifest(dataclasses.replace(staged, name=final.name), manifest)
        return final

    commit.publish = publish


def _retired_before_its_successor() -> None:
    """Room is made for the new step before it is there."""
    original = commit.publish

    def publish(staged: Any, *more: Any, **named: Any) -> Path:
        for step in step_numbers(staged.directory):
            Workspace.at(staged.directory).retire(layout.step_dirname(step))
        return original(staged, *more, **named)

    commit.publish = publish


def _removed_in_sight() -> None:
    """A retired step loses its files first, then its name."""
    original = retention.take_out_of_sight

    def take_out_of_sight(path: Path, retired: Path) -> None:
        for file in (path / layout.DATA).iterdir():
            file.unlink()
        phases.reached("8-retired", 0)
        original(path, retired)

    retention.take_out_of_sight = take_out_of_sight


def _told_before_it_is_committed() -> None:
    """A result is made up before there is one."""

    def result(self: Any) -> Any:
        this = self._underway
        if this.answer is not None:
            return saving.outcome_of(this)
        name = layout.step_dirname(this.request.step)
        return checkpointer.SavedStep(this.request.step, self._run.directory / name, 0, 0, 0.0, 0.0, 0, "rankfile")

    checkpointer.PendingSave.result = result


def _nothing_is_swept() -> None:
    """What killed jobs left stays."""
    Workspace.sweep = lambda *_: []


# -- holding still -----------------------------------------------------------------------------------


def _not_copied() -> None:
    """The writer looks at the program's own memory."""

    def hold(tree: Any, items: Any, pool: Any, threads: int) -> Any:
        return dataclasses.replace(holding.live(tree, items), is_live=False)

    writing.hold = hold


def _one_arena_for_all() -> None:
    """A second save copies into the arena that the first one is being written from."""
    original = holding.ArenaPool.take

    def take(self: Any, nbytes: int) -> Any:
        arena = original(self, nbytes)
        self._free.append(arena)
        return arena

    holding.ArenaPool.take = take


def _unowned(data: Any) -> Any:
    """Return a view that keeps nothing alive."""
    where, nbytes = data.__array_interface__["data"][0], data.nbytes
    if not nbytes:
        return data
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(where))
    return raw.view(data.dtype).reshape(data.shape)


def _held_by_nobody() -> None:
    """TensorFlow's buffers are looked at, and not held: the next update changes them in place."""
    from hpcckpt.keras import holding as tensorflow

    each, at_once = tensorflow._view, tensorflow._hold_at_once
    tensorflow._view = lambda tensor: _unowned(each(tensor))
    tensorflow._hold_at_once = lambda ops, variables: [_unowned(array) for array in at_once(ops, variables)]


def _a_pointer_is_enough() -> None:
    """What has the same pointer as before counts as unchanged, though nobody held it meanwhile."""

    def let_go(self: Any) -> None:
        self._data = _unowned(self._data)

    def landed(self: Any, crcs: Sequence[int], file: Any = None, n_in_file: int = 0) -> None:
        if self.is_held:
            where = base.InFile(file, n_in_file, tuple(crcs)) if file is not None else None
            self.known = base.Known(tuple(crcs), _unowned(self._data), where)
        self._data = None

    base.Payload.let_go, base.Payload.landed = let_go, landed


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

    native.fsync, native.fdatasync = twice(native.fsync), twice(native.fdatasync)


def _a_failure_is_dropped() -> None:
    """A write that fails is passed over."""
    original = native.write_blocks

    def write_blocks(fd: int, pieces: Any, **named: Any) -> Any:
        try:
            return original(fd, pieces, **named)
        except OSError:
            return [native.crc32c_blocks(data, named.get("block_bytes", 1 << 20)) for data, _ in pieces]

    native.write_blocks = write_blocks


def _each_rank_tells_its_own() -> None:
    """Ranks raise different errors."""
    original = settling._settle

    def settle(run: Any, this: Any, outcome: Any) -> None:
        original(run, this, outcome)
        if this.answer is not None and this.answer.failures and run.comm.rank:
            failures = {0: errors.Failure("storage", "something failed on another rank")}
            this.answer = this.answer._replace(failures=failures)

    settling._settle = settle


def _failed_steps_stay() -> None:
    """A name that could not be made durable is kept, though the save has failed."""

    def take_name(staged: Any, final: Path, way: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(final)
        os.rename(staged.path, final)
        native.fsync_dir(str(staged.directory))

    commit._take_name = take_name


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
