"""Rebuilding a lost or damaged manifest from the data files, which say themselves what they are. Needs no MPI.

    1. read the header of every data file, and sort the files by the save that they belong to
    2. take the one save of which every rank's file is there, with the frozen files that these name
    3. check that the entries tile the tensors, and every byte against its checksum
    4. sync the data files, and write the manifest beside its place, durably   (from here on under the run's lock)
    5. move a damaged manifest aside, rename the new one into place, sync the directory
    6. give a directory that was moved aside its name back, if it is free, and sync the run directory

What stood in the manifest alone is gone with it: objects, metrics, environment, and of saves before this was
recorded the lineage.  The new one says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from hpcckpt import native
from hpcckpt._version import __version__
from hpcckpt.backends.base import ReadRequest
from hpcckpt.backends.rankfile.backend import RankfileBackend
from hpcckpt.backends.rankfile.survey import FileSet, choose, is_identity, problem_text, survey
from hpcckpt.core import files
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.durations import LATEST_S
from hpcckpt.core.plan import DamagedBlock, FileRecord, Index
from hpcckpt.core.results import Progress
from hpcckpt.errors import (
    CorruptError,
    FormatVersionError,
    HpcckptError,
    OptionError,
    StepExistsError,
    StepNotFoundError,
    StorageError,
    from_os_error,
    from_read_error,
)
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest, decode, encode
from hpcckpt.restoring.reader import StepReader, make_reader
from hpcckpt.rundir import discovery
from hpcckpt.rundir.damage_records import recorded_problem
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.workspace import Workspace

LOST = ("objects", "metrics", "environment")
"""What no data file knows."""

T = TypeVar("T")
_DRAFT = f"{layout.MANIFEST}.new-"
_NOT_REBUILT = "only manifests are rebuilt, not bytes: 'hpcckpt copy' can bring the step from another directory"


@dataclass(frozen=True, slots=True)
class RepairFinding:
    """What became, or would become, of one directory.

    Attributes
    ----------
    path : pathlib.Path
        The step directory.
    manifest : Manifest or None
        The manifest that was rebuilt, or the one that is whole; ``None`` if there is none.
    problems : tuple of str
        What keeps the step from being repaired: every file that is missing, damaged or foreign.
    damage : tuple of DamagedBlock
        Blocks whose bytes are not those that were saved.
    left_alone : tuple of str
        Data files that belong to no rank of this save.
    is_rebuilt : bool
        Whether the manifest is a new one.
    final : pathlib.Path or None
        The name that a directory gets back that was moved aside.
    """

    path: Path
    manifest: Manifest | None = None
    problems: tuple[str, ...] = ()
    damage: tuple[DamagedBlock, ...] = ()
    left_alone: tuple[str, ...] = ()
    is_rebuilt: bool = False
    final: Path | None = None

    @property
    def is_good(self) -> bool:
        """Whether the step is whole, once its manifest is written."""
        return self.manifest is not None and not self.problems and not self.damage

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to do."""
        return self.is_rebuilt or self.final is not None


# -- where -----------------------------------------------------------------------------------------


def find_damaged(directory: Path, step: int | None = None) -> list[Path]:
    """Return the directories to repair: that of a step, or all steps that lack a valid manifest. Independent.

    Parameters
    ----------
    directory : path
        A run directory, the directory of a step, or one that was moved aside (``.bad-*``, ``.aside-*``).
    step : int, optional
        A step of the run directory.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    OptionError
        If the directory is that of a save in progress, or waits to be removed.
    """
    name = Path(os.path.abspath(directory)).name
    if layout.is_temporary(name) or layout.is_retired(name) or layout.replaced_original(name):
        raise OptionError(f"{directory} was never committed, or waits to be removed: only whole steps are repaired")
    if step is None and (is_aside(name) or layout.parse_step(name) is not None):
        return [Path(os.path.abspath(directory))]
    if step is not None:
        if step not in discovery.step_numbers(directory):
            raise StepNotFoundError(f"no step {step} in {directory}; see '{command_line('list', directory)}'")
        return [directory / layout.step_dirname(step)]
    steps = [directory / layout.step_dirname(number) for number in discovery.step_numbers(directory)]
    return [path for path in steps if _needs_repair(path)]


def _needs_repair(path: Path) -> bool:
    """Return True if a step lacks a valid manifest, or if that cannot be read: then `examine` returns why."""
    try:
        return bool(manifest_problem(path))
    except StorageError:
        return True
    except StepNotFoundError:  # a running job has just retired it
        return False


def is_aside(name: str) -> bool:
    """Return True if a directory was moved aside: a damaged step, or one newer than the step resumed from."""
    return name.startswith((".bad-", ".aside-"))


def manifest_problem(path: Path) -> str:
    """Say what is wrong with the manifest of a step directory; "" if it is valid, or of a newer format. Independent."""
    try:
        manifest = discovery.read_manifest(path)
    except CorruptError as error:
        return str(error)
    except FormatVersionError:
        return ""
    step = layout.parse_step(path.name)
    return "" if step in {None, manifest.step} else f"{path}: the manifest is that of step {manifest.step}"


# -- 3: what they hold -------------------------------------------------------------------------------


class _Unlisted(StepReader):
    """A step that is read before it has a manifest: that none is there does not mean that it was retired."""

    def _guarded(self, call: Callable[..., T], *args: Any) -> T:
        try:
            return call(*args)
        except OSError as error:
            raise error if isinstance(error, HpcckptError) else from_read_error(error, "read") from error

    def _read_guarded(self, requests: Sequence[ReadRequest]) -> list[DamagedBlock]:
        return self._guarded(self.backend.read, self.path, self.manifest, requests)


def examine(path: Path, threads: int = 1, progress: Progress | None = None) -> RepairFinding:
    """Return whether a step can be repaired, by reading all its bytes; change nothing. Independent.

    Parameters
    ----------
    path : path
        The step directory, or one that was moved aside.
    threads : int
        Native threads for reading.
    progress : callable, optional
        Called with the number of bytes of each part that was checked.
    """
    try:
        if not manifest_problem(path):
            return _examine_whole(path, threads, progress)
        return _examine_data(path, threads, progress)
    except (CorruptError, StorageError) as error:
        return RepairFinding(path, problems=(problem_text(error),))


def _examine_whole(path: Path, threads: int, progress: Progress | None) -> RepairFinding:
    """Check a step with a valid manifest; all bytes if it was moved aside, for it may get its name back."""
    manifest = discovery.read_manifest(path)
    discovery.check_files(path, manifest)
    if not is_aside(path.name):
        damage = recorded_problem(path.parent, manifest.step, manifest.save_id)
        return RepairFinding(path, manifest, problems=(damage, _NOT_REBUILT) if damage else ())
    reader = StepReader(path, manifest, make_reader(manifest, threads))
    return RepairFinding(path, manifest, damage=tuple(reader.verify(progress)), final=_final(path, manifest))


def _examine_data(path: Path, threads: int, progress: Progress | None) -> RepairFinding:
    chosen = choose(survey(path), layout.parse_step(path.name))  # steps 1 and 2
    if chosen.problems:
        return RepairFinding(path, problems=chosen.problems)
    backend = RankfileBackend(threads)
    draft = _draft(path, chosen)
    index = backend.index(path, draft)
    manifest = _with_tensors(draft, index)
    reader = _Unlisted(path, manifest, backend)
    damage = tuple(reader.verify(progress))
    return RepairFinding(path, manifest, (), damage, chosen.left_alone, is_rebuilt=True, final=_final(path, manifest))


def _final(path: Path, manifest: Manifest) -> Path | None:
    return path.parent / layout.step_dirname(manifest.step) if is_aside(path.name) else None


def _draft(path: Path, chosen: FileSet) -> Manifest:
    """Return the manifest as far as the headers contain it, without tensors."""
    document, save_id = chosen.files[0].document, chosen.files[0].save_id
    run_id, parent = document.get("run_id"), document.get("parent")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Manifest(
        save_id=save_id,
        run_id=run_id if is_identity(run_id) else save_id,
        parent=parent if is_identity(parent) else None,
        step=document["step"],
        n_ranks=document["ranks"],
        created=_written(path, chosen.records),
        backend=RankfileBackend.name,
        block_bytes=document["block_bytes"],
        tensors=(),
        files=chosen.records,
        objects={"state": {}, "user": {}},
        environment={"hpcckpt": __version__, "repaired": f"at {now}; {', '.join(LOST)} were lost"},
        level="weights",
    )


def _written(path: Path, records: Sequence[FileRecord]) -> str:
    """Return when the newest data file was written: the nearest there is to the time of the save."""
    newest = max(os.lstat(path / record.path).st_mtime for record in records)
    newest = min(newest, LATEST_S - 1)  # a file system may have times after the year 9999
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")


def _with_tensors(draft: Manifest, index: Index) -> Manifest:
    """Return the manifest with the tensors that the entries are parts of; the shape of a per-rank one is rank 0's."""
    specs = [min(entries, key=lambda entry: entry.rank).item.spec for entries in index.values()]
    return replace(draft, tensors=tuple(sorted(specs, key=lambda spec: spec.name)))


# -- 4 to 6: publish ---------------------------------------------------------------------------------


def publish(finding: RepairFinding) -> Path:
    """Write the manifest that was rebuilt, and give the directory its name back. Root only, under the run's lock.

    The repair is recorded in the run's journal.

    Raises
    ------
    StepExistsError
        If the name is taken; the manifest is written all the same.
    NoSpaceError, ReadOnlyError, StorageError
        If it cannot be written; then everything is as it was.
    """
    assert finding.manifest is not None
    try:
        with Workspace.at(finding.path.parent).commit_mutex:
            if finding.is_rebuilt:
                _put_manifest(finding.path, finding.manifest)
            path = finding.path if finding.final is None else _give_back_name(finding.path, finding.final)
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, "repair") from error
    manifest = finding.manifest
    Journal(path.parent, by="repair").repaired(manifest.step, manifest.save_id, manifest.nbytes)
    return path


def _put_manifest(path: Path, manifest: Manifest) -> None:
    for name in [name for name in os.listdir(path) if name.startswith(_DRAFT)]:  # of a repair that was killed
        files.unlink(path / name)
    for record in manifest.files:  # a copy may never have been synced: durable before visible
        _sync(path / record.path)
    native.fsync_dir(str(path / layout.DATA))
    draft = path / f"{_DRAFT}{layout.new_nonce()}"
    text = encode(manifest, native.crc32c)
    decode(text, native.crc32c, str(draft))  # what could not be read back must not be published
    _write(draft, text)  # step 4
    place = path / layout.MANIFEST
    if os.path.lexists(place):  # step 5; killed in between, the step lacks a manifest as before
        files.rename(place, path / f"{layout.MANIFEST}.bad-{layout.new_nonce()}")
    files.rename(draft, place)
    native.fsync_dir(str(path))


def _write(path: Path, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        native.write_blocks(fd, [(text, 0)], path=path)
        native.fsync(fd, path)
    except OSError:
        files.unlink(path)
        raise
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    fd = files.open_regular(str(path))
    try:
        native.fsync(fd, path)
    finally:
        os.close(fd)


def _give_back_name(path: Path, final: Path) -> Path:
    if os.path.lexists(final):
        raise StepExistsError(f"{path} cannot have its name back: {final} is there; move that one away first")
    files.rename(path, final)  # step 6
    native.fsync_dir(str(final.parent))
    return final
