"""``plugin:NAME``: what stores is a shared library in C or C++; what verifies is ours.

Writing, on each rank:

    a. compute the checksums of the tensors, and make the list of step c, which may be too long
    b. let the plugin save them, from their own memory; its files go into ``data/``, or it stores elsewhere
    c. write ``data/rank-NNNNN.entries.json``, the sidecar: what was saved, and the checksums
    d. sync the sidecar, the files that the plugin left (unless it is ``durable``), and the directory

Sealing, on root:

    e. check that every rank had the same plugin, and list the files that are there

Reading, in any process:

    f. load whole blocks, of parts of entries if the plugin is ``partial``, else whole entries
    g. compare their checksums; what is short or wrong is damaged, whatever the plugin says
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpcckpt import native
from hpcckpt.backends.base import Backend, Bytes, Payload, ReadRequest
from hpcckpt.backends.plugin import sidecar
from hpcckpt.backends.plugin.fetching import Fetch, in_batches, plan_fetches
from hpcckpt.core import failpoints, files
from hpcckpt.core.files import open_regular
from hpcckpt.core.plan import DamagedBlock, FileRecord, Index, SaveJob, StoredEntry, WriteItem, WriteReport
from hpcckpt.core.tensors import itemsize
from hpcckpt.errors import BackendConflictError, BackendError, BackendNotFoundError, CorruptError, OptionError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest
from hpcckpt.native import plugins
from hpcckpt.native.handshake import NAME

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator

CONFIG_VARIABLE = "HPCCKPT_PLUGIN_CONFIG_"
"""Followed by the plugin's name in capitals: the config where no program gives one."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


class PluginBackend(Backend):
    """Any storage plugin as a backend; each ``plugin:NAME`` has its own class, made by `variant`.

    Parameters
    ----------
    threads, nice, comm
        See `Backend`.
    config : str or mapping
        What the plugin is made with; a mapping becomes JSON. Nothing of it is stored.
    unrestorable : bool
        Take a plugin that does not store what it is given.
    """

    name = "plugin"
    plugin: ClassVar[str] = ""
    features = frozenset({"zero-copy"})

    def __init__(
        self,
        threads: int = 1,
        nice: int = 0,
        comm: Communicator | None = None,
        *,
        config: str | Mapping[str, Any] | None = None,
        unrestorable: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(threads, nice, comm, **options)
        if not self.plugin:
            raise OptionError("backend: 'plugin' needs the name of one: plugin:NAME; 'hpcckpt backends' lists them")
        if config is not None and not isinstance(config, str | Mapping):
            raise OptionError(f"backend_options.config: {config!r} is neither a string nor a mapping")
        if not isinstance(unrestorable, bool):
            raise OptionError(f"backend_options.unrestorable: {unrestorable!r} is neither True nor False")
        given = os.environ.get(self._config_variable, "") if config is None else config
        self.config = given if isinstance(given, str) else json.dumps(given)
        self._is_taken_anyhow = unrestorable
        self._opened: plugins.Instance | None = None
        if comm is not None:
            self._open_to_save()

    @classmethod
    def variant(cls, name: str) -> type[Backend]:
        """Return the class of a plugin; it is looked for when it is used, so steps can be listed without it."""
        if not NAME.fullmatch(name):
            raise BackendNotFoundError(f"backend: 'plugin:{name}': a plugin's name is a C identifier")
        made: type[Backend] = type("PluginBackend", (cls,), {"name": f"plugin:{name}", "plugin": name})
        return made

    @property
    def _config_variable(self) -> str:
        return CONFIG_VARIABLE + self.plugin.upper()

    @property
    def _hint(self) -> str:
        return "" if self.config else f"; it was given no config, and {self._config_variable} is not set"

    @property
    def instance(self) -> plugins.Instance:
        """The plugin's instance, made when it is first asked for.

        Raises
        ------
        BackendNotFoundError
            If there is no such plugin.
        BackendError
            If it cannot be loaded, or its constructor fails.
        """
        if self._opened is None:
            self._opened = plugins.find(self.plugin).create(self.config)
        return self._opened

    def _open_to_save(self) -> None:
        """Open the plugin now, while an error can still be raised on all ranks."""
        is_storing = "stores" in self.instance.backend.features
        if not (is_storing or self._is_taken_anyhow):
            raise OptionError(
                f"plugin {self.plugin!r} does not store what it is given, so its steps cannot be restored; "
                "backend_options={'unrestorable': True} if that is meant"
            )
        _fingerprint(self.instance.backend)  # now: the file may be replaced or removed while the program runs

    # -- saving ------------------------------------------------------------------------------------

    def prepare(self, path: Path, file_layout: Any = None) -> None:  # noqa: ARG002 - it has none
        """Create the data directory. Root only."""
        (path / layout.DATA).mkdir()

    def write(
        self,
        job: SaveJob,
        path: Path,
        rank: int,
        payloads: Sequence[Payload],
        base: Path | None = None,  # noqa: ARG002 - nothing is linked
    ) -> WriteReport:
        """Let the plugin save this rank's payloads; what it left in the directory is durable on return. Independent."""
        items = [payload.item for payload in payloads]
        data = path / layout.DATA
        before = _stamps(data)
        crcs = [native.crc32c_blocks(payload.data, job.block_bytes, self.threads) for payload in payloads]  # step a
        text, own_crc = sidecar.encode(job, rank, items, crcs, native.crc32c)
        context = plugins.PluginContext(os.path.abspath(data), job.save_id, job.step, rank, job.n_ranks)
        self.instance.save(context, [_tensor(p.item, p.data, p.item.start) for p in payloads])  # step b
        for payload, blocks in zip(payloads, crcs, strict=True):
            payload.written(blocks)
        record = self._write_sidecar(path, rank, text, own_crc)  # step c
        failpoints.reached("2-written", rank)
        if "durable" not in self.instance.backend.features:  # step d
            for name in _changed(before, _stamps(data)):
                _sync(data / name)
        native.fsync_dir(str(data))
        failpoints.reached("2-synced", rank)
        return WriteReport.of((record,), items, detail=_fingerprint(self.instance.backend))

    def _write_sidecar(self, path: Path, rank: int, text: bytes, own_crc: int) -> FileRecord:
        name = sidecar.sidecar_path(rank)
        where = str(path / name)
        try:
            fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise BackendError(f"plugin {self.plugin!r} left {name}, a reserved name; let it use another") from None
        try:
            native.write_blocks(fd, [(text, 0)], path=where)
            native.fsync(fd, where)
        finally:
            os.close(fd)
        return FileRecord(name, len(text), own_crc)

    def seal(self, job: SaveJob, path: Path, reports: Sequence[WriteReport]) -> tuple[FileRecord, ...]:
        """List our files and the plugin's. Root only."""
        odd = [rank for rank, report in enumerate(reports) if report.detail != reports[0].detail]
        if odd:  # step e
            raise BackendConflictError(
                f"plugin {self.plugin!r} is another library on rank {', '.join(map(str, odd[:8]))} than on rank 0; "
                "install the same one on every node"
            )
        own = super().seal(job, path, reports)
        taken = {record.path for record in own}
        names = sorted(os.listdir(path / layout.DATA))
        theirs = [self._listed(path, name) for name in names if f"{layout.DATA}/{name}" not in taken]
        return tuple(sorted((*own, *theirs), key=lambda record: record.path))

    def _listed(self, path: Path, name: str) -> FileRecord:
        """Return the record of a file that the plugin left, as a reader will find it."""
        if not _FILE_NAME.fullmatch(name):
            raise BackendError(
                f"plugin {self.plugin!r} left {name!r}, which a manifest cannot name: use letters, digits and _.- only"
            )
        try:
            fd = open_regular(str(path / layout.DATA / name))
        except (CorruptError, OSError) as error:
            raise BackendError(f"plugin {self.plugin!r} left something that is not a plain file: {error}") from error
        try:
            return FileRecord(f"{layout.DATA}/{name}", os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    # -- reading -----------------------------------------------------------------------------------

    def index(self, path: Path, manifest: Manifest) -> Index:
        """Read the sidecars. Independent."""
        found: dict[str, list[StoredEntry]] = defaultdict(list)
        for record in manifest.files:
            if sidecar.is_sidecar(record.path):
                text = _read_bounded(path, record)
                for entry in sidecar.decode(text, record, manifest, native.crc32c):
                    found[entry.item.spec.name].append(entry)
        return {name: tuple(entries) for name, entries in sorted(found.items())}

    def read(self, path: Path, manifest: Manifest, requests: Sequence[ReadRequest]) -> list[DamagedBlock]:
        """Let the plugin load whole blocks, and verify them. Independent."""
        damaged: list[DamagedBlock] = []
        is_partial = "partial" in self.instance.backend.features
        for batch in in_batches(plan_fetches(requests, manifest.block_bytes, is_partial=is_partial)):
            damaged += self._load(path, manifest, batch)
        is_proven = bool(self.config) or not all(sidecar.is_sidecar(record.path) for record in manifest.files)
        return damaged if is_proven else [replace(block, is_proven=False) for block in damaged]

    def _load(self, path: Path, manifest: Manifest, batch: Sequence[Fetch]) -> list[DamagedBlock]:
        """Load entries of one rank in one call; if the plugin says that some are damaged, one by one."""
        rank = batch[0].entry.rank
        directory = os.path.abspath(path / layout.DATA)
        context = plugins.PluginContext(directory, manifest.save_id, manifest.step, rank, manifest.n_ranks)
        memories = [fetch.memory() for fetch in batch]
        tensors = [_part(fetch, memory) for fetch, memory in zip(batch, memories, strict=True)]
        try:
            self.instance.load(context, tensors)  # step f
        except CorruptError as error:
            if len(batch) > 1:
                return [block for fetch in batch for block in self._load(path, manifest, [fetch])]
            return [self._damaged(batch[0], 0, batch[0].nbytes, f"{error}{self._hint}")]
        except BackendError as error:
            raise BackendError(f"{error}{self._hint}") from error
        damaged: list[DamagedBlock] = []
        for fetch, memory in zip(batch, memories, strict=True):
            damaged += self._verify(fetch, memory, manifest.block_bytes)  # step g
            fetch.deliver(memory)
        return damaged

    def _verify(self, fetch: Fetch, loaded: Bytes, block_bytes: int) -> list[DamagedBlock]:
        crcs = native.crc32c_blocks(loaded, block_bytes, self.threads)
        expected = fetch.entry.crcs[fetch.start // block_bytes :]
        reason = f"checksum mismatch in what {self.name} loaded, as listed"
        return [
            self._damaged(fetch, block * block_bytes, min(block_bytes, fetch.nbytes - block * block_bytes), reason)
            for block, (found, wanted) in enumerate(zip(crcs, expected, strict=False))
            if found != wanted
        ]

    def _damaged(self, fetch: Fetch, start: int, nbytes: int, reason: str) -> DamagedBlock:
        entry = fetch.entry
        return DamagedBlock(entry.item.spec.name, entry.file, fetch.start + start, nbytes, reason)


# -- what a plugin gets ----------------------------------------------------------------------------


def _part(fetch: Fetch, memory: Bytes) -> plugins.PluginTensor:
    item = fetch.entry.item
    return _tensor(item, memory, item.start + fetch.start // max(itemsize(item.spec.dtype), 1))


def _tensor(item: WriteItem, data: Bytes, first_element: int) -> plugins.PluginTensor:
    """Return elements of an item, whose bytes are `data`, as a plugin gets them."""
    is_own = item.spec.kind == "per-rank"  # then the shape of the whole is only rank 0's
    return plugins.PluginTensor(
        name=item.spec.name,
        dtype=item.spec.dtype,
        shape=item.extent.shape,
        address=data.__array_interface__["data"][0],
        nbytes=data.nbytes,
        global_shape=item.extent.shape if is_own else item.spec.shape,
        offset=item.extent.offset,
        first_element=first_element,
        n_elements=data.nbytes // max(itemsize(item.spec.dtype), 1),
        kind=item.spec.kind,
        owner=data,
    )


def _fingerprint(backend: plugins.LoadedBackend) -> tuple[str, int]:
    """Return what distinguishes one build of a plugin from another."""
    return backend.name, _crc_of(backend.origin)


@functools.lru_cache(maxsize=64)
def _crc_of(origin: str) -> int:
    """Return the checksum of a library as it was when it was first used, which is what is loaded."""
    return zlib.crc32(Path(origin).read_bytes())


# -- files -----------------------------------------------------------------------------------------

_Stamps = dict[str, tuple[int, int, int]]


def _stamps(directory: Path) -> _Stamps:
    """Return what shows whether a file has changed; other ranks create and rename theirs meanwhile."""
    found: _Stamps = {}
    for entry in os.scandir(directory):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        found[entry.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def _changed(before: _Stamps, after: _Stamps) -> list[str]:
    """Return the files that have changed meanwhile, but for the ranks' sidecars, sorted."""
    is_theirs = {name for name in after if not sidecar.is_sidecar(f"{layout.DATA}/{name}")}
    return sorted(name for name in is_theirs if before.get(name) != after[name])


def _sync(path: Path) -> None:
    """Sync a file that a plugin left; one that is gone was another rank's draft."""
    try:
        fd = files.open_file(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError:
        if path.is_symlink():
            return  # refused when the step is sealed
        raise
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            native.fsync(fd, str(path))
    finally:
        os.close(fd)


def _read_bounded(path: Path, record: FileRecord) -> bytes:
    if record.nbytes > sidecar.MAX_BYTES:
        raise CorruptError(f"{record.path}: {record.nbytes} bytes are more than it may have; use an older step")
    fd = open_regular(str(path / record.path))
    try:
        text = files.read_at(fd, record.nbytes, 0)
    finally:
        os.close(fd)
    if len(text) != record.nbytes:
        raise CorruptError(f"{record.path} has {len(text)} bytes instead of {record.nbytes}; use an older step")
    return text
