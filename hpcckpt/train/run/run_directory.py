"""The files of a run directory besides checkpoints; only root writes them.

``RUN/config.json``       the effective configuration
``RUN/environment.json``  what it ran on: versions, ranks, hosts, commands, one entry for each job
``RUN/log.jsonl``         what happened, one JSON object a line
``RUN/metrics.csv``       the metrics of each epoch, one row each
``RUN/cycle-1/step-…``    the checkpoints of the first cycle
``RUN/cycle-1/final``     its last weights, once it is complete
``RUN/.aside-…``          files moved aside when the run went back to an older step, or started again

A resumed run appends. Records of epochs and steps that are trained again are removed first: no epoch has two rows.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcckpt.core import files
from hpcckpt.errors import CorruptError, from_os_error, from_read_error
from hpcckpt.format import layout
from hpcckpt.train.run.text_files import TextFiles, finite

CONFIG, ENVIRONMENT, LOG, METRICS = "config.json", "environment.json", "log.jsonl", "metrics.csv"
KEYS = ("cycle", "epoch", "step", "seconds")
"""The columns of ``metrics.csv`` that are no metrics. Cycles and epochs are counted from 1, as people do."""


@dataclass(frozen=True, slots=True)
class Row:
    """The metrics of an epoch.

    Attributes
    ----------
    cycle, epoch : int
        Counted from 1.
    step : int
        Batches done in the cycle.
    seconds : float
        Duration of the epoch in the job that ended it.
    metrics : mapping of str to float
        The metrics.
    """

    cycle: int
    epoch: int
    step: int
    seconds: float
    metrics: Mapping[str, float]


class TrainingDirectory:
    """A run directory. Root only, but for the paths.

    Parameters
    ----------
    path : pathlib.Path
        Where it is; made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = TextFiles(path)

    # -- paths -----------------------------------------------------------------------------------

    def cycle(self, index: int, root: str | None = None) -> Path:
        """Return where the checkpoints of a cycle are; `root` is another place for all of them. Independent."""
        return (self.path if root is None else Path(root)) / f"cycle-{index + 1}"

    def final(self, index: int, root: str | None = None) -> Path:
        """Return where the last weights of a cycle are. Independent."""
        return self.cycle(index, root) / "final"

    # -- documents -------------------------------------------------------------------------------

    def read(self, name: str) -> Any:
        """Return a JSON document; ``None`` if there is none. Root only.

        Raises
        ------
        CorruptError
            If it is not JSON.
        """
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise self._damaged(name, str(error)) from error
        except OSError as error:
            raise from_read_error(error, "read") from error

    def configuration(self) -> list[dict[str, Any]] | None:
        """Return the effective configuration that was trained; ``None`` if there is none. Root only.

        Raises
        ------
        CorruptError
            If it is not a list of train cycles whose checkpoints can be found.
        """
        found = self.read(CONFIG)
        if found is not None and not (isinstance(found, list) and found and all(map(_is_cycle, found))):
            raise self._damaged(CONFIG, "it is no list of train cycles")
        return found

    def jobs(self) -> list[Any]:
        """Return what was recorded of the jobs of the run. Root only.

        Raises
        ------
        CorruptError
            If there is no list of them.
        """
        found = self.read(ENVIRONMENT)
        jobs = [] if found is None else found.get("jobs") if isinstance(found, dict) else None
        if not isinstance(jobs, list):
            raise self._damaged(ENVIRONMENT, "it has no list of jobs")
        return jobs

    def _damaged(self, name: str, why: str) -> CorruptError:
        return CorruptError(f"{self.path / name} cannot be read ({why}); mend it, or choose another run directory")

    def write(self, name: str, document: Any) -> None:
        """Write a JSON document, whole or not at all. Root only."""
        self._files.replace(name, json.dumps(finite(document), indent=2, ensure_ascii=False) + "\n")

    # -- the log ---------------------------------------------------------------------------------

    def log(self, event: str, **facts: Any) -> None:
        """Append what happened. Root only."""
        entry = {"time": now(), "event": event, **finite(facts)}
        self._files.append(LOG, json.dumps(entry) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """Return the log, but for lines that cannot be read: a crash has cut the last one. Root only."""
        found = []
        for line in self._files.lines(LOG):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found

    # -- the metrics -----------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Append the metrics of an epoch, to the table and to the log. Root only."""
        flat = {"cycle": row.cycle, "epoch": row.epoch, "step": row.step, "seconds": round(row.seconds, 3)}
        self.log("epoch", **flat, metrics=dict(row.metrics))
        columns = self._columns()
        missing = [name for name in row.metrics if name not in columns]
        if missing or not columns:
            self._write_rows([*self.rows(), row])
        else:
            self._files.append(METRICS, _csv_text([_cells(row, columns)]))

    def rows(self) -> list[Row]:
        """Return the metrics of all epochs. Root only."""
        rows = map(_row, _records(self._files.lines(METRICS)))
        return [row for row in rows if row is not None]

    def go_back(self, cycle: int, epoch: int, step: int) -> None:
        """Remove records of what comes after the resume point: it is trained again. Root only.

        Parameters
        ----------
        cycle : int
            Number of the cycle, from 1.
        epoch, step : int
            Epochs and batches done in it.
        """
        rows = self.rows()
        kept = [row for row in rows if (row.cycle, row.epoch) <= (cycle, epoch)]
        if len(kept) != len(rows):
            self._write_rows(kept)
        entries = self.entries()
        left = [entry for entry in entries if not _is_behind(entry, cycle, epoch, step)]
        if len(left) != len(entries):
            self._files.replace(LOG, "".join(json.dumps(entry) + "\n" for entry in left))
        self._files.end_last_line(LOG)
        self._files.end_last_line(METRICS)

    def _write_rows(self, rows: Iterable[Row]) -> None:
        kept = list(rows)
        names = dict.fromkeys([*self._columns()[len(KEYS) :], *(name for row in kept for name in row.metrics)])
        columns = [*KEYS, *names]
        self._files.replace(METRICS, _csv_text([columns, *(_cells(row, columns) for row in kept)]))

    def _columns(self) -> list[str]:
        with contextlib.suppress(csv.Error):
            return next(csv.reader(self._files.lines(METRICS)[:1]), [])
        return []

    def move_aside(self, names: Iterable[str]) -> Path | None:
        """Move the files of these names into a new directory ``.aside-…``; return it. Root only."""
        return self._aside(names, files.rename)

    def keep_records(self) -> Path | None:
        """Copy the log and the metrics into a new directory ``.aside-…``; return that. Root only."""
        return self._aside([LOG, METRICS], shutil.copyfile)

    def _aside(self, names: Iterable[str], put: Callable[[Path, Path], Any]) -> Path | None:
        there = [name for name in names if os.path.lexists(self.path / name)]
        if not there:
            return None
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        target = self.path / f".aside-{stamp}-{layout.new_nonce()}"
        try:
            target.mkdir()
            for name in there:
                put(self.path / name, target / name)
        except OSError as error:
            raise from_os_error(error, "move aside") from error
        return target


def metrics_of(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the values of each metric, epoch by epoch. Pure."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    return {name: [row.metrics[name] for row in rows if name in row.metrics] for name in names}


def now() -> str:
    """Return the time in the format of files. Independent."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_behind(entry: Mapping[str, Any], cycle: int, epoch: int, step: int) -> bool:
    """Return True if a log entry is about steps that will be trained again, or about a cycle's end. Pure."""
    event, own = entry.get("event"), entry.get("cycle")
    if event not in {"epoch", "saved", "complete", "cycle"} or not isinstance(own, int):
        return False
    if own != cycle:
        return own > cycle
    if event == "epoch":
        return _is_after(entry.get("epoch"), epoch)
    return event == "complete" or (event == "saved" and _is_after(entry.get("step"), step))


def _is_after(value: Any, position: int) -> bool:
    return isinstance(value, int) and value > position


def _is_cycle(value: Any) -> bool:
    """Return True if a train cycle of a document says, or leaves open, where its checkpoints are. Pure."""
    checkpoint = (value.get("checkpoint") or {}) if isinstance(value, dict) else None
    directory = checkpoint.get("directory") if isinstance(checkpoint, dict) else 0
    return directory is None or (isinstance(directory, str) and "\0" not in directory)


def _records(lines: Iterable[str]) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table by their columns, but for those that the csv module refuses. Pure."""
    reader = csv.DictReader(lines)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            continue


def _csv_text(lines: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _cells(row: Row, columns: Iterable[str]) -> list[Any]:
    own = {"cycle": row.cycle, "epoch": row.epoch, "step": row.step, "seconds": f"{row.seconds:.3f}"}
    values = {**{name: repr(value) for name, value in row.metrics.items()}, **own}
    return [values.get(column, "") for column in columns]


def _row(cells: Mapping[str, str]) -> Row | None:
    """Return a row of the table; ``None`` for one that a crash has cut."""
    try:
        metrics = {name: float(text) for name, text in cells.items() if name not in KEYS and text}
        cycle, epoch, step = (int(cells[name]) for name in KEYS[:3])
        return Row(cycle, epoch, step, float(cells["seconds"]), metrics)
    except (KeyError, TypeError, ValueError):
        return None
