"""Records of damage, ``RUN/.damaged/``: steps whose bytes a restore or ``hpcckpt verify`` found damaged.

A step can have a valid manifest, files of the right sizes, and damaged bytes, which only reading all bytes finds.  With
a record discovery counts such a step as damaged until a later check finds it whole.  A record belongs to a `save_id`:
another save of the same step is not affected.  If a record is lost, the damage is only found again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection
from datetime import UTC, datetime

from hpcckpt import files, layout, native
from hpcckpt._version import __version__
from hpcckpt.errors import HpcckptError
from hpcckpt.regular import read_bounded

FORMAT = 1
MAX_NBYTES = 65536
MAX_TEXT = 500
_NAME = re.compile(r"(step-[0-9]{10,19})\.([0-9a-f]{32})\.json")

PathLike = str | os.PathLike[str]


def records_in(directory: PathLike) -> frozenset[str]:
    """Return the names of a run's records; none if they cannot be read. Independent."""
    place = _place(directory)
    try:
        return frozenset() if os.path.islink(place) else frozenset(filter(_NAME.fullmatch, os.listdir(place)))
    except OSError:
        return frozenset()


def recorded_problem(directory: PathLike, step: int, save_id: str, records: Collection[str] | None = None) -> str:
    """Return what a record says of a save; "" if there is none that can be read. Independent.

    Parameters
    ----------
    directory : path_like
        The run directory.
    step, save_id : int, str
        The save.
    records : collection of str, optional
        What `records_in` returned.
    """
    name = _name(step, save_id)
    if name not in (records_in(directory) if records is None else records):
        return ""
    try:
        document = json.loads(read_bounded(os.path.join(_place(directory), name), MAX_NBYTES))
        if document["format"] != FORMAT or document["save_id"] != save_id or document["step"] != step:
            return ""
        problem, found_by, when = (_plain(document[key]) for key in ("problem", "found_by", "found"))
    except (HpcckptError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return f"{found_by} found damage on {when}: {problem}"


def record(directory: PathLike, step: int, save_id: str, problem: str, found_by: str) -> bool:
    """Record that a save is damaged, durably; return False if the directory cannot be written. Independent."""
    place = _place(directory)
    document = {
        "format": FORMAT,
        "step": step,
        "save_id": save_id,
        "found": datetime.now(UTC).isoformat(timespec="seconds"),
        "found_by": found_by,
        "problem": problem[:MAX_TEXT],
        "hpcckpt": __version__,
    }
    draft = os.path.join(place, f".{_name(step, save_id)}.{layout.new_nonce()}")
    try:
        if os.path.islink(place):
            return False
        with files.in_made_directory(place, lambda: open(draft, "x", encoding="utf-8")) as file:
            json.dump(document, file)
            file.flush()
            native.fsync(file.fileno(), draft)
        files.rename(draft, os.path.join(place, _name(step, save_id)))
        native.fsync_dir(place)
        native.fsync_dir(os.fspath(directory))
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(draft)
        return False
    return True


def clear(directory: PathLike, step: int, save_id: str) -> bool:
    """Remove the record of a save that was found whole; return whether there was one. Independent."""
    return _remove(directory, [_name(step, save_id)]) > 0


def drop_stale(directory: PathLike) -> None:
    """Remove the records of steps that do not exist any more. Root only, under the lock."""
    gone = [name for name in records_in(directory) if not os.path.lexists(_step_of(directory, name))]
    _remove(directory, gone)


def _remove(directory: PathLike, names: Collection[str]) -> int:
    n_removed, place = 0, _place(directory)
    if not names or os.path.islink(place):
        return 0
    for name in names:
        with contextlib.suppress(OSError):
            n_removed += files.unlink(os.path.join(place, name))
    if n_removed:
        with contextlib.suppress(OSError):  # the last record takes the directory with it
            native.fsync_dir(place)
            os.rmdir(place)
    return n_removed


def _place(directory: PathLike) -> str:
    return os.path.join(directory, layout.DAMAGED)


def _step_of(directory: PathLike, name: str) -> str:
    return os.path.join(directory, name.partition(".")[0])


def _name(step: int, save_id: str) -> str:
    return f"{layout.step_dirname(step)}.{save_id}.json"


def _plain(text: object) -> str:
    """Return a text from a file without control characters. Pure."""
    if not isinstance(text, str):
        raise TypeError("not a text")
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_TEXT])
