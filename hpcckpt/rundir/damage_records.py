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

from hpcckpt._version import __version__
from hpcckpt.core.system import FileSystem, OperatingSystem, PathLike
from hpcckpt.errors import HpcckptError
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX, REAL

FORMAT = 1
MAX_NBYTES = 65536
MAX_TEXT = 500
_NAME = re.compile(r"(step-[0-9]{10,19})\.([0-9a-f]{32})\.json")


def records_in(directory: PathLike, files: FileSystem = POSIX) -> frozenset[str]:
    """Return the names of a run's records; none if they cannot be read. Independent."""
    path = _directory_of(directory)
    try:
        return frozenset() if files.is_link(path) else frozenset(filter(_NAME.fullmatch, files.names(path)))
    except OSError:
        return frozenset()


def recorded_problem(
    directory: PathLike,
    step: int,
    save_id: str,
    records: Collection[str] | None = None,
    files: FileSystem = POSIX,
) -> str:
    """Return the damage that is recorded of a save; "" if there is none that can be read. Independent.

    Parameters
    ----------
    directory : path_like
        The run directory.
    step, save_id : int, str
        The save.
    records : collection of str, optional
        What `records_in` returned.
    files : FileSystem
        Where the directory is.
    """
    name = _name(step, save_id)
    if name not in (records_in(directory, files) if records is None else records):
        return ""
    try:
        document = json.loads(files.read_bounded(os.path.join(_directory_of(directory), name), MAX_NBYTES))
        if document["format"] != FORMAT or document["save_id"] != save_id or document["step"] != step:
            return ""
        problem, found_by, when = (_plain(document[key]) for key in ("problem", "found_by", "found"))
    except (HpcckptError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return f"{found_by} found damage on {when.replace('T', ' ').replace('+00:00', ' UTC')}: {problem}"


def record(
    directory: PathLike, step: int, save_id: str, problem: str, found_by: str, system: OperatingSystem = REAL
) -> bool:
    """Record that a save is damaged, durably; return False if the directory cannot be written. Independent."""
    files, path = system.files, _directory_of(directory)
    document = {
        "format": FORMAT,
        "step": step,
        "save_id": save_id,
        "found": datetime.fromtimestamp(system.clock.time(), UTC).isoformat(timespec="seconds"),
        "found_by": found_by,
        "problem": problem[:MAX_TEXT],
        "hpcckpt": __version__,
    }
    text = json.dumps(document).encode()
    draft = os.path.join(path, f".{_name(step, save_id)}.{layout.new_nonce()}")
    try:
        if files.is_link(path):
            return False
        files.in_made_directory(path, lambda: files.write_file(draft, text, is_new=True, is_durable=True))
        files.rename(draft, os.path.join(path, _name(step, save_id)))
        files.fsync_dir(path)
        files.fsync_dir(directory)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(draft)
        return False
    return True


def clear(directory: PathLike, step: int, save_id: str, files: FileSystem = POSIX) -> bool:
    """Remove the record of a save that was found whole; return True if there was one. Independent."""
    return _remove(directory, [_name(step, save_id)], files) > 0


def drop_stale(directory: PathLike, files: FileSystem = POSIX) -> None:
    """Remove the records of steps that do not exist any more. Root only, under the lock."""
    names = records_in(directory, files)
    gone = [name for name in names if not files.exists(os.path.join(directory, name.partition(".")[0]))]
    _remove(directory, gone, files)


def _remove(directory: PathLike, names: Collection[str], files: FileSystem) -> int:
    n_removed, path = 0, _directory_of(directory)
    if not names or files.is_link(path):
        return 0
    for name in names:
        with contextlib.suppress(OSError):
            n_removed += files.unlink(os.path.join(path, name))
    if n_removed:
        with contextlib.suppress(OSError):  # the directory is removed with its last record
            files.fsync_dir(path)
            files.rmdir(path)
    return n_removed


def _directory_of(directory: PathLike) -> str:
    return os.path.join(directory, layout.DAMAGED)


def _name(step: int, save_id: str) -> str:
    return f"{layout.step_dirname(step)}.{save_id}.json"


def _plain(text: object) -> str:
    """Return a text from a file without control characters. Pure."""
    if not isinstance(text, str):
        raise TypeError("not a text")
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_TEXT])
