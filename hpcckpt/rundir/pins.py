"""Pins, ``RUN/.pins/``: steps that users keep, and steps that readers hold."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Mapping

from hpcckpt.core.command_lines import command_line
from hpcckpt.core.system import FileSystem, OperatingSystem, PathLike
from hpcckpt.errors import (
    HpcckptError,
    PinnedStepError,
    StepNotFoundError,
    StorageError,
    from_os_error,
    from_read_error,
)
from hpcckpt.format import layout
from hpcckpt.native.posix_files import POSIX, REAL
from hpcckpt.rundir.discovery import Manifests, read_manifest, step_numbers

READER_PIN_EXPIRY_S = 6 * 3600.0


def pins(directory: PathLike, system: OperatingSystem = REAL) -> set[int]:
    """Return the steps that users pinned or that readers hold now, as far as that can be read. Independent."""
    try:
        return pins_to_obey(directory, system)
    except HpcckptError:
        return set()


def pins_to_obey(directory: PathLike, system: OperatingSystem = REAL, manifests: Manifests | None = None) -> set[int]:
    """Return the same for a caller that removes the other steps; `manifests` are those it has read. Independent.

    Raises
    ------
    StorageError
        If they cannot be read: then nothing may be removed.
    """
    return _pinned(directory, system, is_counted=lambda _name: True, manifests=manifests)


def pinned_by_users(
    directory: PathLike, system: OperatingSystem = REAL, moved_to: Mapping[int, PathLike] | None = None
) -> set[int]:
    """Return the steps that users pinned, without those that are merely being read. Independent.

    `moved_to` has where steps are now that do not have their names.

    Raises
    ------
    StorageError
        If they cannot be read.
    """
    return _pinned(directory, system, lambda name: "." not in name, moved_to)


def refuse_pinned(
    directory: PathLike,
    steps: Collection[int],
    moved_to: Mapping[int, PathLike] | None = None,
    system: OperatingSystem = REAL,
) -> None:
    """Raise if a user pinned one of these steps; `moved_to` has where they are now. Independent.

    Raises
    ------
    PinnedStepError
        Naming the newest of them.
    StorageError
        If the pins cannot be read.
    """
    pinned = pinned_by_users(directory, system, moved_to).intersection(steps) if steps else ()
    if pinned:
        step, where = max(pinned), os.fspath(directory)
        raise PinnedStepError(
            f"step {step} in {where} is pinned, so it is neither replaced nor moved aside: "
            f"{command_line('unpin', where, step)}, restore it first, or use another directory"
        )


def is_pinned(directory: PathLike, step: int, path: PathLike, system: OperatingSystem = REAL) -> bool:
    """Return True if a step that is at `path` now is pinned; pins of other steps are not read. Independent.

    Raises
    ------
    StorageError
        If that cannot be read.
    """
    own = layout.step_dirname(step)
    return bool(_pinned(directory, system, lambda name: name.partition(".")[0] == own, {step: path}))


def _pinned(
    directory: PathLike,
    system: OperatingSystem,
    is_counted: Callable[[str], bool],
    moved_to: Mapping[int, PathLike] | None = None,
    manifests: Manifests | None = None,
) -> set[int]:
    known = manifests or Manifests(system.files)
    paths = ((path, os.path.basename(path)) for path in _files_of_pins(directory, system.files))
    found = (_pinned_step(path, name, system, known, moved_to) for path, name in paths if is_counted(name))
    return {step for step in found if step is not None}


def _files_of_pins(directory: PathLike, files: FileSystem) -> list[str]:
    """Return the files of all pins, whether they hold or not; raise if they cannot be read. Independent."""
    path = _pins_directory(directory, files)
    try:
        return [os.path.join(path, name) for name in files.names(path)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_read_error(error, "look which steps are pinned") from error


def _pins_directory(directory: PathLike, files: FileSystem) -> str:
    """Return the directory of the pins; refuse a symbolic link. Independent."""
    path = os.path.join(directory, layout.PINS)
    if files.is_link(path):
        raise StorageError(f"{path}: is a symbolic link, which run directories never hold; not followed")
    return path


def _pinned_step(
    path: str,
    name: str,
    system: OperatingSystem,
    manifests: Manifests,
    moved_to: Mapping[int, PathLike] | None = None,
) -> int | None:
    """Return the step that a pin keeps; ``None`` if it is of another save than the step of its number now is."""
    head, _, reader = name.partition(".")
    step = layout.parse_step(head)
    if reader:
        return None if _has_ended(path, reader, system) else step
    if step is None:
        return None
    named = os.path.join(os.path.dirname(os.path.dirname(path)), layout.step_dirname(step))
    where = (moved_to or {}).get(step, named)
    return None if _is_of_another_save(path, where, system.files, manifests) else step


def _is_of_another_save(path: str, step_path: PathLike, files: FileSystem, manifests: Manifests) -> bool:
    """Return True if a pin names a save, and the step is another one; if in doubt, the pin holds. Independent."""
    try:
        save_id = files.read_bounded(path, 64).decode("ascii").strip()
        return bool(save_id) and manifests.read(step_path).save_id != save_id
    except (OSError, HpcckptError, ValueError):
        return False


def pins_of_readers(directory: PathLike, steps: Collection[int], system: OperatingSystem = REAL) -> list[str]:
    """Return the files by which readers hold these steps now. Independent.

    Raises
    ------
    StorageError
        If they cannot be read.
    """
    files = (file for file in sorted(_files_of_pins(directory, system.files)) if "." in os.path.basename(file))
    known = Manifests(system.files)
    return [file for file in files if _pinned_step(file, os.path.basename(file), system, known) in steps]


def reader_name(system: OperatingSystem = REAL) -> str:
    """Return a new name for a reader of this process in pins. Independent."""
    return f"reader-{system.processes.host()}-{system.processes.pid()}.{layout.new_nonce()}"


def _has_ended(path: str, reader: str, system: OperatingSystem) -> bool:
    """Return True if a reader's pin is so old that the reader counts as ended; if in doubt, the pin holds. Independent.

    If the clock was set forward since this process began, pins count as younger by that; a process of this node that
    exists has not ended.
    """
    try:
        now = system.clock.time()
        age_s = now - system.files.stat(path).st_mtime
    except FileNotFoundError:
        return True
    except OSError:
        return False
    set_forward_s = max(0.0, now - system.clock.monotonic() - system.apart_s)
    return age_s - set_forward_s > READER_PIN_EXPIRY_S and not _is_process_here(reader, system)


def _is_process_here(reader: str, system: OperatingSystem) -> bool:
    """Return True if a reader's name is that of a process of this node that exists. Independent."""
    start, _, rest = reader.rpartition("-")
    pid, processes = rest.partition(".")[0], system.processes
    return start == f"reader-{processes.host()}" and pid.isdecimal() and processes.exists(int(pid))


def pin_save(directory: PathLike, step: int, system: OperatingSystem = REAL) -> None:
    """Pin a step for a user: the save that has this number now, and no later one. Independent.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    """
    save_id = ""
    with contextlib.suppress(HpcckptError):  # a damaged step is pinned by its number
        path = os.path.join(directory, layout.step_dirname(layout.as_step(step)))
        save_id = read_manifest(path, system.files).save_id
    pin(directory, step, save_id=save_id, files=system.files)


def pin(directory: PathLike, step: int, reader: str = "", save_id: str = "", files: FileSystem = POSIX) -> None:
    """Keep retention away from a step: forever, or while `reader` reads it. Independent.

    Parameters
    ----------
    directory : path_like
        The run directory.
    step : int
        The step.
    reader : str, optional
        Whose pin it is, if not a user's.
    save_id : str, optional
        The save that is pinned; by default the one of this number, whichever it is.
    files : FileSystem
        Where the directory is.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    """
    step = layout.as_step(step)
    absent = StepNotFoundError(f"cannot pin step {step}: it is not in {os.fspath(directory)}")
    if step not in step_numbers(directory, files):
        raise absent
    pins_directory = _pins_directory(directory, files)
    path = _pin_path(directory, step, reader)
    is_new = not files.exists(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = files.in_made_directory(pins_directory, lambda: files.open(path, flags))
        try:
            if not stat.S_ISREG(files.fstat(fd).st_mode):
                raise StorageError(f"{path} is not an ordinary file: remove it")
            files.truncate(fd, 0)
            files.write_whole(fd, save_id.encode())
            files.touch(fd)
            if save_id:
                files.fsync(fd)
        except OSError:
            if is_new:  # an empty pin would hold all the same
                with contextlib.suppress(OSError):
                    files.unlink(path)
            raise
        finally:
            files.close(fd)
        if not reader:  # a user's pin holds after a power loss too
            files.fsync_dir(pins_directory)
            files.fsync_dir(directory)
            step_path = os.path.join(directory, layout.step_dirname(step))
            # retention hides a step before it reads the pins again: one that is here now is kept
            if not files.exists(step_path) or _is_of_another_save(path, step_path, files, Manifests(files)):
                unpin(directory, step, files=files)
                raise absent
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, f"pin step {step}") from error


def drop_stale_pins(directory: PathLike, system: OperatingSystem = REAL) -> None:
    """Remove the pins of readers that ended without removing them. Root only, under the lock."""
    files = system.files
    with contextlib.suppress(OSError):
        pins_directory = _pins_directory(directory, files)
        for name in files.names(pins_directory):
            head, _, reader = name.partition(".")
            path = os.path.join(pins_directory, name)
            if reader and layout.parse_step(head) is not None and _has_ended(path, reader, system):
                files.unlink(path)
        files.rmdir(pins_directory)  # if it is empty now


def unpin(directory: PathLike, step: int, reader: str = "", files: FileSystem = POSIX) -> bool:
    """Remove a pin; return True if there was one. Independent."""
    _pins_directory(directory, files)
    path = _pin_path(directory, layout.as_step(step), reader)
    try:
        if not files.unlink(path):
            return False
    except OSError as error:
        raise from_os_error(error, f"unpin step {step}") from error
    with contextlib.suppress(OSError):  # the last pin takes the directory with it
        files.rmdir(os.path.dirname(path))
    return True


def _pin_path(directory: PathLike, step: int, reader: str) -> str:
    name = layout.step_dirname(step) + (f".{reader}" if reader else "")
    return os.path.join(directory, layout.PINS, name)
