"""Which directory of this node is fast, large and its own: where a first tier of checkpoints may lie.

The first of ``$HPCCKPT_SCRATCH``, ``$TMPDIR``, ``$SNIC_TMP``, ``/local/scratch``, ``/mnt/bb/$USER`` and ``/tmp`` that
can be written, is not memory, is not shared with other nodes, is sticky if all users may write there, and has space.
What the user names in ``HPCCKPT_SCRATCH`` may be shared: a burst buffer looks like that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hpcckpt.core.mounts import Mount, mount_of
from hpcckpt.core.units import nbytes_text
from hpcckpt.tools.doctor.finding import Finding

OWN = "HPCCKPT_SCRATCH"
LEAST_FREE = 256 << 20
_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_SHARED = (
    "nfs", "lustre", "gpfs", "beegfs", "wekafs", "panfs", "ceph", "pvfs2", "orangefs", "daos", "dvs", "cifs", "smb",
    "afs", "glusterfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
)  # fmt: skip


class Rejected(NamedTuple):
    """A directory that is not used, where it was named, and why."""

    path: Path
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScratchChoice:
    """What was found.

    Attributes
    ----------
    chosen : Path or None
        The directory; ``None`` if none will do.
    source : str
        Where it is named: a variable, or the directory itself; "" if none will do.
    rejected : tuple of Rejected
        What was named before it and will not do, with the reasons.
    """

    chosen: Path | None
    source: str = ""
    rejected: tuple[Rejected, ...] = ()


def candidates(environ: Mapping[str, str] = os.environ) -> Iterator[tuple[Path, str]]:
    """Yield directories that may be scratch, the best first, and where each is named. Pure."""
    for name in (OWN, "TMPDIR", "SNIC_TMP"):
        if environ.get(name):
            yield Path(environ[name]), f"${name}"
    yield Path("/local/scratch"), "/local/scratch"
    if environ.get("USER"):
        yield Path("/mnt/bb") / environ["USER"], "/mnt/bb/$USER"
    yield Path("/tmp"), "/tmp"


def find_scratch(environ: Mapping[str, str] = os.environ, needed_nbytes: int = 0) -> ScratchChoice:
    """Choose this node's scratch directory. Independent.

    Parameters
    ----------
    environ : mapping, optional
        The environment.
    needed_nbytes : int, optional
        How much must fit; at least a quarter of a GiB must be free anyhow.
    """
    rejected: list[Rejected] = []
    for path, source in candidates(environ):
        reason = _why_not(path, source, max(needed_nbytes, LEAST_FREE))
        if not reason:
            return ScratchChoice(path, source, tuple(rejected))
        if source.startswith("$") or path.exists():  # not every site has every directory
            rejected.append(Rejected(path, source, reason))
    return ScratchChoice(None, "", tuple(rejected))


def findings(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield which directory is this node's scratch, and what was passed over. Independent."""
    choice = find_scratch(environ)
    passed = "; ".join(f"{each.source} ({each.path}): {each.reason}" for each in choice.rejected)
    own = next((each for each in choice.rejected if each.source == f"${OWN}"), None)
    if choice.chosen is None:
        remedy = f"name a directory on a disk of the node in {OWN}; without one, saves go to the run directory alone"
        yield Finding("scratch", "note", f"no node-local scratch{f': {passed}' if passed else ''}", remedy)
        return
    free, total = free_space(choice.chosen)
    where = choice.source if choice.source == str(choice.chosen) else f"{choice.source}={choice.chosen}"
    free_text = "unknown space" if free is None else nbytes_text(free)
    message = f"{where}, {free_text} free{f'; passed over {passed}' if passed else ''}"
    gist = f"{choice.source} {total} {len(choice.rejected)}"
    if own is not None:
        yield Finding("scratch", "warning", message, f"correct {OWN}, or unset it", gist)
    else:
        yield Finding("scratch", "ok", message, gist=gist)


def free_space(path: Path) -> tuple[int | None, int]:
    """Return how many bytes are free, ``None`` where the file system does not say, and how many there are in all."""
    try:
        held = os.statvfs(path)
    except OSError:
        return None, 0
    return held.f_bavail * held.f_frsize, held.f_blocks * held.f_frsize


def _why_not(path: Path, source: str, needed_nbytes: int) -> str:
    if not path.is_absolute():
        return "not an absolute path"
    if not path.is_dir():
        return "no such directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "cannot be written"
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "all users can write there, and it is not sticky"
    reason = why_not_local(mount_of(path), is_wanted=source == f"${OWN}")
    if reason:
        return reason
    free, _ = free_space(path)
    return (
        ""
        if free is None or free >= needed_nbytes
        else f"{nbytes_text(free)} free, {nbytes_text(needed_nbytes)} needed"
    )


def why_not_local(mount: Mount | None, *, is_wanted: bool = False) -> str:
    """Say why a file system is no node-local disk; "" if it is one. Pure.

    Parameters
    ----------
    mount : Mount or None
        Where the directory lies; of what is not known the best is believed.
    is_wanted : bool, optional
        Whether the user named the directory for this use: then it may be shared.
    """
    if mount is None:
        return ""
    if mount.type in _MEMORY:
        return f"{mount.type}: that is memory of the job"
    if "ro" in mount.options.split(","):
        return "mounted read-only"
    return f"{mount.type}: shared with other nodes" if mount.type.startswith(_SHARED) and not is_wanted else ""
