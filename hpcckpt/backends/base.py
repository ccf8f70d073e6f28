"""The contract of a storage backend: it puts planned bytes on storage, and nothing else.

Saving (the numbers are those of the commit protocol)::

    0) (root)  file_layout  if it ``designs``: from the plan of all ranks, what they all need to know; once per plan
    1) (root)  prepare      create what must exist before ranks write
               reuse        the same, of a retired step, if it ``recycles``
    2) (each)  write        write this rank's payloads, on a thread; all durable on return
    4) (root)  seal         complete what all ranks wrote, durable on return; say which files there are

Reading, in any process, without MPI::

    1) (root)  index        say where every entry lies, from the files themselves
    2) (each)  read         fill buffers, verifying each block in the same pass

A backend decides no names of steps, and deletes nothing but what it finds in a staging directory.  It never
communicates, unless it is ``collective``: then all ranks call its `write` together, or none does, each on the
thread that calls MPI, while the caller of ``save`` waits.

Features say what a backend can do, positively:

=============  ==========================================================================================
partial-read   reads parts of entries without reading the rest
zero-copy      writes straight from the tensors' memory
shared-file    ranks write into one file
designs        is told the whole plan before the first byte
recycles       writes over the files of a retired step that it finds in the staging directory
incremental    links the files of tensors that did not change (`Payload.linkable`)
collective     its ranks communicate while they write
own-files      ranks write files of their own alone, which their reports name, and need no more than ``data/`` for it;
               `seal` reads no other files than root's: so ranks may write in directories that are not the same
=============  ==========================================================================================
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcckpt.core.moved import renamed
from hpcckpt.core.plan import DamagedBlock, FileRecord, FullPlan, Index, SaveJob, StoredEntry, WriteItem, WriteReport
from hpcckpt.errors import BackendError, BackendNotFoundError, OptionError, Problem, list_problems
from hpcckpt.format.manifest import Manifest

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator

FEATURES = frozenset(
    {"partial-read", "zero-copy", "shared-file", "designs", "recycles", "incremental", "collective", "own-files"}
)
Bytes = npt.NDArray[np.uint8]


class LinkSource(NamedTuple):
    """A file of unchanged tensors, their number, and block checksums of one."""

    file: FileRecord
    n_in_file: int
    crcs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BlockRecord:
    """Block checksums, and maybe bytes, of a payload of the newest committed step.

    Attributes
    ----------
    crcs : tuple of int
        CRC32C of its blocks.
    data : numpy.ndarray or None
        Its bytes, if they have been in memory since then.
    where : LinkSource or None
        The file that has it together with other unchanged tensors only, if there is one.
    """

    crcs: tuple[int, ...]
    data: Bytes | None
    where: LinkSource | None = None


class Payload:
    """One item and its bytes.

    Parameters
    ----------
    item : WriteItem
        The item.
    data : numpy.ndarray of uint8
        A flat, C-contiguous view, which keeps its memory alive, and does not change until it is released.
    is_held : bool
        Whether the view is of the program's own buffer, which the program copies before it changes it.
    """

    __slots__ = ("_before", "_data", "is_held", "is_unchanged", "item", "record")

    def __init__(self, item: WriteItem, data: Bytes, is_held: bool = False) -> None:
        self.item = item
        self.is_held = is_held
        self.is_unchanged = False
        self.record: BlockRecord | None = None
        self._data: Bytes | None = data
        self._before: BlockRecord | None = None

    @property
    def data(self) -> Bytes:
        """The bytes."""
        if self._data is None:
            raise AssertionError(f"the bytes of {self.item.spec.name!r} were released already")
        return self._data

    @property
    def linkable(self) -> LinkSource | None:
        """The file of the newest committed step that has the bytes of this payload.

        It may be linked into the new step.
        """
        return self._before.where if self.is_unchanged and self._before is not None else None

    def compare_with(self, before: BlockRecord | None) -> None:
        """Compare with the record of the same item in the newest committed step."""
        self._before = before
        held = before.data if before else None
        self.is_unchanged = held is not None and self._data is not None and _address(held) == _address(self._data)

    def release(self) -> None:
        """Release the bytes, unless they may turn out to be unchanged.

        A backend calls this for each payload as soon as the kernel has the bytes: as long as they are held, an update
        of the tensor copies them.
        """
        if self._before is None:
            self._data = None

    def written(self, crcs: Sequence[int], file: FileRecord | None = None, n_in_file: int = 0) -> None:
        """Record where the bytes were written; release them if they changed.

        Parameters
        ----------
        crcs : sequence of int
            CRC32C of their blocks.
        file : FileRecord, optional
            Their file, if it has only unchanged tensors.
        n_in_file : int
            Number of tensors in this file.
        """
        if self.is_held:
            own = tuple(crcs)
            seems_frozen = self._before is not None and self._before.crcs == own
            where = LinkSource(file, n_in_file, own) if file is not None else None
            self.record = BlockRecord(own, self._data if seems_frozen else None, where)
        self._data = None

    let_go = renamed("let_go", "release")
    landed = renamed("landed", "written")


def _address(data: Bytes) -> tuple[int, int]:
    return data.__array_interface__["data"][0], data.nbytes


class ReadRequest(NamedTuple):
    """Bytes `start` to `stop` of a stored entry are wanted in `into`, a flat writable byte view of that length."""

    entry: StoredEntry
    start: int
    stop: int
    into: Bytes


class Backend(ABC):
    """Base class of backends; one instance serves one checkpointer, or one reader.

    Parameters
    ----------
    threads : int
        Native threads to write and read with.
    nice : int
        Nice value of the threads that write, so that they give way to the training.
    comm : Communicator, optional
        The ranks that save together, for a ``collective`` backend; ``None`` if only one process reads.
    **options
        The user's ``backend_options``; the subclass checks them.

    Attributes
    ----------
    name : str
        The name by which users choose it.
    features : frozenset of str
        What it can do; an instance may have fewer or more features than its class, depending on its options.
    is_recycling_forced : bool
        Whether files of retired steps are overwritten even if others have them open (``recycle="always"``).

    Raises
    ------
    OptionError
        Naming every option that is wrong.
    """

    name: ClassVar[str]
    features: frozenset[str] = frozenset()
    is_recycling_forced: bool = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "design" in vars(cls) and "file_layout" not in vars(cls):
            text = f"{cls.__qualname__}.design is now file_layout; the old name ends with hpcckpt 0.3"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            cls.file_layout = cls.design  # type: ignore[method-assign]

    def __init__(self, threads: int = 1, nice: int = 0, comm: Communicator | None = None, **options: Any) -> None:
        if options:
            message = f"backend {self.name!r} has no such option"
            raise OptionError(list_problems([Problem(f"backend_options.{option}", message) for option in options]))
        self.threads = threads
        self.nice = nice
        self.comm = comm

    @classmethod
    def variant(cls, name: str) -> type[Backend]:
        """Return the class of ``BACKEND:name``; only backends with variants have any."""
        raise BackendNotFoundError(f"backend: {cls.name!r} has no variants, so there is no {cls.name}:{name}")

    @classmethod
    def reader(cls, threads: int, options: Mapping[str, Any]) -> Backend:  # noqa: ARG003 - for subclasses
        """Return an instance that reads a checkpoint. Independent.

        Parameters
        ----------
        threads : int
            Native threads to read with.
        options : mapping
            What `options_for_reading` returned when the checkpoint was written. They come from a manifest that anybody
            may have written, so do not trust them. Ignored by default.
        """
        return cls(threads)

    def options_for_reading(self) -> dict[str, Any]:
        """Return how checkpoints are written, as JSON values for the manifest.

        They are for people, and for `reader`.
        """
        return {}

    # -- saving ------------------------------------------------------------------------------------

    def file_layout(self, plan: FullPlan) -> Any:
        """Return what all ranks must know to write a plan to storage. Root only.

        The result must be small and picklable. This is called for each plan, if the backend has the feature
        ``designs``; the result is `SaveJob.file_layout` of all saves by this plan, on every rank. Two file layouts are
        compared with ``==``.
        """
        raise NotImplementedError(f"backend {self.name!r} has the feature designs, but no method file_layout")

    design = renamed("design", "file_layout")

    @abstractmethod
    def prepare(self, path: Path, file_layout: Any = None) -> None:
        """Create what must exist in a new staging directory before ranks write. Root only."""

    def reuse(self, path: Path, n_ranks: int, file_layout: Any = None) -> None:
        """Make a used directory a staging directory, to overwrite its files. Root only.

        This is called with the directory of a retired step, if the backend has the feature ``recycles``; and with a
        directory that was prepared for another file layout, if it has the feature ``designs``. Remove every file that
        `write` will not look up by its name, and every file that has a second name (a hard link). No file may look
        complete before it is. Files that others have open must not be overwritten: `hpcckpt.backends.reusing` has
        functions that open files in this way.
        """
        raise NotImplementedError(f"backend {self.name!r} has the feature recycles or designs, but no method reuse")

    @abstractmethod
    def write(
        self, job: SaveJob, path: Path, rank: int, payloads: Sequence[Payload], base: Path | None = None
    ) -> WriteReport:
        """Write this rank's payloads; files, and directories with new entries, are durable on return.

        Independent; or Collective, if the backend has the feature ``collective``.

        Parameters
        ----------
        job : SaveJob
            Identity of the save, and the file layout.
        path : pathlib.Path
            The staging directory.
        rank : int
            This rank.
        payloads : sequence of Payload
            What to write; `Payload.written` is called for each.
        base : pathlib.Path, optional
            The newest committed step, from which files of `Payload.linkable` payloads may be linked.
        """

    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:  # noqa: ARG002
        """Complete what all ranks wrote; return all files. Root only.

        Everything is durable on return. The files are sorted by path.

        Parameters
        ----------
        job : SaveJob
            Identity of the save, and the file layout.
        path : pathlib.Path
            The staging directory.
        reports : sequence of WriteReport
            What `write` returned on each rank, in rank order.

        Raises
        ------
        BackendError
            If two ranks report the same file, and the backend does not have the feature ``shared-file``.
        """
        files: dict[str, FileRecord] = {}
        writers: dict[str, int] = {}
        for rank, report in enumerate(reports):
            for record in report.files:
                first = writers.setdefault(record.path, rank)
                if first != rank and "shared-file" not in self.features:
                    raise BackendError(
                        f"backend {self.name!r}: ranks {first} and {rank} both reported {record.path}, and it has no "
                        "feature shared-file; nothing was committed: let each rank write other files"
                    )
                files[record.path] = record
        return tuple(files[path] for path in sorted(files))

    # -- reading -----------------------------------------------------------------------------------

    @abstractmethod
    def index(self, path: Path, manifest: Manifest) -> Index:
        """Return where every entry lies, checking each header against the manifest. Independent.

        Raises
        ------
        CorruptError
            If a header is damaged or does not belong to this save.
        """

    @abstractmethod
    def read(self, path: Path, manifest: Manifest, requests: Sequence[ReadRequest]) -> list[DamagedBlock]:
        """Fill the requests' buffers; return the damaged blocks. Independent.

        Every block that is read is verified.
        """


def is_built_in(backend: Backend) -> bool:
    """Return True for a backend of this package: its reports are trusted. Pure."""
    return type(backend).__module__.partition(".")[0] == "hpcckpt"
