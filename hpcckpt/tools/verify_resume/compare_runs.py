"""What two runs of a training left, compared: steps, metrics, losses, files."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import ForeignFormatError
from hpcckpt.format import layout
from hpcckpt.restoring.reader import select
from hpcckpt.restoring.segments import held_step, stored_arrays
from hpcckpt.tools.diff import TensorChange, compare, differing_elements
from hpcckpt.tools.verify_resume.results import PLACEHOLDER, Compared, ProgramRun

Places = tuple[Path, Path]
Numbers = Mapping[str, Mapping[str, float]]
_MAX_SHOWN = 5


def compare_steps(places: Places, ends: Sequence[int | None], patterns: Sequence[str], rtol: float) -> list[Compared]:
    """Compare the newest steps of two runs, tensor by tensor, one line for each part of the state. Independent."""
    one, other = ends
    if one is None or other is None or one != other:
        return [Compared("newest step", 0, 1, None, (f"straight {one}, resumed {other}",))]
    paths = [place / layout.step_dirname(one) for place in places]
    with held_step(paths[0]) as before, held_step(paths[1]) as after:
        found = compare(before, after, tuple(patterns), rtol)
        chosen = select(sorted(before.specs), patterns or None) if set(before.specs) & set(after.specs) else ()
        names = {source.name for source in stored_arrays(before, chosen)} | {*found.added, *found.removed}
    unlike = {change.name: _change_text(change) for change in found.changed}
    unlike |= {name: f"{name} is missing in the resumed run" for name in found.removed}
    unlike |= {name: f"{name} is in the resumed run only" for name in found.added}
    sizes = {change.name: change.max_abs for change in found.changed}
    parts = sorted({name.partition("/")[0] for name in names})
    return [_part(part, [n for n in names if n.partition("/")[0] == part], unlike, sizes) for part in parts]


def _part(part: str, names: Sequence[str], unlike: Mapping[str, str], sizes: Mapping[str, float | None]) -> Compared:
    differing = sorted(name for name in names if name in unlike)
    known = [sizes.get(name) for name in differing]
    largest = None if None in known else max((size for size in known if size is not None), default=0.0)
    texts = tuple(unlike[name] for name in differing[:_MAX_SHOWN])
    return Compared(part, len(names) - len(differing), len(names), largest, texts)


def _change_text(change: TensorChange) -> str:
    if change.what != "values":
        return f"{change.name}: {change.what} {change.before} -> {change.after}"
    if change.n_elements == 1:
        return f"{change.name}: {change.before} -> {change.after}"
    return f"{change.name}: {change.n_changed} of {change.n_elements} elements differ"


def compare_metrics(straight: ProgramRun, others: Iterable[ProgramRun], rtol: float) -> Compared:
    """Compare the metrics of the steps that both saved; of a step saved twice the later one counts. Pure."""
    return _compare_numbers("metrics", _metrics([straight]), _metrics(others), rtol)


def _metrics(runs: Iterable[ProgramRun]) -> Numbers:
    return {f"step {seen.step}": seen.metrics for run in runs for seen in run.seen if seen.metrics}


def compare_losses(places: Places, name: str, rtol: float) -> Compared:
    """Compare the numbers in a file that both runs wrote, row by row; of a row written twice the later counts."""
    paths = [_place_of(place, name) for place in places]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        return Compared(name, 0, 1, None, (f"{missing[0]} is not there",))
    one, other = (_read_numbers(path) for path in paths)
    found = _compare_numbers(name, one, other, rtol)
    gone = sorted(set(one) ^ set(other))
    if not gone and not found.n_all:
        return Compared(name, 0, 1, None, (f"{paths[0]} has no numbers to compare",))
    if not gone:
        return found
    texts = (f"only one run has {', '.join(gone[:_MAX_SHOWN])}", *found.differing)
    return Compared(name, found.n_same, found.n_all + len(gone), found.max_abs, texts)


def _read_numbers(path: Path) -> Numbers:
    """Return the numbers of each row, by what its first column says."""
    text = path.read_text(encoding="utf-8-sig", errors="backslashreplace")
    rows = _json_rows(text) if text.lstrip().startswith("{") else _csv_rows(text, path)
    found: dict[str, dict[str, float]] = {}
    for (key, value), *rest in rows:
        found[f"{key} {value}"] = {name: number for name, cell in rest if (number := _number(cell)) is not None}
    return found


Row = Sequence[tuple[str, Any]]


def _json_rows(text: str) -> Iterator[Row]:
    """Yield the names and values of each JSON object; a line that is none, such as one cut by a kill, is no row."""
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row:
            yield list(row.items())


def _csv_rows(text: str, path: Path) -> Iterator[Row]:
    """Yield the names and cells of each row; a column that the header does not name once has its number for a name."""
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row] or [[]]
    except csv.Error as error:
        raise ForeignFormatError(f"{path} is neither CSV nor JSON lines: {error}") from error
    names = {i: name for i, name in enumerate(header) if header.count(name) == 1}
    for row in rows:
        yield [(names.get(i, f"column {i + 1}"), cell) for i, cell in enumerate(row)]


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


def _compare_numbers(what: str, one: Numbers, other: Numbers, rtol: float) -> Compared:
    """Compare what both have."""
    n_same, n_all, largest = 0, 0, 0.0
    texts = []
    for key in [key for key in one if key in other]:
        for name in sorted({*one[key], *other[key]}):
            n_all += 1
            a, b = one[key].get(name), other[key].get(name)
            if a is not None and b is not None and _is_close(a, b, rtol):
                n_same += 1
                continue
            texts.append(f"{name} of {key}: {a} -> {b}")
            size = abs(a - b) if a is not None and b is not None else math.nan
            largest = size if math.isnan(size) else max(largest, size)
    return Compared(what, n_same, n_all, largest, tuple(texts[:_MAX_SHOWN]))


def _is_close(a: float, b: float, rtol: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or (math.isfinite(a - b) and abs(a - b) <= rtol * max(abs(a), abs(b)))


def compare_files(places: Places, name: str, rtol: float) -> Compared:
    """Compare a file that both runs left: arrays of ``.npz`` one by one, else byte by byte. Independent.

    Raises
    ------
    ForeignFormatError
        If an archive holds something else than plain arrays.
    """
    paths = [_place_of(place, name) for place in places]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        return Compared(name, 0, 1, None, (f"{missing[0]} is not there",))
    if paths[0].suffix == ".npz" and all(map(zipfile.is_zipfile, paths)):
        return _compare_archives(name, paths, rtol)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    is_same = digests[0] == digests[1]
    texts = () if is_same else (f"{name}: SHA-256 {digests[0][:12]}… -> {digests[1][:12]}…",)
    return Compared(name, int(is_same), 1, 0.0 if is_same else None, texts)


def _compare_archives(name: str, paths: Sequence[Path], rtol: float) -> Compared:
    try:
        with np.load(paths[0], allow_pickle=False) as one, np.load(paths[1], allow_pickle=False) as other:
            names = sorted({*one.files, *other.files})
            unlike = [each for each in names if not _is_same_array(one, other, each, rtol)]
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ForeignFormatError(f"{paths[0]} and {paths[1]} cannot be compared array by array: {error}") from error
    texts = tuple(f"{name}: {each} differs" for each in unlike[:_MAX_SHOWN])
    return Compared(name, len(names) - len(unlike), len(names), None if unlike else 0.0, texts)


def _is_same_array(one: Mapping[str, Any], other: Mapping[str, Any], name: str, rtol: float) -> bool:
    if name not in one or name not in other:
        return False
    a, b = (np.asarray(archive[name], order="C") for archive in (one, other))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return not differing_elements(a, b, rtol if a.dtype.kind in "fc" else 0.0).any()


def _place_of(directory: Path, name: str) -> Path:
    return Path(name.replace(PLACEHOLDER, str(directory))) if PLACEHOLDER in name else directory / name
