"""A run directory: the file system it lies on, space, the lock, what is left over and damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.core.command_lines import command_line
from hpcckpt.core.mounts import Mount, mount_of
from hpcckpt.core.units import nbytes_text
from hpcckpt.rundir import discovery, lock
from hpcckpt.rundir.leftovers import tree_nbytes
from hpcckpt.rundir.retention import leftovers
from hpcckpt.tools.doctor import file_system, quota, stripe
from hpcckpt.tools.doctor.finding import Finding, Level

_TYPES: dict[str, tuple[Level, str, str]] = {
    "tmpfs": ("warning", "memory: gone after a reboot or a crash of the node, and counted as the job's memory",
              "keep checkpoints on disk; use memory only as a fast first tier"),
    "ramfs": ("warning", "memory: gone after a reboot or a crash of the node", "keep checkpoints on disk"),
    "overlay": ("warning", "a container's own layer: gone with the container", "bind-mount a directory of the host"),
    "nfs": ("warning", "NFS: other nodes may see changes late, and link counts cannot be trusted",
            "use the parallel file system; or mount with actimeo=1, and let one node write"),
    "9p": ("warning", "9p: fsync may not reach a disk", "keep checkpoints on a local or parallel file system"),
    "cifs": ("warning", "a share of Windows: no hard links, and fsync is as good as the server",
             "use the parallel file system"),
    "smb": ("warning", "a share of Windows: no hard links, and fsync is as good as the server",
            "use the parallel file system"),
    "afs": ("warning", "AFS: written when a file is closed, and the job loses its ticket in the end",
            "use the parallel file system"),
    "fuse": ("warning", "FUSE: rename and fsync are as good as the program behind it", "prefer a kernel file system"),
}  # fmt: skip
_PARALLEL = {"lustre", "gpfs", "beegfs", "wekafs", "panfs", "ceph", "pvfs2", "daos", "dvs", "orangefs"}


def existing_part(directory: Path) -> Path:
    """Return the nearest directory that is seen to exist, upwards from here. Independent."""
    return next(path for path in (directory.absolute(), *directory.absolute().parents) if not _error_of(path))


def findings(directory: Path, *, is_quick: bool = False) -> Iterator[Finding]:
    """Yield what there is to say about a run directory, which need not exist yet. Independent.

    Parameters
    ----------
    directory : Path
        Where checkpoints are or would be written.
    is_quick : bool, optional
        Whether to leave out what other programs must be asked.
    """
    base = existing_part(directory)
    if not base.is_dir():
        yield Finding("directory", "problem", f"{base} is not a directory", "give the directory of a run")
        return
    if not os.access(base, os.X_OK):
        yield Finding("directory", "problem", f"{base} cannot be entered", "choose another one, or change its mode")
        return
    error = _error_of(directory)
    if error not in {0, errno.ENOENT}:
        message = f"{directory} cannot be used: {os.strerror(error)}"
        yield Finding("directory", "problem", message, "give another name, or see what it leads to")
        return
    yield _directory(directory, base)
    mount = mount_of(base)
    if mount:
        yield _file_system(mount)
    if os.access(base, os.W_OK | os.X_OK):
        yield from file_system.findings(base)
    if mount and not is_quick:
        yield from stripe.findings(base, mount)
        yield from quota.findings(mount)
    yield from _space(directory, base)
    if directory.is_dir():
        yield _lock(directory)
        yield from _contents(directory)


def _error_of(path: Path) -> int:
    """Return the error of looking at a path; 0 if something is there. Independent."""
    try:
        path.stat()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _directory(directory: Path, base: Path) -> Finding:
    if not os.access(base, os.W_OK | os.X_OK):
        return Finding("directory", "problem", f"{base} cannot be written", "choose another one, or change its mode")
    if not directory.exists():
        return Finding("directory", "note", f"{directory} does not exist; it would be made at the first save")
    return Finding("directory", "ok", f"{directory} can be written")


def _file_system(mount: Mount) -> Finding:
    where = f"{mount.type} ({mount.source} on {mount.point})"
    family = next((name for name in _TYPES if mount.type.startswith(name)), None)
    if family is not None and mount.type not in _PARALLEL:
        level, danger, remedy = _TYPES[family]
        return Finding("file system", level, f"{where}: {danger}", remedy)
    if "ro" in mount.options.split(","):
        return Finding("file system", "problem", f"{where}, mounted read-only", "choose another file system")
    return Finding("file system", "ok", f"{where}{', parallel' if mount.type in _PARALLEL else ''}")


def _space(directory: Path, base: Path) -> Iterator[Finding]:
    try:
        held = os.statvfs(base)
    except OSError as error:
        yield Finding("space", "note", f"free space is unknown (statvfs: {error.strerror}); saves do not check it")
        return
    free, total = held.f_bavail * held.f_frsize, held.f_blocks * held.f_frsize
    newest = discovery.newest_restorable(directory) if directory.is_dir() else None
    wanted = newest.manifest.nbytes if newest and newest.manifest else 0
    message, gist = f"{_gib(free)} of {_gib(total)} free", str(total)
    if free <= wanted or free == 0:
        remedy = "free space: hpcckpt prune --keep-last N"
        yield Finding(
            "space", "problem", f"{message}, a checkpoint takes {_gib(wanted)}: the next save would fail", remedy, gist
        )
    elif free < 3 * wanted:
        yield Finding(
            "space", "warning", f"{message}, enough for {free // wanted} more checkpoints", "free some space soon", gist
        )
    else:
        yield Finding("space", "ok", message, gist=gist)
    if held.f_files and held.f_favail < 1000:
        yield Finding(
            "space", "problem", f"only {held.f_favail} more files can be made", "remove files; ask for more inodes"
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _lock(directory: Path) -> Finding:
    found = lock.describe(directory)
    if found is None:
        return Finding("lock", "ok", "free")
    holder, is_dead = found
    if is_dead:
        return Finding("lock", "note", f"left by {holder}, which is dead; the next job takes it over")
    return Finding(
        "lock", "note", f"held by {holder}: another job that saves here is refused", "wait for it, or stop it"
    )


def _contents(directory: Path) -> Iterator[Finding]:
    steps = discovery.scan(directory)
    damaged = [info.step for info in steps if not info.is_restorable]
    whole = [info.step for info in steps if info.is_restorable]
    if not steps:
        yield Finding("checkpoints", "note", "none yet")
    elif not whole:
        yield Finding(
            "checkpoints", "problem", f"none of {len(steps)} can be restored", command_line("list", directory)
        )
    elif damaged:
        message = f"step {', '.join(map(str, damaged))} cannot be restored; a restart would use step {whole[-1]}"
        yield Finding("checkpoints", "warning", message, command_line("verify", "--all", directory))
    else:
        yield Finding("checkpoints", "ok", f"{len(whole)}, the newest is step {whole[-1]}")
    left = leftovers(directory)
    if left and lock.describe(directory) is None:
        nbytes = sum(tree_nbytes(directory / name) for name in left)
        directories = "1 directory" if len(left) == 1 else f"{len(left)} directories"
        message = f"{directories} left by killed jobs, {nbytes_text(nbytes)}"
        yield Finding("left over", "warning", message, command_line("prune", directory))
