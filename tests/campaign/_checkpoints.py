"""Runs of many shapes, made by the real engine, and what must come back from each of their steps.

Each run has the steps 10, 20 and 30.  All of them are small, so that thousands of copies can be damaged in minutes.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import hpcckpt as hc
from hpcckpt.backends.rankfile import frozen
from hpcckpt.format import layout
from hpcckpt.testing.ranks import run_ranks
from tests.campaign._reference_state import Variable

STEPS = (10, 20, 30)
_FIRST = (1, 2)  # saved before and retired: an unchanged tensor gets its own file with the third save
MakeState = Callable[[int, int, int], dict[str, Any]]
"""From step, rank and number of ranks to the state that this rank saves."""


def _random(step: int, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Return values that differ from step to step in every block."""
    seed = [step, *name.encode()]
    values = np.random.default_rng(seed).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return values.view(dtype).reshape(shape)


def _plain(step: int, rank: int, n_ranks: int) -> dict[str, Any]:
    return {
        "kernel": _random(step, "kernel", (33, 17)),
        "bias": _random(step, "bias", (17,), np.float64),
        "odd": _random(step, "odd", (1237,), np.uint8),
        "scalar": np.float64(step / 7),
        "empty": np.empty((0, 3), np.int16),
        "half": _random(step, "half", (5, 3), np.uint16).view(ml_dtypes.bfloat16),
        "words": np.array([f"s{step}", "word"], "<U7"),
        "flags": np.array([step % 20 == 0, True, False]),
        "epoch": step // 10,
        "note": f"step {step}",
    }


def _ranks(step: int, rank: int, n_ranks: int) -> dict[str, Any]:
    columns = 30
    first, last = columns * rank // n_ranks, columns * (rank + 1) // n_ranks
    table = _random(step, "table", (7, columns), np.int64)
    return {
        "w": _random(step, "w", (1501,)),
        "v": _random(step, "v", (4, 4)),
        "table": hc.Sharded(table[:, first:last].copy(), (7, columns), (0, first)),
        "rng": hc.PerRank({"seed": step + rank}),
        "own": hc.PerRank(_random(step + rank, "own", (rank + 3,), np.uint16)),
        "moving": hc.RootOnly(_random(step + rank, "moving", (9,))),
        "epoch": step // 10,
    }


def _many(step: int, rank: int, n_ranks: int) -> dict[str, Any]:
    return {f"layer_{i}": {"w": _random(step, f"w{i}", (i % 7, 5)), "b": _random(step, f"b{i}", ())} for i in range(60)}


def _blocks(step: int, rank: int, n_ranks: int) -> dict[str, Any]:
    """Tensors of several checksummed blocks, the last of them short."""
    return {
        "big": _random(step, "big", ((5 << 19) + 4097,), np.uint8),
        "small": _random(step, "small", (11,)),
        "zeros": np.zeros((3 << 18) + 5, np.int16),
    }


def _nothing(step: int, rank: int, n_ranks: int) -> dict[str, Any]:
    """No byte of any tensor: files that are only a header."""
    return {"empty": np.empty((2, 0), np.float32), "epoch": step}


def _frozen(step: int, rank: int, n_ranks: int) -> dict[str, Any]:
    """Parts that never change, whose files are linked, one that changed once, and one that always does."""
    return {
        "base": Variable(_random(0, "base", (4001,))),
        "norm": Variable(_random(0, "norm", (33,))),
        "late": Variable(_random(min(step, 20), "late", (801,))),
        "head": Variable(_random(step, "head", (57,))),
        "epoch": step,
    }


@dataclass(frozen=True)
class Shape:
    """One kind of run."""

    name: str
    n_ranks: int
    state: MakeState
    options: tuple[tuple[str, Any], ...] = ()


SHAPES = (
    Shape("one rank", 1, _plain),
    Shape("three ranks", 3, _ranks),
    Shape("many tensors", 2, _many),
    Shape("many blocks", 1, _blocks),
    Shape("no bytes", 2, _nothing),
    Shape("incremental", 2, _frozen, (("incremental", True),)),
)


@dataclass(frozen=True)
class Run:
    """A run on storage and in memory."""

    shape: Shape
    path: Path
    loaded: dict[int, dict[str, Any]]

    def copy(self, to: Path) -> Path:
        """Copy the run, its hard links as such."""
        copy_tree(self.path, to)
        return to

    def blank(self, rank: int) -> dict[str, Any]:
        """Return a state that fits, with other values."""
        return self.shape.state(7, rank, self.shape.n_ranks)


def make_run(shape: Shape, path: Path) -> Run:
    """Save the steps of a run, and load each of them."""

    frozen.MIN_BYTES = 1  # so that tensors as small as ours are worth a file of their own

    def body(comm: Any) -> None:
        state: dict[str, Any] = {}
        with hc.Checkpointer(path, comm=comm, max_to_keep=len(STEPS), **dict(shape.options)) as ckpt:
            for step in (*_FIRST, *STEPS):
                fresh = shape.state(step, comm.rank, comm.size)
                state = {name: _unless_same(state.get(name), value) for name, value in fresh.items()}
                ckpt.save(step, state, metrics={"loss": 1 / step}).result()

    run_ranks(shape.n_ranks, body)
    run = Run(shape, path, {step: hc.load(path / layout.step_dirname(step)) for step in STEPS})
    _check(run)
    return run


def _unless_same(old: Any, new: Any) -> Any:
    """Return the variable that was there, if its values are still right: only what stays in its place is linked."""
    is_same = isinstance(old, Variable) and same(old.view(), new.view())
    return old if is_same else new


def _check(run: Run) -> None:
    """Check what was loaded against what was saved, so that later comparisons can rely on it."""
    for step in STEPS:
        for rank in range(run.shape.n_ranks):
            for name, value in run.shape.state(step, rank, run.shape.n_ranks).items():
                value = value.view() if isinstance(value, Variable) else value
                if isinstance(value, np.ndarray):
                    assert same(run.loaded[step][name], value), (run.shape.name, step, name)
    assert run.shape.name == "no bytes" or not same_all(run.loaded[20], run.loaded[30])
    files = (run.path / layout.step_dirname(30) / layout.DATA).iterdir()
    assert any(file.stat().st_nlink > 1 for file in files) == bool(run.shape.options), "no file was linked, or one was"


def make_runs(scratch: Path) -> list[Run]:
    """Make a run of each shape."""
    return [make_run(shape, scratch / f"run-{number}") for number, shape in enumerate(SHAPES)]


def same(a: Any, b: Any) -> bool:
    """Return True if two arrays are equal bit by bit."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_all(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return True if two loaded steps are equal bit by bit."""
    return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)


def copy_tree(source: Path, to: Path) -> None:
    """Copy a directory; files that are one file there are one file here."""
    links: dict[tuple[int, int], Path] = {}
    to.mkdir()
    for entry in os.scandir(source):
        _copy(Path(entry.path), to / entry.name, links)


def _copy(source: Path, to: Path, links: dict[tuple[int, int], Path]) -> None:
    found = source.lstat()
    if stat.S_ISDIR(found.st_mode):
        to.mkdir()
        for entry in os.scandir(source):
            _copy(Path(entry.path), to / entry.name, links)
    elif (found.st_dev, found.st_ino) in links:
        os.link(links[found.st_dev, found.st_ino], to)
    else:
        shutil.copyfile(source, to)
        links[found.st_dev, found.st_ino] = to


def picture(path: Path) -> dict[str, Any]:
    """Return everything below a directory: kinds of entries, targets of links, bytes of files."""
    found: dict[str, Any] = {}
    for where, directories, files in os.walk(path):
        for name in (*directories, *files):
            entry = Path(where, name)
            found[str(entry.relative_to(path))] = _content(entry)
    return found


def _content(entry: Path) -> Any:
    mode = entry.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", os.readlink(entry)
    if stat.S_ISREG(mode):
        return "file", entry.read_bytes()
    return "directory" if stat.S_ISDIR(mode) else "special"
