"""Open a run: choose the same backend on every rank, and put scratch before its directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Real
from pathlib import Path
from typing import Any

from hpcckpt.backends.base import Backend
from hpcckpt.backends.registry import BackendInfo, find_backend, load_class
from hpcckpt.checkpointer.session import Session
from hpcckpt.collective.background import DRAIN_NICE
from hpcckpt.collective.communicator import Communicator, usable_cores
from hpcckpt.collective.deadlines import Patience
from hpcckpt.core.options import Options
from hpcckpt.core.system import OperatingSystem
from hpcckpt.errors import BackendConflictError, OptionError, Problem, list_problems
from hpcckpt.native.arena import ArenaPool
from hpcckpt.native.posix_files import REAL
from hpcckpt.restoring.restore import RestoreSource
from hpcckpt.rundir.run_directory import NodeMap, RunDirectory
from hpcckpt.saving.save_queue import SaveQueue
from hpcckpt.tiers import ScratchTier, find_scratch


def open_session(
    comm: Communicator,
    directory: Path,
    options: Options,
    backend_options: Mapping[str, Any],
    system: OperatingSystem = REAL,
) -> Session:
    """Return a session of a run directory, or of one on scratch whose steps are drained to it. Collective.

    Raises
    ------
    OptionError
        If the backend does not know one of its options, or ranks do not see the same scratch directory.
    UnsafeDirectoryError
        If our directory on scratch is owned or can be written by others.
    BackendNotFoundError, BackendConflictError, BackendError
        If the backend is unknown, ambiguous, differs between ranks, or cannot be loaded.
    """
    info = _agreed_backend(comm, options.backend, has_scratch=options.scratch is not None)
    backend = comm.agree("checkpointer: load backend", lambda: make_backend(info, comm, options, backend_options))
    if options.scratch is None:
        return _session(comm, RunDirectory(directory, comm.rank, NodeMap(comm.size), backend, options, system))
    path, nodes = find_scratch(comm, directory, Path(os.path.abspath(options.scratch)), system.files)
    on_scratch = options.on_scratch()
    if not nodes.is_shared:
        _check_files_apart(backend)
        on_scratch = replace(on_scratch, recycle=False)
    rundir = RunDirectory(path, comm.rank, nodes, backend, on_scratch, system)
    return _session(comm, rundir, ScratchTier(comm, rundir, directory, options))


def patience_of(peer_timeout_s: Any) -> Patience:
    """Return how long ranks wait; an invalid number is refused later, on all ranks together. Pure."""
    is_valid = isinstance(peer_timeout_s, Real) and float(peer_timeout_s) > 0
    return Patience().within(float(peer_timeout_s)) if is_valid else Patience()


MAY_DIFFER = frozenset({"threads", "scratch"})
"""Options that each rank may choose for itself."""
_NOT_OPTIONS = frozenset({"comm", "nice", "self", "threads"})
"""Arguments of a backend that a user does not give."""


def check_equal(comm: Communicator, directory: Path, options: Options, backend_options: Mapping[str, Any]) -> None:
    """Refuse, on all ranks, a directory or options that differ between ranks. Collective.

    Raises
    ------
    OptionError
        Naming each difference from rank 0, and the ranks.
    """
    own = {"directory": os.fspath(directory)}
    own |= {f"options.{f.name}": repr(getattr(options, f.name)) for f in fields(options) if f.name not in MAY_DIFFER}
    own |= {f"backend_options[{name!r}]": repr(value) for name, value in backend_options.items()}
    of_root = comm.bcast(own)

    def compare() -> None:
        differing = [name for name in {**of_root, **own} if of_root.get(name) != own.get(name)]
        if differing:
            problems = [
                Problem(name, f"is {own.get(name, 'not given')} here and {of_root.get(name, 'not given')} on rank 0")
                for name in differing
            ]
            raise OptionError(f"{list_problems(problems)}; give the same on all ranks")

    comm.agree("checkpointer: compare options", compare)


def _check_files_apart(backend: Backend) -> None:
    """Refuse, on all ranks, a backend whose ranks write to the same files. Pure.

    Raises
    ------
    OptionError
        Naming what will do.
    """
    if "own-files" not in backend.features:
        raise OptionError(
            f"options.scratch: ranks see different scratch directories, and backend {backend.name!r} as asked for may "
            "have them write into one: use one with the feature own-files (rankfile, or hdf5 with driver='per-rank'), "
            "or give one scratch directory that all ranks see, or none"
        )


def _session(comm: Communicator, rundir: RunDirectory, tiers: ScratchTier | None = None) -> Session:
    """Return a session with its own memory for snapshots. Independent."""
    options = rundir.options
    queue = SaveQueue(comm, rundir, ArenaPool(rundir.backend.threads, options.max_bytes_in_flight))
    queue.drains = tiers
    return Session(comm, rundir, queue, RestoreSource(comm, rundir, tiers), tiers)


def make_backend(info: BackendInfo, comm: Communicator, options: Options, own: Mapping[str, Any]) -> Backend:
    """Return a new backend with options that the user gave, `own`; nothing is written. Independent.

    Raises
    ------
    OptionError
        If it does not know one of its options, or cannot do what is asked of it.
    """
    message = f"backend {info.name!r} has no such option"
    taken = [Problem(f"backend_options.{name}", message) for name in own if name in _NOT_OPTIONS]
    if taken:
        raise OptionError(list_problems(taken))
    nice = DRAIN_NICE if options.async_save else 0
    made = load_class(info)(threads=options.threads or usable_cores(), nice=nice, comm=comm, **own)
    made.is_recycling_forced = options.recycle == "always"
    if options.incremental and "incremental" not in made.features:
        raise OptionError(f"options.incremental: backend {info.name!r} cannot link what did not change; turn it off")
    return made


def _agreed_backend(comm: Communicator, name: str, *, has_scratch: bool) -> BackendInfo:
    """Let root choose the backend, and check that every rank has the same one, and scratch as root. Collective."""
    chosen, root_has = comm.on_root("checkpointer: choose backend", lambda: (find_backend(name), has_scratch))

    def compare() -> None:
        if has_scratch != root_has:
            raise OptionError(
                f"options.scratch: rank 0 has {'a' if root_has else 'no'} scratch directory, and this rank has "
                f"{'one' if has_scratch else 'none'}; give one on every rank, or none"
            )
        own = find_backend(chosen.name)
        if own != chosen:
            raise BackendConflictError(
                f"backend {chosen.name!r} is {chosen.target} of {chosen.origin} {chosen.version} on rank 0 and "
                f"{own.target} of {own.origin} {own.version} here; install the same packages on every node"
            )

    comm.agree("checkpointer: compare backend", compare)
    return chosen
