"""Looking at the values of a checkpoint: ranges, NaN, infinities; and checking its bytes. Needs no MPI."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcckpt.core.plan import DamagedBlock
from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import ITEMSIZE
from hpcckpt.errors import CorruptError
from hpcckpt.restoring.checkpoint_info import is_rank_json
from hpcckpt.restoring.reader import Array, StepReader, open_step
from hpcckpt.restoring.segments import StoredArray, pieces, stored_arrays
from hpcckpt.rundir.discovery import check_files


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """The values of one array; the range, mean and deviation are those of its finite values."""

    name: str
    count: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None
    n_nan: int
    n_inf: int


@dataclass(frozen=True, slots=True)
class StepVerification:
    """What a check of one step found.

    Attributes
    ----------
    problem : str
        What kept the step from being read at all; "" if nothing.
    damage : tuple of DamagedBlock
        Blocks whose bytes are not those that were saved.
    not_finite : tuple of TensorStatistics
        Arrays with NaN or infinities, if values were looked at.
    """

    path: Path
    n_tensors: int = 0
    n_files: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    damage: tuple[DamagedBlock, ...] = ()
    not_finite: tuple[TensorStatistics, ...] = field(default=())

    @property
    def is_whole(self) -> bool:
        """Whether every byte is the one that was saved."""
        return not self.problem and not self.damage


def check_step(
    path: Path, threads: int = 1, progress: Progress | None = None, *, has_values_checked: bool = False
) -> StepVerification:
    """Check every byte of a step, and its values for NaN and infinities if asked. Independent.

    Damage is what the verification says, not an error; errors are what keeps from telling (a disk that
    cannot be read, a step that was retired meanwhile).
    """
    began = time.monotonic()
    try:
        reader = open_step(path, threads)
        check_files(path, reader.manifest)
        damage = tuple(reader.verify(progress))
    except CorruptError as error:
        return StepVerification(path, problem=str(error), seconds=time.monotonic() - began)
    suspicious: tuple[TensorStatistics, ...] = ()
    if has_values_checked and not damage:
        suspicious = tuple(not_finite(reader, stored_arrays(reader), progress))
    manifest = reader.manifest
    seconds = time.monotonic() - began
    return StepVerification(
        path, len(manifest.tensors), len(manifest.files), stored_nbytes(reader), seconds, "", damage, suspicious
    )


def stored_nbytes(reader: StepReader) -> int:
    """Return the tensor bytes that a step holds, of per-rank tensors those of all ranks. Independent."""
    return sum(entry.nbytes for entries in reader.index.values() for entry in entries)


def statistics(
    reader: StepReader, wanted: Sequence[StoredArray], progress: Progress | None = None
) -> Iterator[TensorStatistics]:
    """Yield the statistics of arrays of numbers; others are passed over. Independent."""
    for source in wanted:
        if is_number(source.spec.dtype) and not is_rank_json(source.spec):
            yield _statistics_of(source, pieces(reader, source))
        if progress:
            progress(source.nbytes)


def not_finite(
    reader: StepReader, wanted: Sequence[StoredArray], progress: Progress | None = None
) -> Iterator[TensorStatistics]:
    """Yield the statistics of those arrays that hold NaN or infinities. Independent."""
    for source in wanted:
        if is_inexact(source.spec.dtype) and not all(_is_finite(piece) for piece in pieces(reader, source)):
            yield _statistics_of(source, pieces(reader, source))
        if progress:
            progress(source.nbytes)


def _is_finite(array: Array) -> bool:
    plain = array if array.dtype.kind in "fc" and array.dtype.isbuiltin else widened(array)
    return bool(np.isfinite(plain).all())


def is_number(token: str) -> bool:
    """Return True if a dtype token denotes numbers or booleans."""
    return token in ITEMSIZE or token[:2] in {"<f", "<c"}  # the latter are long doubles


def is_inexact(token: str) -> bool:
    """Return True if a dtype token denotes floating-point or complex numbers."""
    return is_number(token) and "int" not in token and token != "bool"


def widened(array: Array) -> Array:
    """Return an array of numbers as float64 (complex ones by magnitude), for looking at it."""
    if array.dtype.kind == "c":
        return np.abs(array)
    return array.astype(np.float64)


def _statistics_of(source: StoredArray, parts: Iterator[Array]) -> TensorStatistics:
    total = squares = 0.0
    n_nan = n_inf = count = 0
    low, high = math.inf, -math.inf
    for part in parts:
        values = widened(part).reshape(-1)
        finite = values[np.isfinite(values)]
        n_nan += int(np.isnan(values).sum())
        n_inf += int(np.isinf(values).sum())
        count += finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total += float(finite.sum())
            squares += float(np.square(finite).sum())
    n_all = count + n_nan + n_inf
    if not count:
        return TensorStatistics(source.name, n_all, None, None, None, None, n_nan, n_inf)
    mean = total / count
    std = math.sqrt(max(squares / count - mean * mean, 0.0)) if math.isfinite(squares) else math.inf
    return TensorStatistics(source.name, n_all, low, high, mean, std, n_nan, n_inf)
