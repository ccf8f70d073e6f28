"""Reading a checkpoint: one step, open and checked; whole tensors or boxes of them. Needs no MPI."""

from __future__ import annotations

import fnmatch
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hpcckpt.backends.base import Backend, ReadRequest
from hpcckpt.backends.registry import find_backend, load_class
from hpcckpt.collective.sharding import coverage_problems
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.plan import DamagedBlock, Index, StoredEntry, block_count
from hpcckpt.core.system import OperatingSystem
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import (
    BackendError,
    ConfigError,
    CorruptError,
    HostMemoryError,
    HpcckptError,
    ManifestError,
    OptionError,
    Problem,
    StepNotFoundError,
    UnprovenDamageError,
    from_read_error,
    list_problems,
)
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.native.posix_files import REAL
from hpcckpt.restoring.read_plan import ReadTransfer, plan_transfers
from hpcckpt.rundir import damage_records, discovery
from hpcckpt.state.tree import as_bytes

Array = npt.NDArray[Any]
T = TypeVar("T")
VERIFY_CHUNK_BYTES = 64 << 20
PIECE_BYTES = 256 << 20
"""How much is read between two reports of progress: enough for all threads of the backend."""


class StepReader:
    """A checkpoint, open for reading.

    Parameters
    ----------
    path : pathlib.Path
        The step directory.
    manifest : Manifest
        What it holds.
    backend : Backend
        Reads its files.
    index : Index, optional
        Where the entries lie; read from the files if not given.
    is_recording : bool
        Record damage that is found, where the run directory can be written.
    system : OperatingSystem
        Where the step is.

    Raises
    ------
    CorruptError
        If the entries are not exactly what the manifest says; names every problem.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        backend: Backend,
        index: Index | None = None,
        *,
        is_recording: bool = False,
        system: OperatingSystem = REAL,
    ) -> None:
        self.path, self._system = path, system
        self.manifest = manifest
        self._is_recording = is_recording
        self.backend = backend
        self.specs = {spec.name: spec for spec in manifest.tensors}
        try:
            self.index: Index = self._checked(self._guarded(backend.index, path, manifest)) if index is None else index
        except CorruptError as error:
            self._record(error)
            raise

    def _checked(self, index: Index) -> Index:
        self._require("index", index, "entries by name", is_right=hasattr(index, "items"))
        problems = list(_index_problems(self.specs, index, self.manifest))
        if problems:
            raise CorruptError(f"{self.path}: {list_problems(problems)}; use an older step")
        return {name: index.get(name, ()) for name in self.specs}

    def load(self, name: str, extent: Extent | None = None) -> Array:
        """Return a tensor, or a box of it, verified. Independent.

        Raises
        ------
        KeyError
            If there is no such tensor.
        CorruptError
            If its bytes are damaged; names file and bytes.
        """
        spec = self.specs[name]
        wanted = extent or Extent.whole(spec.shape)
        target: Array = _empty(wanted.shape, spec.dtype)
        self.fill([(name, wanted, target)])
        return target

    def load_rank(self, name: str, rank: int) -> Array:
        """Return what one rank had saved under a per-rank name, verified. Independent.

        Raises
        ------
        KeyError
            If this rank saved nothing of this name.
        """
        for entry in self.index[name]:
            if entry.rank == rank:
                target: Array = _empty(entry.item.extent.shape, entry.item.spec.dtype)
                request = ReadRequest(entry, 0, entry.nbytes, as_bytes(target))
                self._read([ReadTransfer(request, entry.item.extent.n_elements)])
                return target
        raise KeyError(f"{name} of rank {rank}")

    def fill(
        self, wanted: Iterable[tuple[str, Extent, Array]], progress: Callable[[str, int], None] | None = None
    ) -> int:
        """Fill arrays with boxes of tensors, verified; return the number of bytes filled. Independent.

        Parameters
        ----------
        wanted : iterable of (str, Extent, ndarray)
            Names, boxes, and the arrays to fill.
        progress : callable, optional
            Called before each piece is read, with its file and the number of bytes that were read before.

        Raises
        ------
        CorruptError
            If bytes are damaged, or the entries do not cover a box.
        """
        transfers, nbytes = self._plan(wanted)
        n_read = 0
        for piece in _pieces(transfers) if progress else [transfers]:
            if progress and piece:
                progress(piece[0].request.entry.file, n_read)
            self._read(piece)
            n_read += sum(transfer.request.stop - transfer.request.start for transfer in piece)
        return nbytes

    def _plan(self, wanted: Iterable[tuple[str, Extent, Array]]) -> tuple[deque[ReadTransfer], int]:
        """Return the reads that fill arrays with boxes of tensors, and the bytes of the arrays."""
        transfers: deque[ReadTransfer] = deque()
        nbytes = 0
        for name, extent, target in wanted:
            planned = list(plan_transfers(self.index[name], extent, target))
            if sum(transfer.n_elements for transfer in planned) != extent.n_elements:
                raise CorruptError(f"{self.path}: the entries of tensor {name!r} do not cover it; use an older step")
            transfers += planned
            nbytes += target.nbytes
        return transfers, nbytes

    def _read(self, transfers: Sequence[ReadTransfer]) -> None:
        blocks = self._read_guarded([transfer.request for transfer in transfers])
        if blocks:
            cause = CorruptError if any(block.is_proven for block in blocks) else UnprovenDamageError
            error = cause(
                f"step {self.manifest.step} in {self.path.parent}: "
                f"{'; '.join(map(str, blocks[:5]))}{' and more' if len(blocks) > 5 else ''}; use an older step"
            )
            self._record(error)
            raise error
        for transfer in transfers:
            transfer.finish()

    def _record(self, error: CorruptError) -> None:
        """Record damage in the run directory, if this reader does and may write there. Independent."""
        is_in_run = self.path.name == layout.step_dirname(self.manifest.step)  # not a copy that was renamed
        if self._is_recording and is_in_run and error.kind == CorruptError.kind:
            directory, step, save_id = self.path.parent, self.manifest.step, self.manifest.save_id
            damage_records.record(directory, step, save_id, str(error), "a reader", self._system)

    def _read_guarded(self, requests: Sequence[ReadRequest]) -> Sequence[DamagedBlock]:
        damaged = self._guarded(self.backend.read, self.path, self.manifest, requests)
        self._require("read", damaged, "a list of DamagedBlock", is_right=_are_blocks(damaged))
        if damaged:
            discovery.raise_if_retired(self.path, self.manifest, self._system.files)
        return damaged

    def _require(self, method: str, returned: object, expected: str, *, is_right: bool) -> None:
        """Raise, naming the backend, if what one of its methods returned is not what the contract requires. Pure."""
        if not is_right:
            found = type(returned).__name__
            raise BackendError(f"backend {self.backend.name!r}: {method}() returned {found}, not {expected}")

    def _guarded(self, call: Callable[..., T], *args: Any) -> T:
        """Call the backend; a step that is going while it is read is retired, not damaged."""
        try:
            return call(*args)
        except (FileNotFoundError, NotADirectoryError) as error:
            # raises if a file of the step is missing, or it is retired
            discovery.check_files(self.path, self.manifest, self._system.files)
            raise from_read_error(error, "read") from error  # else the backend looked for another one
        except CorruptError:
            discovery.raise_if_retired(self.path, self.manifest, self._system.files)
            raise
        except OSError as error:
            raise error if isinstance(error, HpcckptError) else from_read_error(error, "read") from error

    def verify(self, progress: Callable[[int], None] | None = None) -> list[DamagedBlock]:
        """Read every byte and return the damaged blocks. Independent.

        Parameters
        ----------
        progress : callable, optional
            Called with the number of bytes of each part that was checked.
        """
        damaged: list[DamagedBlock] = []
        scratch = np.empty(min(VERIFY_CHUNK_BYTES, max((e.nbytes for e in self._entries()), default=0)), np.uint8)
        chunk = VERIFY_CHUNK_BYTES // self.manifest.block_bytes * self.manifest.block_bytes or VERIFY_CHUNK_BYTES
        for entry in self._entries():
            for start in range(0, entry.nbytes, chunk):
                stop = min(start + chunk, entry.nbytes)
                damaged += self._read_guarded([ReadRequest(entry, start, stop, scratch[: stop - start])])
                if progress:
                    progress(stop - start)
        return damaged

    def _entries(self) -> Iterator[StoredEntry]:
        for entries in self.index.values():
            yield from entries


def _empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array to read into; its size is bounded by that of the files, unless a plugin stores elsewhere."""
    try:
        return np.empty(shape, numpy_dtype(dtype))
    except MemoryError as error:
        raise HostMemoryError(
            f"a tensor of shape {shape} and dtype {dtype} does not fit into memory: {error}"
        ) from None
    except ValueError as error:  # NumPy 1 has at most 32 axes
        raise ConfigError(f"NumPy on this machine has no arrays of shape {shape} and dtype {dtype}: {error}") from None


def _pieces(transfers: deque[ReadTransfer]) -> Iterator[Sequence[ReadTransfer]]:
    """Take the transfers out in runs of at least `PIECE_BYTES`: a run's scratch buffers are freed with it."""
    piece: list[ReadTransfer] = []
    nbytes = 0
    while transfers:
        piece.append(transfers.popleft())
        nbytes += piece[-1].request.stop - piece[-1].request.start
        if nbytes >= PIECE_BYTES or not transfers:
            yield piece
            piece, nbytes = [], 0


def _index_problems(specs: dict[str, TensorSpec], index: Index, manifest: Manifest) -> Iterator[Problem]:
    """Yield what differs between the manifest and the entries found; bounds what anyone may allocate."""
    for name in sorted(index.keys() - specs.keys()):
        yield Problem(repr(name), "is in the data files but not in the manifest")
    odd = {name for name, spec in specs.items() if not _is_whole(index.get(name, ()), spec, manifest)}
    for name, entries in index.items():
        for entry in entries if name in odd else ():
            if name in specs and not _is_of(entry, specs[name]):
                yield Problem(repr(name), f"{entry.file} has it with another dtype, shape or kind")
            if len(entry.crcs) != block_count(entry.nbytes, manifest.block_bytes):
                yield Problem(repr(name), f"{entry.file} has the wrong number of checksums")
    for name, spec in specs.items():
        if name not in odd:
            continue
        if spec.kind == "per-rank":
            yield from _rank_problems(spec, index.get(name, ()), manifest.n_ranks)
        else:
            yield from _tiling_problems(spec, index.get(name, ()))


def _are_blocks(found: object) -> bool:
    return isinstance(found, Sequence) and all(isinstance(block, DamagedBlock) for block in found)


def _is_whole(entries: Sequence[StoredEntry], spec: TensorSpec, manifest: Manifest) -> bool:
    """Return True if one entry is the whole tensor: as it mostly is, and then nothing else can be wrong."""
    if len(entries) != 1 or spec.kind == "per-rank":
        return False
    item, extent = entries[0].item, entries[0].item.extent
    is_whole_box = extent.shape == spec.shape and not any(extent.offset)
    is_all = is_whole_box and item.spec == spec and (item.start, item.stop) == (0, extent.n_elements)
    return is_all and len(entries[0].crcs) == block_count(entries[0].nbytes, manifest.block_bytes)


def _rank_problems(spec: TensorSpec, entries: Sequence[StoredEntry], n_ranks: int) -> Iterator[Problem]:
    if len(entries) != n_ranks or {entry.rank for entry in entries} != set(range(n_ranks)):  # n_ranks may be any number
        yield Problem(repr(spec.name), f"has not one entry for each of {n_ranks} ranks")
    if any((entry.item.start, entry.item.stop) != (0, entry.item.extent.n_elements) for entry in entries):
        yield Problem(repr(spec.name), "has an entry that is only a part")


def _tiling_problems(spec: TensorSpec, entries: Sequence[StoredEntry]) -> Iterator[Problem]:
    """Yield what keeps the spans from tiling their boxes, or the boxes the tensor: no element twice, none left out."""
    spans: dict[Extent, list[tuple[int, int]]] = defaultdict(list)
    for entry in entries:
        if entry.item.stop > entry.item.start:
            spans[entry.item.extent].append((entry.item.start, entry.item.stop))
    for extent, found in spans.items():
        ends = [0, *(end for span in sorted(found) for end in span), extent.n_elements]
        if any(end != begin for end, begin in zip(ends[::2], ends[1::2], strict=True)):
            covered = sum(stop - start for start, stop in found)
            yield Problem(repr(spec.name), f"entries cover {covered} of {extent.n_elements} elements, or overlap")
    yield from coverage_problems(spec, spans)


def _is_of(entry: StoredEntry, spec: TensorSpec) -> bool:
    found = entry.item.spec
    same_shape = spec.kind == "per-rank" or found.shape == spec.shape
    return same_shape and (found.name, found.dtype, found.kind) == (spec.name, spec.dtype, spec.kind)


def open_step(path: discovery.PathLike, threads: int = 1) -> StepReader:
    """Open a step directory, or the newest restorable step of a run directory. Independent.

    Parameters
    ----------
    path : path_like
        A step or a run directory.
    threads : int
        Native threads for reading.

    Raises
    ------
    StepNotFoundError
        If there are no steps.
    CorruptError
        If the step, or each step of the run, is damaged.
    """
    where = Path(path)
    if REAL.files.exists(where / layout.MANIFEST) or layout.parse_step(where.name) is not None:
        manifest = discovery.read_manifest(where)
    else:
        newest = discovery.newest_to_resume(where)
        if newest is None or newest.manifest is None:
            discovery.raise_if_absent(where)
            raise StepNotFoundError(f"no restorable step in {where}; see '{command_line('list', where)}'")
        where, manifest = newest.path, newest.manifest
    if layout.parse_step(where.name) not in {None, manifest.step}:
        raise ManifestError(f"{where}: the manifest is that of step {manifest.step}; use an older step")
    discovery.check_files(where, manifest)
    return StepReader(where, manifest, make_reader(manifest, threads), is_recording=True)


def rank_name(name: str, rank: int) -> str:
    """Return the name under which `load` returns what one rank saved of a per-rank tensor."""
    return f"{name}#{rank}"


def load(
    path: discovery.PathLike, names: str | Iterable[str] | None = None, *, step: int | str | None = None
) -> dict[str, Array]:
    """Load tensors of a checkpoint as NumPy arrays, verified; needs no MPI. Independent.

    Parameters
    ----------
    path : path_like
        A step directory, or a run directory, of which the newest restorable step is taken.
    names : str or iterable of str, optional
        Names or patterns (``model/*``) to load; all by default.
    step : int or {"latest", "best"}, optional
        Which step of a run directory.

    Returns
    -------
    dict of str to numpy.ndarray
        Per-rank tensors appear once for each rank, as ``NAME#RANK``.

    Raises
    ------
    StepNotFoundError
        If there is no restorable step, or no such step.
    CorruptError
        If bytes are damaged.
    OptionError
        If a name or pattern matches nothing.
    """
    reader = open_step(path if step is None else discovery.find_step(path, step).path)
    wanted = [names] if isinstance(names, str) else names if names is None else list(names)
    _refuse_objects(wanted or (), reader.manifest)
    chosen = select(reader.specs, wanted)
    loaded: dict[str, Array] = {}
    for name in chosen:
        if reader.specs[name].kind == "per-rank":
            ranks = sorted(entry.rank for entry in reader.index[name])
            loaded |= {rank_name(name, rank): reader.load_rank(name, rank) for rank in ranks}
        else:
            loaded[name] = reader.load(name)
    return loaded


def _refuse_objects(names: Sequence[str], manifest: Manifest) -> None:
    """Raise if a name is that of a value that is not a tensor. Pure."""
    tensors = {spec.name for spec in manifest.tensors}
    for name in names:
        for place, values in manifest.objects.items():
            if name not in tensors and isinstance(values, dict) and name in values:
                raise OptionError(
                    f"{name!r} is not a tensor: hpcckpt.info(path).objects[{place!r}][{name!r}] has its value"
                )


def select(known: Iterable[str], patterns: Iterable[str] | None) -> list[str]:
    """Return the names that match any pattern, in order; all without patterns. Pure.

    Raises
    ------
    OptionError
        If a pattern matches nothing.
    """
    every = list(known)
    if patterns is None:
        return every
    chosen: set[str] = set()
    for pattern in patterns:
        is_name = pattern in every  # also one that looks like a pattern: "w[0]"
        matched = {pattern} if is_name else {name for name in every if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            raise OptionError(f"{pattern!r} matches no tensor; see 'hpcckpt tensors'")
        chosen |= matched
    return [name for name in every if name in chosen]


def load_backend(manifest: Manifest, own: Backend) -> Backend:
    """Return the backend that reads a checkpoint: `own` if it would write it so, else a new one. Independent."""
    is_same = own.name == manifest.backend and own.options_for_reading() == manifest.backend_options
    return own if is_same else make_reader(manifest, own.threads)


def make_reader(manifest: Manifest, threads: int) -> Backend:
    """Return a new backend that reads a checkpoint. Independent."""
    return load_class(find_backend(manifest.backend)).reader(threads, manifest.backend_options)
