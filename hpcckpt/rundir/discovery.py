"""Which steps a run directory has, and which of them can be restored. Needs no MPI.

*Restorable* means: the manifest is valid and every data file exists, is an ordinary file, and has the
recorded size.  Bytes are verified when they are read.  No symbolic link is ever followed below the
run directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcckpt import native
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.files import open_regular, read_bounded
from hpcckpt.core.options import Best
from hpcckpt.core.plan import FileRecord
from hpcckpt.core.system import FileSystem, PathLike
from hpcckpt.errors import (
    CorruptError,
    HpcckptError,
    ManifestError,
    NoRestorableStepError,
    RetiredError,
    RetryError,
    StepNotFoundError,
    from_read_error,
)
from hpcckpt.format import layout
from hpcckpt.format.manifest import MAX_MANIFEST_BYTES, Manifest, decode
from hpcckpt.native.posix_files import POSIX
from hpcckpt.rundir import damage_records

__all__ = ["PathLike", "open_regular", "read_bounded"]

MAX_DIGITS = 100
_MAX_LOOKS = 5


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step directory: its manifest if that is readable, and what keeps it from being restored ("" if nothing).

    `is_unread` is True if the system refused to read it, which proves nothing about the step; `is_recorded` if all
    looks right, and a record (:mod:`hpcckpt.rundir.damage_records`) has the problem: an earlier reader found damaged
    bytes.
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


def step_numbers(directory: PathLike, files: FileSystem = POSIX) -> list[int]:
    """Return the numbers of all step directories, whole or not, in rising order. Independent."""
    try:
        names = files.names(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_read_error(error, "list run directory") from error
    return sorted(step for name in names if (step := layout.parse_step(name)) is not None)


class Manifests:
    """Manifests of steps that were read before: a file that is still the same is not parsed again."""

    def __init__(self, files: FileSystem = POSIX) -> None:
        self._files = files
        self._read: dict[str, tuple[tuple[int, ...], Manifest]] = {}

    def read(self, path: PathLike) -> Manifest:
        """Read and check the manifest of a step directory, as `read_manifest` does. Independent."""
        key, identity = os.fspath(path), self._identity(path)
        known = self._read.get(key)  # once: another thread may forget it
        if known is not None and known[0] == identity:
            return known[1]
        self._read.pop(key, None)
        manifest = read_manifest(path, self._files)
        if identity is not None and identity == self._identity(path):  # else a commit has given the name to another
            self._read[key] = (identity, manifest)
        return manifest

    def _identity(self, path: PathLike) -> tuple[int, ...] | None:
        """Return what changes with the manifest's file, if there is one. Independent."""
        try:
            found = self._files.lstat(os.path.join(path, layout.MANIFEST))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def forget_others(self, directory: PathLike, steps: Iterable[int]) -> None:
        """Forget the manifests of all other steps. Independent."""
        paths = {os.path.join(directory, layout.step_dirname(step)) for step in steps}
        self._read = {path: read for path, read in list(self._read.items()) if path in paths}


def scan(directory: PathLike, manifests: Manifests | None = None, files: FileSystem = POSIX) -> tuple[StepInfo, ...]:
    """Return every step directory of a run in rising order, whole or not. Independent.

    Those that a running job retires meanwhile are left out; if it has retired all, those that replace them are read.
    """
    found: tuple[StepInfo, ...] = ()
    for _ in range(_MAX_LOOKS):
        steps = step_numbers(directory, files)
        if manifests is not None:
            manifests.forget_others(directory, steps)
        records = damage_records.records_in(directory, files) if steps else ()
        found = tuple(inspect_step(directory, step, manifests, records, files) for step in steps)
        if all(info.manifest is not None for info in found):
            break
        there = step_numbers(directory, files)
        found = tuple(info for info in found if info.manifest is not None or info.step in there)
        if len(found) == len(steps) or any(info.is_restorable for info in found):
            break
    return found


def inspect_step(
    directory: PathLike,
    step: int,
    manifests: Manifests | None = None,
    records: Collection[str] | None = None,
    files: FileSystem = POSIX,
) -> StepInfo:
    """Return what is known of one step, with what keeps it from being restored. Independent."""
    path = Path(directory, layout.step_dirname(step))
    try:
        _refuse_link(path, files)  # also of one whose manifest is known
        manifest = manifests.read(path) if manifests else read_manifest(path, files)
        check_files(path, manifest, files)
        if manifest.step != step:
            raise ManifestError(f"{path}: the manifest is that of step {manifest.step}; use an older step")
    except HpcckptError as error:
        return StepInfo(step, path, None, str(error), is_unread=isinstance(error, RetryError))
    problem = damage_records.recorded_problem(directory, step, manifest.save_id, records, files)
    return StepInfo(step, path, manifest, f"step {step}: {problem}" if problem else "", is_recorded=bool(problem))


def inspect_part(info: StepInfo, manifests: Manifests, files: FileSystem = POSIX) -> StepInfo:
    """Return what is known of a step of which other nodes have parts, with its manifest if valid. Independent."""
    if info.manifest is not None or files.is_link(info.path):
        return info
    try:
        manifest = manifests.read(info.path)
    except HpcckptError as error:
        return replace(info, problem=str(error), is_unread=True) if isinstance(error, RetryError) else info
    return StepInfo(info.step, info.path, manifest) if manifest.step == info.step else info


def read_manifest(path: PathLike, files: FileSystem = POSIX) -> Manifest:
    """Read and check the manifest of a step directory. Independent.

    Raises
    ------
    StepNotFoundError
        If there is no such directory.
    CorruptError
        If it is called like a step, and is a symbolic link.
    ManifestError, FormatVersionError
        If the manifest is absent, damaged, or of a newer format.
    """
    _refuse_link(Path(path), files)
    where = os.path.join(path, layout.MANIFEST)
    try:
        text = files.read_bounded(where, MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if not files.exists(path):
            raise StepNotFoundError(f"no checkpoint at {os.fspath(path)}; see 'hpcckpt list'") from None
        raise ManifestError(
            f"{os.fspath(path)}: no manifest, the step is incomplete; use an older step, or 'hpcckpt repair'"
        ) from None
    except OSError as error:
        raise from_read_error(error, "read manifest") from error
    except CorruptError as error:
        raise ManifestError(f"{error}; use an older step") from error
    try:
        return decode(text, native.crc32c, where)
    except ManifestError as error:
        raise ManifestError(f"{error}, or 'hpcckpt repair', which may rebuild it") from None


def _refuse_link(path: Path, files: FileSystem) -> None:
    """Raise if something that is called like a step is a symbolic link; links of other names may lead to one."""
    if layout.parse_step(path.name) is not None and files.is_link(path):
        raise CorruptError(
            f"{path}: is a symbolic link, which run directories never hold; not followed; use an older step"
        )


def check_files(path: PathLike, manifest: Manifest, files: FileSystem = POSIX) -> None:
    """Check that every data file exists, is ordinary, and of its recorded size. Independent.

    Raises
    ------
    CorruptError
        Naming every file that is not.
    """
    data = os.path.join(path, layout.DATA)
    if files.is_link(data):
        raise CorruptError(f"{data}: is a symbolic link, which checkpoints never hold; not followed")
    problems = list(_file_problems(path, manifest, files))
    if problems:
        raise_if_retired(path, manifest, files)
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise CorruptError(f"step {manifest.step}: {shown}; use an older step")


def _file_problems(path: PathLike, manifest: Manifest, files: FileSystem) -> Iterator[str]:
    for file in manifest.files:
        try:
            found = files.lstat(os.path.join(path, file.path))
        except (FileNotFoundError, NotADirectoryError):
            yield f"{file.path} is missing"
            continue
        except OSError as error:
            raise from_read_error(error, "check data file") from error
        if not stat.S_ISREG(found.st_mode):
            yield f"{file.path} is not an ordinary file"
        elif found.st_size != file.nbytes:
            yield f"{file.path} has {found.st_size} bytes instead of {file.nbytes}"


def is_there(path: PathLike, file: FileRecord, files: FileSystem = POSIX) -> bool:
    """Return True if a data file of a step exists, is ordinary and has its recorded size. Independent."""
    try:
        found = files.lstat(os.path.join(path, file.path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise from_read_error(error, "check data file") from error
    return stat.S_ISREG(found.st_mode) and found.st_size == file.nbytes


# -- choosing a step -----------------------------------------------------------------------------


def newest_restorable(directory: PathLike, files: FileSystem = POSIX) -> StepInfo | None:
    """Return the newest step that can be restored; check no older one. Independent."""
    return first_restorable(_newest_first(directory, files))[0]


def _newest_first(directory: PathLike, files: FileSystem) -> Iterator[StepInfo]:
    return (inspect_step(directory, step, files=files) for step in reversed(step_numbers(directory, files)))


def first_restorable(infos: Iterable[StepInfo]) -> tuple[StepInfo | None, list[StepInfo]]:
    """Return the step that a restart uses, and those it passes over, of steps with the newest first. Pure."""
    passed: list[StepInfo] = []
    for info in infos:
        if info.is_restorable:
            return info, passed
        passed.append(info)
    return None, passed


def passed_over(directory: PathLike, chosen: int, files: FileSystem = POSIX) -> tuple[StepInfo, ...]:
    """Return the existing steps newer than `chosen`, which cannot be restored. Independent."""
    newer = (inspect_step(directory, n, files=files) for n in step_numbers(directory, files) if n > chosen)
    return tuple(info for info in newer if not info.is_restorable and files.exists(info.path))


def newest_to_resume(directory: PathLike, files: FileSystem = POSIX) -> StepInfo | None:
    """Return the newest restorable step; ``None`` if the run has no steps. Independent.

    Raises
    ------
    NoRestorableStepError
        If it has steps, and none of them can be restored.
    """
    for _ in range(_MAX_LOOKS):
        chosen, passed = first_restorable(_newest_first(directory, files))
        if chosen is not None or not passed:
            return chosen
        if all(files.exists(info.path) for info in passed):
            break  # else a job that is running has replaced steps by newer ones meanwhile
    require_restorable(directory, passed, files)
    return None


def require_restorable(directory: PathLike, infos: Collection[StepInfo], files: FileSystem = POSIX) -> None:
    """Raise if there are steps and none of them can be restored. Independent.

    Raises
    ------
    NoRestorableStepError
        Naming the newest steps, what keeps them from being restored, and what can be done.
    """
    existing = [info for info in infos if info.is_restorable or files.exists(info.path)]
    if existing and not any(info.is_restorable for info in existing):
        newest = sorted(existing, key=lambda info: info.step, reverse=True)
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
        f"'{command_line('verify', where, '--all')}', which also makes those that it finds whole restorable again; "
        f"to begin at 0, remove them with 'hpcckpt rm', or use another directory"
    )


_SHOWN_PROBLEMS = 3


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
    return best_by({info.step: info.manifest.metrics for info in steps if info.manifest and info.is_restorable}, best)


def best_by(metrics: Mapping[int, Mapping[str, float]], best: Best) -> list[int]:
    """Return the steps with the best finite values of a metric, best first; `metrics` has those of each step. Pure."""
    valued = [(own[best.metric], step) for step, own in metrics.items() if best.metric in own]
    finite = [(value, step) for value, step in valued if abs(value) < float("inf")]
    sign = -1.0 if best.largest else 1.0
    return [step for _, step in sorted(finite, key=lambda pair: (sign * pair[0], -pair[1]))][: best.count]


def find_step(
    directory: PathLike, which: int | str | None = None, best: Best | None = None, files: FileSystem = POSIX
) -> StepInfo:
    """Return the step that `which` names. Independent.

    Parameters
    ----------
    directory : path_like
        A run directory, or a step directory (then `which` must be ``None``).
    which : int or str, optional
        A step number, ``"latest"`` (the default) or ``"best"``.
    best : Best, optional
        The metric for ``"best"``; by default ``val_loss`` if steps have it, else ``loss``.
    files : FileSystem
        Where the directory is.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    NoRestorableStepError
        If the latest is asked for, and none can be restored.
    """
    whole = os.path.normpath(directory)
    if os.path.basename(whole) in {".", ".."}:  # which may be a step
        whole = files.real_path(whole)
    own = layout.parse_step(os.path.basename(whole))
    is_step = own is not None and files.exists(os.path.join(directory, layout.MANIFEST))
    if own is not None and which is None and (is_step or not step_numbers(directory, files)):
        return _existing(os.path.dirname(whole) or ".", own, files)
    if is_step:
        raise StepNotFoundError(
            f"{os.fspath(directory)} is the directory of one step: give no step with it, or give that of the run, "
            f"{os.path.dirname(whole) or '.'}"
        )
    if which is None or which == "latest":
        return _or_absent(newest_to_resume(directory, files), directory, files)
    if which == "best":
        return _find_best(directory, best, files)
    text = str(which)
    if not (text.isdecimal() and len(text) < MAX_DIGITS):
        shown = text if len(text) < MAX_DIGITS else f"{text[:MAX_DIGITS]}…"
        raise StepNotFoundError(f"{shown!r} names no step: give a number, 'latest' or 'best'")
    return _existing(directory, int(text), files)


def _existing(directory: PathLike, step: int, files: FileSystem) -> StepInfo:
    numbers = step_numbers(directory, files)
    if step not in numbers:
        raise_if_absent(directory, files)
        newest = ", ".join(map(str, numbers[-8:])) or "none"
        raise StepNotFoundError(f"no step {step} in {os.fspath(directory)}; newest steps there: {newest}")
    return inspect_step(directory, step, files=files)


def raise_if_absent(directory: PathLike, files: FileSystem = POSIX) -> None:
    """Raise StepNotFoundError if a directory in which no step was found does not exist. Independent."""
    if not files.exists(directory):
        raise StepNotFoundError(f"{os.fspath(directory)} does not exist")


def _or_absent(info: StepInfo | None, directory: PathLike, files: FileSystem) -> StepInfo:
    if info is None:
        raise_if_absent(directory, files)
        raise StepNotFoundError(f"no restorable step in {os.fspath(directory)}; see 'hpcckpt list'")
    return info


def _find_best(directory: PathLike, best: Best | None, files: FileSystem) -> StepInfo:
    steps = scan(directory, files=files)
    named = {name for info in steps if info.manifest for name in info.manifest.metrics}
    chosen = best or Best("val_loss" if "val_loss" in named else "loss")
    found = best_of(steps, chosen)
    if not found:
        raise_if_absent(directory, files)
        raise StepNotFoundError(
            f"no restorable step in {os.fspath(directory)} has the metric {chosen.metric!r}; "
            f"metrics there: {', '.join(sorted(named)) or 'none'}"
        )
    return next(info for info in steps if info.step == found[0])


# -- steps that vanish while they are read --------------------------------------------------------


def raise_if_retired(path: PathLike, manifest: Manifest, files: FileSystem = POSIX) -> None:
    """Raise RetiredError if the step that was being read has vanished, or was replaced. Independent."""
    if not files.exists(os.path.join(path, layout.MANIFEST)):
        raise RetiredError(f"{os.fspath(path)} was retired while being read; read a newer step, or pin the step first")
    try:
        save_id = read_manifest(path, files).save_id
    except HpcckptError:
        return  # the caller has found something worse
    if save_id != manifest.save_id:
        raise RetiredError(f"{os.fspath(path)} was replaced while being read; read it again")
