"""What must hold for a made-up checkpoint: it is read, or refused with an error of hpcckpt, in bounded memory."""

from __future__ import annotations

import contextlib
import io
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt import cli, native
from hpcckpt.core.tensors import Extent
from hpcckpt.errors import CorruptError, HpcckptError
from hpcckpt.format import layout
from hpcckpt.format.manifest import decode
from hpcckpt.restoring.reader import StepReader, load, open_step

ROOM_FACTOR = 64
"""Bytes that may be allocated for each byte of a file: JSON becomes objects, of which an empty list is the dearest."""
ROOM_BYTES = 8 << 20
VERBS = [["list"], ["info", "--json"], ["info"], ["tensors"], ["verify", "--values", "--json"], ["tensors", "--json"]]


class BrokenPromiseError(AssertionError):
    """A reader did what it must not."""


@contextlib.contextmanager
def bounded(nbytes: int) -> Iterator[None]:
    """Check that the block allocates no more than a small multiple of `nbytes`; numpy's arrays count."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield
    except MemoryError as error:
        raise BrokenPromiseError(f"asked for memory that there is not: {error}") from error
    finally:
        peak = tracemalloc.get_traced_memory()[1] - before
        if not was_tracing:
            tracemalloc.stop()
    if peak > ROOM_FACTOR * nbytes + ROOM_BYTES:
        raise BrokenPromiseError(f"allocated {peak} bytes to read {nbytes}")


def read_manifest(text: bytes) -> bool:
    """Decode a manifest; return whether it was accepted."""
    with bounded(len(text)):
        try:
            decode(text, native.crc32c, "m")
        except HpcckptError:
            return False
    return True


def read_step(step: Path, nbytes: int, rng: random.Random) -> bool:
    """Read a step in every way; return whether all of it was accepted.

    Raises
    ------
    BrokenPromiseError
        If too much was allocated, or two ways of reading disagree.
    """
    with bounded(nbytes):
        is_loaded = _loads(step)
    with bounded(nbytes):
        is_verified = _verifies(step, rng)
    if is_loaded and not is_verified:
        raise BrokenPromiseError("loaded what verify says is damaged")
    return is_loaded


def _loads(step: Path) -> bool:
    try:
        loaded = load(step)
    except HpcckptError:
        return False
    return all(isinstance(value, np.ndarray) for value in loaded.values())


def _verifies(step: Path, rng: random.Random) -> bool:
    try:
        reader = open_step(step, threads=rng.choice([1, 1, 1, 4]))
        damaged = reader.verify()
        for name in reader.specs:
            _load_box(reader, name, rng)
    except HpcckptError as error:
        return not isinstance(error, CorruptError)
    return not damaged


def _load_box(reader: StepReader, name: str, rng: random.Random) -> None:
    spec = reader.specs[name]
    if spec.kind == "per-rank" or 0 in spec.shape:
        return
    offset = tuple(rng.randrange(side) for side in spec.shape)
    shape = tuple(rng.randint(1, side - at) for side, at in zip(spec.shape, offset, strict=True))
    reader.load(name, Extent(offset, shape))


def run_verb(step: Path, words: list[str]) -> None:
    """Run a verb of the command line; whatever it is shown, it knows what to say."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli.main([words[0], str(step.parent), *words[1:]])
    if "this is a bug" in out.getvalue() or "Traceback" in out.getvalue() or not 0 <= code <= 8:
        raise BrokenPromiseError(f"hpcckpt {' '.join(words)} ended with {code}:\n{out.getvalue()[-4000:]}")


def step_path(scratch: Path, case: dict[str, Any]) -> Path:
    """Return where a made-up step is put, under the number that it says if that is one."""
    manifest = case.get("manifest")
    step = manifest.get("step") if isinstance(manifest, dict) else None
    is_number = isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= layout.MAX_STEP
    return scratch / "run" / layout.step_dirname(step if is_number else 1)
