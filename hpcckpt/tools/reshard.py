"""A checkpoint rewritten as another number of ranks would have written it. Needs no MPI.

1. plan who would write what, as for a save by that many ranks
2. write their files one after the other, part by part; what is read is verified in the same pass
3. publish the step as any save does: durable before visible, in place by an exchange of names
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hpcckpt import native
from hpcckpt._version import __version__
from hpcckpt.backends.base import Bytes
from hpcckpt.backends.rankfile.backend import RankfileBackend
from hpcckpt.backends.rankfile.streamed import write_streamed
from hpcckpt.collective.planner import SavePlan
from hpcckpt.collective.sharding import boxes_of_span, split_over
from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import Declaration, FileRecord, SaveJob, WriteItem
from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import Extent, TensorSpec, itemsize
from hpcckpt.errors import HpcckptError, OptionError, StepExistsError, from_os_error
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.restoring.reader import Array, StepReader
from hpcckpt.rundir import commit
from hpcckpt.rundir.discovery import inspect_step, step_numbers
from hpcckpt.rundir.journal import Journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.rundir.pins import refuse_pinned
from hpcckpt.rundir.run_directory import make_directory
from hpcckpt.rundir.workspace import Workspace
from hpcckpt.state.tree import as_bytes

PART_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """What the new step will be.

    Attributes
    ----------
    items : tuple of tuple of WriteItem
        What each rank would write.
    tensors : tuple of TensorSpec
        All tensors, sorted by name.
    dropped : tuple of str
        Per-rank entries that are left out.
    of_root : tuple of str
        Per-rank entries of which each new rank gets what rank 0 had.
    """

    items: tuple[tuple[WriteItem, ...], ...]
    tensors: tuple[TensorSpec, ...]
    dropped: tuple[str, ...] = ()
    of_root: tuple[str, ...] = ()

    @property
    def n_ranks(self) -> int:
        """Number of ranks, and of files."""
        return len(self.items)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(item.nbytes for items in self.items for item in items)


# -- 1: plan ---------------------------------------------------------------------------------------


def plan_reshard(reader: StepReader, n_ranks: int, *, is_dropping: bool = False) -> ReshardPlan:
    """Plan the step as `n_ranks` ranks would save it. Independent.

    Parameters
    ----------
    reader : StepReader
        The step there is.
    n_ranks : int
        How many ranks, and files.
    is_dropping : bool
        Leave out what each rank had for itself, if the number of ranks changes; but each new rank gets rank 0's value
        of what a restore on another number of ranks gives it.

    Raises
    ------
    OptionError
        If there are per-rank entries, the number of ranks changes, and they are not to be dropped.
    """
    manifest = reader.manifest
    is_same = n_ranks == manifest.n_ranks
    dropped = (
        () if is_same else tuple(s.name for s in manifest.tensors if s.kind == "per-rank" and not s.is_for_any_ranks)
    )
    of_root = () if is_same else tuple(spec.name for spec in manifest.tensors if spec.is_for_any_ranks)
    if (dropped or of_root) and not is_dropping:
        names = (*dropped, *of_root)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise OptionError(
            f"step {manifest.step} has entries of each of its {manifest.n_ranks} ranks ({shown}), which mean nothing "
            f"to {n_ranks}: pass --files {manifest.n_ranks} to keep them, or --drop-per-rank to leave them out"
        )
    items = [_own_items(reader, rank if is_same else 0, dropped) for rank in range(n_ranks)]
    items[0] += [_whole(spec) for spec in manifest.tensors if spec.kind == "root"]
    loads = {rank: sum(item.nbytes for item in own) for rank, own in enumerate(items)}
    shared = [Declaration(s, Extent.whole(s.shape)) for s in manifest.tensors if s.kind in {"replicated", "sharded"}]
    for rank, more in split_over(range(n_ranks), shared, loads).items():
        items[rank] += more
    tensors = tuple(spec for spec in manifest.tensors if spec.name not in dropped)
    return ReshardPlan(tuple(map(tuple, items)), tensors, dropped, of_root)


def _own_items(reader: StepReader, rank: int, dropped: Sequence[str]) -> list[WriteItem]:
    """Return what one rank had saved for itself."""
    kept = [s.name for s in reader.manifest.tensors if s.kind == "per-rank" and s.name not in dropped]
    return [entry.item for name in kept for entry in reader.index[name] if entry.rank == rank]


def _whole(spec: TensorSpec) -> WriteItem:
    whole = Extent.whole(spec.shape)
    return WriteItem(spec, whole, 0, whole.n_elements)


# -- 2: write --------------------------------------------------------------------------------------


def parts_of(reader: StepReader, item: WriteItem, rank: int, part_bytes: int | None = None) -> Iterator[Bytes]:
    """Yield the bytes of an item in order, verified; each part is gone when the next one is asked for. Independent."""
    if item.spec.kind == "per-rank":
        yield as_bytes(reader.load_rank(item.spec.name, rank))
        return
    part_bytes = part_bytes or PART_BYTES
    width = itemsize(item.spec.dtype)
    n_elements = min(item.stop - item.start, part_bytes // max(width, 1) + 2)
    scratch: Array = np.empty(n_elements, numpy_dtype(item.spec.dtype))  # one for all parts: fresh memory is slow
    for begin in range(0, item.nbytes, part_bytes):
        end = min(begin + part_bytes, item.nbytes)
        first, last = begin // width, -(-end // width)  # an element may lie across the border of two parts
        elements = scratch[: last - first]
        _read_span(reader, item, item.start + first, elements)
        yield as_bytes(elements)[begin - first * width : end - first * width]


def _read_span(reader: StepReader, item: WriteItem, start: int, into: Array) -> None:
    """Read flat elements of a box from `start` on, verified."""
    wanted, position = [], 0
    for box in boxes_of_span(item.extent.shape, start, start + into.size):
        placed = Extent(tuple(a + b for a, b in zip(box.offset, item.extent.offset, strict=True)), box.shape)
        wanted.append((item.spec.name, placed, into[position : position + box.n_elements].reshape(box.shape)))
        position += box.n_elements
    reader.fill(wanted)


def reshard(
    reader: StepReader,
    plan: ReshardPlan,
    directory: Path,
    *,
    is_replacing: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the planned step into a run directory and publish it. Root only, under no lock of this directory.

    Parameters
    ----------
    reader : StepReader
        The step there is.
    plan : ReshardPlan
        What becomes of it.
    directory : path
        The run directory; made if it is not there.
    is_replacing : bool
        Replace the step of this number, atomically.
    progress : callable, optional
        Called with the bytes of each part that was written.

    Raises
    ------
    StepExistsError
        If the step is there and is not to be replaced.
    LockedError
        If a job writes there.
    CorruptError
        If the step there is proves damaged; nothing is published then.
    """
    try:
        make_directory(directory)
        with RunLock.take(directory) as lock:
            return _reshard(reader, plan, directory, lock, is_replacing=is_replacing, progress=progress)
    except OSError as error:
        raise error if isinstance(error, HpcckptError) else from_os_error(error, "reshard") from error


def _reshard(
    reader: StepReader,
    plan: ReshardPlan,
    directory: Path,
    lock: RunLock,
    *,
    is_replacing: bool,
    progress: Progress | None,
) -> Path:
    conflicts = _check_conflicts(reader, directory, is_replacing=is_replacing)
    commit.check_space(directory, SavePlan((), plan.tensors, plan.nbytes, ()), plan.n_ranks)
    backend = RankfileBackend(reader.backend.threads)
    slot = commit.new_slot()
    staged = commit.Staged(SaveJob(slot.save_id, reader.manifest.step, plan.n_ranks), directory, slot.name)
    workspace = Workspace.at(directory)
    workspace.reserve(staged.name, plan)
    try:
        commit.prepare(backend, staged.path, plan.n_ranks)
        files = tuple(_write_rank(reader, staged, plan, rank, progress) for rank in range(plan.n_ranks))  # step 2
        native.fsync_dir(str(staged.path / layout.DATA))
        with workspace.renaming(lock) as renames:
            path = commit.commit_step(  # step 3
                staged, _manifest(reader.manifest, staged.job, plan, files), renames, conflicts
            )
            workspace.release(staged.name)
    except BaseException:
        workspace.abort(staged)
        raise
    if is_replacing:
        with contextlib.suppress(OSError):  # the step is there: what cannot be removed is swept later
            workspace.retire(staged.name)  # the old step, which now has the name of the staging directory
    nbytes = sum(file.nbytes for file in files)
    Journal(directory, by="reshard").resharded(staged.job.step, staged.job.save_id, nbytes, plan.n_ranks)
    return path


def _check_conflicts(reader: StepReader, directory: Path, *, is_replacing: bool) -> commit.Conflicts:
    step = reader.manifest.step
    if step not in step_numbers(directory):
        return commit.NO_CONFLICTS
    found = inspect_step(directory, step)
    if not is_replacing:
        raise StepExistsError(f"step {step} is in {directory} already; give another --out, or --in-place to replace it")
    if found.manifest is None or found.manifest.save_id != reader.manifest.save_id:
        raise StepExistsError(f"step {step} of {directory} was replaced or damaged meanwhile; look at it again")
    refuse_pinned(directory, [step])
    return commit.Conflicts(existing="good")


def _write_rank(
    reader: StepReader, staged: commit.Staged, plan: ReshardPlan, rank: int, progress: Progress | None
) -> FileRecord:
    saved_by = rank if plan.n_ranks == reader.manifest.n_ranks else 0

    def parts(item: WriteItem) -> Iterator[Bytes]:
        for part in parts_of(reader, item, saved_by):
            yield part
            if progress:
                progress(part.nbytes)

    written = write_streamed(staged.job, staged.path, rank, plan.items[rank], parts, reader.backend.threads)
    return written.files[0]


def _manifest(old: Manifest, job: SaveJob, plan: ReshardPlan, files: tuple[FileRecord, ...]) -> Manifest:
    """Return the old step's manifest with the new files: the same checkpoint in its lineage, another identity."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = f"from {old.n_ranks} ranks to {job.n_ranks} at {now} by hpcckpt {__version__}; it was save {old.save_id}"
    return replace(
        old,
        save_id=job.save_id,
        n_ranks=job.n_ranks,
        backend=RankfileBackend.name,
        block_bytes=job.block_bytes,
        tensors=plan.tensors,
        files=files,
        environment={**old.environment, "resharded": note},
        level="state" if (plan.dropped or plan.of_root) and old.level == "exact" else old.level,
    )
