"""Which steps a run directory holds, and which of them can be restored. Needs no MPI.

*Restorable* means: the manifest is valid and every data file is there, an ordinary file of the
recorded size.  Bytes are verified when they are read.  No symbolic link is ever followed below the
run directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hpcckpt import damage, files, layout, native
from hpcckpt.config import Best
from hpcckpt.errors import (
    CorruptError,
    HpcckptError,
    ManifestError,
    NoRestorableStepError,
    RetiredError,
    RetryError,
    StepNotFoundError,
    StorageError,
    from_os_error,
)
from hpcckpt.manifest import MAX_MANIFEST_BYTES, Manifest, decode
from hpcckpt.plan import FileRecord
from hpcckpt.regular import open_regular, read_bounded

__all__ = ["open_regular", "read_bounded"]

PathLike = str | os.PathLike[str]
READER_PIN_EXPIRY_S = 6 * 3600.0
_CLOCKS_APART_S = time.time() - time.monotonic()
"""How far the clock that can be set is before the one that cannot, when this process began."""
MAX_DIGITS = 100


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step directory: its manifest if that is readable, and what keeps it from being restored ("" if nothing).

    `is_unread` is True if the system refused to read it, which proves nothing about the step; `is_recorded` if all
    looks right, and a record (:mod:`hpcckpt.damage`) has the problem: an earlier reader found damaged bytes.
    """

    step: int
    path: Path
    manifest: Manifest | None
    problem: str = ""
    is_unread: bool = False
    is_recorded: bool = False

    @property
    def is_restorable(self) -> bool:
        """Whether a restore can begin."""
        return self.manifest is not None and not self.problem


def step_numbers(directory: PathLike) -> list[int]:
    """Return the numbers of all step directories, whole or not, in rising order. Independent."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, "list run directory") from error
    return sorted(step for name in names if (step := layout.parse_step(name)) is not None)


class Manifests:
    """Manifests of steps that were read before: a file that is the same file still is not parsed again."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[tuple[int, ...], Manifest]] = {}

    def read(self, path: PathLike) -> Manifest:
        """Read and check the manifest of a step directory, as `read_manifest` does. Independent."""
        key = os.fspath(path)
        try:
            found = os.lstat(os.path.join(key, layout.MANIFEST))
        except OSError:
            self._read.pop(key, None)
            return read_manifest(path)
        identity = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        known = self._read.get(key)  # once: another thread may forget it
        if known is None or known[0] != identity:
            known = self._read[key] = (identity, read_manifest(path))
        return known[1]

    def forget_others(self, directory: PathLike, steps: Iterable[int]) -> None:
        """Forget the manifests of all other steps. Independent."""
        there = {os.path.join(directory, layout.step_dirname(step)) for step in steps}
        self._read = {path: read for path, read in list(self._read.items()) if path in there}


def scan(directory: PathLike, manifests: Manifests | None = None) -> tuple[StepInfo, ...]:
    """Return every step directory of a run in rising order, whole or not. Independent."""
    steps = step_numbers(directory)
    if manifests is not None:
        manifests.forget_others(directory, steps)
    records = damage.records_in(directory) if steps else ()
    return tuple(inspect_step(directory, step, manifests, records) for step in steps)


def inspect_step(
    directory: PathLike, step: int, manifests: Manifests | None = None, records: Collection[str] | None = None
) -> StepInfo:
    """Return what is known of one step, with what keeps it from being restored. Independent."""
    path = Path(directory, layout.step_dirname(step))
    try:
        if path.is_symlink():
            raise CorruptError(f"{path}: is a symbolic link, which run directories never hold; not followed")
        manifest = manifests.read(path) if manifests else read_manifest(path)
        check_files(path, manifest)
        if manifest.step != step:
            raise ManifestError(f"{path}: the manifest is that of step {manifest.step}; use an older step")
    except HpcckptError as error:
        return StepInfo(step, path, None, str(error), is_unread=isinstance(error, RetryError))
    problem = damage.recorded_problem(directory, step, manifest.save_id, records)
    return StepInfo(step, path, manifest, f"step {step}: {problem}" if problem else "", is_recorded=bool(problem))


def inspect_part(info: StepInfo, manifests: Manifests) -> StepInfo:
    """Say of a step of which other places have the rest whether its manifest can be read. Independent."""
    if info.manifest is not None or info.path.is_symlink():
        return info
    try:
        manifest = manifests.read(info.path)
    except HpcckptError as error:
        return replace(info, problem=str(error), is_unread=True) if isinstance(error, RetryError) else info
    return StepInfo(info.step, info.path, manifest) if manifest.step == info.step else info


def read_manifest(path: PathLike) -> Manifest:
    """Read and check the manifest of a step directory. Independent.

    Raises
    ------
    StepNotFoundError
        If there is no such directory.
    ManifestError, FormatVersionError
        If the manifest is absent, damaged, or of a newer format.
    """
    where = os.path.join(path, layout.MANIFEST)
    try:
        text = read_bounded(where, MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.lexists(path):
            raise StepNotFoundError(f"no checkpoint at {os.fspath(path)}; see 'hpcckpt list'") from None
        raise ManifestError(
            f"{os.fspath(path)}: no manifest, the step is incomplete; use an older step, or 'hpcckpt repair'"
        ) from None
    except OSError as error:
        raise from_os_error(error, "read manifest") from error
    try:
        return decode(text, native.crc32c, where)
    except ManifestError as error:
        raise ManifestError(f"{error}, or 'hpcckpt repair', which may rebuild it") from None


def check_files(path: PathLike, manifest: Manifest) -> None:
    """Check that every data file is there, ordinary, and of its recorded size. Independent.

    Raises
    ------
    CorruptError
        Naming every file that is not.
    """
    data = os.path.join(path, layout.DATA)
    if os.path.islink(data):
        raise CorruptError(f"{data}: is a symbolic link, which checkpoints never hold; not followed")
    problems = list(_file_problems(path, manifest))
    if problems:
        raise_if_retired(path, manifest)
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise CorruptError(f"step {manifest.step}: {shown}; use an older step")


def _file_problems(path: PathLike, manifest: Manifest) -> Iterator[str]:
    for file in manifest.files:
        try:
            found = os.lstat(os.path.join(path, file.path))
        except (FileNotFoundError, NotADirectoryError):
            yield f"{file.path} is missing"
            continue
        except OSError as error:
            raise from_os_error(error, "look at data file") from error
        if not stat.S_ISREG(found.st_mode):
            yield f"{file.path} is not an ordinary file"
        elif found.st_size != file.nbytes:
            yield f"{file.path} has {found.st_size} bytes instead of {file.nbytes}"


def is_there(path: PathLike, file: FileRecord) -> bool:
    """Say whether a data file of a step is there, ordinary and of its recorded size. Independent."""
    try:
        found = os.lstat(os.path.join(path, file.path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise from_os_error(error, "look at data file") from error
    return stat.S_ISREG(found.st_mode) and found.st_size == file.nbytes


# -- choosing a step -----------------------------------------------------------------------------


def newest_restorable(directory: PathLike) -> StepInfo | None:
    """Return the newest step that can be restored, looking no further than needed. Independent."""
    return first_restorable(inspect_step(directory, step) for step in reversed(step_numbers(directory)))[0]


def first_restorable(infos: Iterable[StepInfo]) -> tuple[StepInfo | None, list[StepInfo]]:
    """Return the step that a restart uses, and those it passes over, of steps with the newest first. Pure."""
    passed: list[StepInfo] = []
    for info in infos:
        if info.is_restorable:
            return info, passed
        passed.append(info)
    return None, passed


def passed_over(directory: PathLike, chosen: int) -> tuple[StepInfo, ...]:
    """Return the steps newer than `chosen` that stand there and cannot be restored. Independent."""
    newer = (inspect_step(directory, step) for step in step_numbers(directory) if step > chosen)
    return tuple(info for info in newer if not info.is_restorable and os.path.lexists(info.path))


def newest_to_resume(directory: PathLike) -> StepInfo | None:
    """Return the newest restorable step; ``None`` if the run has no steps. Independent.

    Raises
    ------
    NoRestorableStepError
        If it has steps, and none of them can be restored.
    """
    for _ in range(_MAX_LOOKS):
        chosen, passed = first_restorable(inspect_step(directory, step) for step in reversed(step_numbers(directory)))
        if chosen is not None or not passed:
            return chosen
        if all(os.path.lexists(info.path) for info in passed):
            break  # else a job that is running has replaced steps by newer ones meanwhile
    require_restorable(directory, passed)
    return None


_MAX_LOOKS = 5


def require_restorable(directory: PathLike, infos: Collection[StepInfo]) -> None:
    """Refuse steps of which none can be restored; no steps at all are accepted. Independent.

    Raises
    ------
    NoRestorableStepError
        Naming the newest steps, what keeps them from being restored, and what can be done.
    """
    there = [info for info in infos if info.is_restorable or os.path.lexists(info.path)]
    if there and not any(info.is_restorable for info in there):
        newest = sorted(there, key=lambda info: info.step, reverse=True)
        raise no_restorable_step(directory, [f"step {info.step}: {_cause(info)}" for info in newest])


def _cause(info: StepInfo) -> str:
    return info.problem.removeprefix(f"step {info.step}: ").removesuffix("; use an older step")


def no_restorable_step(directory: PathLike, problems: Collection[str], more: str = "") -> NoRestorableStepError:
    """Return the error about a run whose steps cannot be restored, with the next actions. Pure."""
    left = len(problems) - _SHOWN_PROBLEMS
    shown = "; ".join([*list(problems)[:_SHOWN_PROBLEMS], *([f"and {left} more"] if left > 0 else [])])
    where = os.fspath(directory)
    return NoRestorableStepError(
        f"no restorable step in {where}, which is not empty; {shown}{more}; check its steps with "
        f"'hpcckpt verify {where} --all', which also makes those that it finds whole restorable again; "
        f"to begin at 0, remove them with 'hpcckpt rm', or use another directory"
    )


_SHOWN_PROBLEMS = 8


def latest_step(directory: PathLike) -> int | None:
    """Return the number of the newest restorable step, or ``None`` if there are no steps. Independent.

    Raises
    ------
    NoRestorableStepError
        If there are steps, and none of them can be restored.
    """
    info = newest_to_resume(directory)
    return info.step if info else None


def latest_checkpoint(directory: PathLike) -> Path | None:
    """Return the path of the newest restorable step, or ``None`` if there are no steps. Independent.

    Parameters
    ----------
    directory : path_like
        A run directory; it need not exist.

    Raises
    ------
    NoRestorableStepError
        If there are steps, and none of them can be restored.
    """
    info = newest_to_resume(directory)
    return info.path if info else None


def best_of(steps: tuple[StepInfo, ...], best: Best) -> list[int]:
    """Return the restorable steps with the best finite values of a metric, best first. Pure."""
    valued = [
        (info.manifest.metrics[best.metric], info.step)
        for info in steps
        if info.manifest and info.is_restorable and best.metric in info.manifest.metrics
    ]
    finite = [(value, step) for value, step in valued if abs(value) < float("inf")]
    sign = -1.0 if best.largest else 1.0
    return [step for _, step in sorted(finite, key=lambda pair: (sign * pair[0], -pair[1]))][: best.count]


def find_step(directory: PathLike, which: int | str | None = None, best: Best | None = None) -> StepInfo:
    """Return the step that `which` names. Independent.

    Parameters
    ----------
    directory : path_like
        A run directory, or a step directory (then `which` must be ``None``).
    which : int or str, optional
        A step number, ``"latest"`` (the default) or ``"best"``.
    best : Best, optional
        The metric for ``"best"``; by default ``val_loss`` if steps have it, else ``loss``.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    NoRestorableStepError
        If the latest is asked for, and none can be restored.
    """
    name = os.path.basename(os.path.normpath(directory))
    own = layout.parse_step(name)
    if own is not None and which is None and not step_numbers(directory):
        return _existing(os.path.dirname(os.path.normpath(directory)) or ".", own)
    if which is None or which == "latest":
        return _or_absent(newest_to_resume(directory), directory)
    if which == "best":
        return _find_best(directory, best)
    text = str(which)
    if not (text.isdecimal() and len(text) < MAX_DIGITS):
        shown = text if len(text) < MAX_DIGITS else f"{text[:MAX_DIGITS]}…"
        raise StepNotFoundError(f"{shown!r} names no step: give a number, 'latest' or 'best'")
    return _existing(directory, int(text))


def _existing(directory: PathLike, step: int) -> StepInfo:
    if step not in step_numbers(directory):
        there = ", ".join(map(str, step_numbers(directory)[-8:])) or "none"
        raise StepNotFoundError(f"no step {step} in {os.fspath(directory)}; newest steps there: {there}")
    return inspect_step(directory, step)


def _or_absent(info: StepInfo | None, directory: PathLike) -> StepInfo:
    if info is None:
        raise StepNotFoundError(f"no restorable step in {os.fspath(directory)}; see 'hpcckpt list'")
    return info


def _find_best(directory: PathLike, best: Best | None) -> StepInfo:
    steps = scan(directory)
    named = {name for info in steps if info.manifest for name in info.manifest.metrics}
    chosen = best or Best("val_loss" if "val_loss" in named else "loss")
    found = best_of(steps, chosen)
    if not found:
        raise StepNotFoundError(
            f"no restorable step in {os.fspath(directory)} has the metric {chosen.metric!r}; "
            f"metrics there: {', '.join(sorted(named)) or 'none'}"
        )
    return next(info for info in steps if info.step == found[0])


# -- pins ----------------------------------------------------------------------------------------


def pins(directory: PathLike) -> set[int]:
    """Return the steps that users pinned or that readers hold now, as far as that can be read. Independent."""
    try:
        return pins_to_obey(directory)
    except HpcckptError:
        return set()


def pins_to_obey(directory: PathLike) -> set[int]:
    """Return the same for a caller that removes the other steps. Independent.

    Raises
    ------
    StorageError
        If they cannot be read: then nothing may be removed.
    """
    return _pinned(directory, is_counted=lambda _name: True)


def pinned_by_users(directory: PathLike) -> set[int]:
    """Return the steps that users pinned, without those that are merely being read. Independent.

    Raises
    ------
    StorageError
        If they cannot be read.
    """
    return _pinned(directory, is_counted=lambda name: "." not in name)


def _pinned(directory: PathLike, is_counted: Callable[[str], bool]) -> set[int]:
    place = _pins_place(directory)
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise from_os_error(error, "look which steps are pinned") from error
    found = (_pinned_step(os.path.join(place, name), name) for name in names if is_counted(name))
    return {step for step in found if step is not None}


def _pins_place(directory: PathLike) -> str:
    """Return where the pins are, if that is a directory of the run's own. Independent."""
    place = os.path.join(directory, layout.PINS)
    if os.path.islink(place):
        raise StorageError(f"{place}: is a symbolic link, which run directories never hold; not followed")
    return place


def _pinned_step(path: str, name: str) -> int | None:
    """Return the step that a pin keeps; ``None`` if it is of another save than the step of its number now is."""
    head, _, reader = name.partition(".")
    step = layout.parse_step(head)
    if reader:
        return None if _has_ended(path, reader) else step
    return None if step is None or _is_of_another_save(path, step) else step


def _is_of_another_save(path: str, step: int) -> bool:
    """Return True if a pin names a save, and the step is another one; if in doubt, the pin holds. Independent."""
    try:
        save_id = read_bounded(path, 64).decode("ascii").strip()
        run = os.path.dirname(os.path.dirname(path))
        return bool(save_id) and read_manifest(os.path.join(run, layout.step_dirname(step))).save_id != save_id
    except (OSError, HpcckptError, ValueError):
        return False


def reader_name() -> str:
    """Return the name of this process in pins. Independent."""
    return f"reader-{os.uname().nodename}-{os.getpid()}"


def _has_ended(path: str, reader: str) -> bool:
    """Return True if a reader's pin is so old that the reader counts as ended; if in doubt, the pin holds. Independent.

    If the clock was set forward since this process began, pins count as younger by that; a process of this node that
    is there has not ended.
    """
    try:
        age_s = time.time() - os.stat(path).st_mtime
    except OSError:
        return True
    set_forward_s = max(0.0, time.time() - time.monotonic() - _CLOCKS_APART_S)
    return age_s - set_forward_s > READER_PIN_EXPIRY_S and not _is_process_here(reader)


def _is_process_here(reader: str) -> bool:
    """Return True if a reader's name is that of a process of this node that exists. Independent."""
    start, _, pid = reader.rpartition("-")
    return start == f"reader-{os.uname().nodename}" and pid.isdecimal() and os.path.exists(f"/proc/{pid}")


def pin_save(directory: PathLike, step: int) -> None:
    """Pin a step for a user: the save that has this number now, and no later one. Independent.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    """
    save_id = ""
    with contextlib.suppress(HpcckptError):  # a damaged step is pinned by its number
        save_id = read_manifest(os.path.join(directory, layout.step_dirname(layout.as_step(step)))).save_id
    pin(directory, step, save_id=save_id)


def pin(directory: PathLike, step: int, reader: str = "", save_id: str = "") -> None:
    """Keep retention away from a step: for ever, or while `reader` reads it. Independent.

    Parameters
    ----------
    directory : path_like
        The run directory.
    step : int
        The step.
    reader : str, optional
        Whose pin it is, if not a user's.
    save_id : str, optional
        The save that is pinned; by default whatever has this number.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    """
    step = layout.as_step(step)
    if step not in step_numbers(directory):
        raise StepNotFoundError(f"cannot pin step {step}: it is not in {os.fspath(directory)}")
    place = _pins_place(directory)
    path = _pin_path(directory, step, reader)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = files.in_made_directory(place, lambda: os.open(path, flags, 0o666))
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StorageError(f"{path} is not an ordinary file: remove it")
            os.ftruncate(fd, 0)
            files.write_whole(fd, save_id.encode())
            os.utime(fd)
            if save_id:
                os.fsync(fd)
        finally:
            os.close(fd)
        if not reader:  # a user's pin holds after a power loss too
            native.fsync_dir(place)
            native.fsync_dir(os.fspath(directory))
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, f"pin step {step}") from error


def drop_stale_pins(directory: PathLike) -> None:
    """Remove the pins of readers that have ended without a word. Root only, under the lock."""
    with contextlib.suppress(OSError):
        place = _pins_place(directory)
        for name in os.listdir(place):
            head, _, reader = name.partition(".")
            path = os.path.join(place, name)
            if reader and layout.parse_step(head) is not None and _has_ended(path, reader):
                files.unlink(path)
        os.rmdir(place)  # if it is empty now


def unpin(directory: PathLike, step: int, reader: str = "") -> bool:
    """Take a pin away; return whether there was one. Independent."""
    _pins_place(directory)
    path = _pin_path(directory, layout.as_step(step), reader)
    try:
        if not files.unlink(path):
            return False
    except OSError as error:
        raise from_os_error(error, f"unpin step {step}") from error
    with contextlib.suppress(OSError):  # the last pin takes the directory with it
        os.rmdir(os.path.dirname(path))
    return True


def _pin_path(directory: PathLike, step: int, reader: str) -> str:
    name = layout.step_dirname(step) + (f".{reader}" if reader else "")
    return os.path.join(directory, layout.PINS, name)


def raise_if_retired(path: PathLike, manifest: Manifest) -> None:
    """Raise RetiredError if the step that was being read has vanished, or was replaced. Independent."""
    if not os.path.lexists(os.path.join(path, layout.MANIFEST)):
        raise RetiredError(f"{os.fspath(path)} was retired while being read; read a newer step, or pin the step first")
    try:
        save_id = read_manifest(path).save_id
    except HpcckptError:
        return  # whoever asks has found something worse
    if save_id != manifest.save_id:
        raise RetiredError(f"{os.fspath(path)} was replaced while being read; read it again")
