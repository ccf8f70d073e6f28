"""Where a directory lies: the file system, from the kernel's table of mounts."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a directory lies."""

    point: str
    type: str
    source: str
    options: str


def mount_of(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> Mount | None:
    """Return where a path lies, from the kernel's table; ``None`` where there is none. Independent."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    found = [mount for mount in map(_parse_mount, lines) if mount and _is_below(real, mount.point)]
    # Of several at one point the last one hides the others: NFS is mounted over the automounter's own mount.
    return max(reversed(found), key=lambda mount: len(mount.point), default=None)


def counts_links(path: Path) -> bool:
    """Return True if a file's link count can be trusted there: not on NFS, FUSE or 9p. Independent."""
    mount = mount_of(path)
    return mount is not None and not mount.type.startswith(("nfs", "fuse", "9p"))


_LOCAL = ("bcachefs", "btrfs", "ext", "f2fs", "tmpfs", "xfs", "zfs")


def knows_readers(path: Path) -> bool:
    """Return True if the kernel of this machine sees every program that has a file there open. Independent.

    It does on local file systems. On others a reader may be on another machine; on overlayfs mappings are not seen.
    """
    mount = mount_of(path)
    return mount is not None and mount.type.startswith(_LOCAL)


_ONE_WRITER = ("btrfs", "ext", "nfs", "overlay", "tmpfs", "xfs")


@functools.lru_cache(maxsize=64)
def admits_writers(directory: Path) -> bool:
    """Return True if several threads write a file there faster than one does. Independent.

    Local file systems and NFS let one in at a time, whatever part of the file it writes, and the others burn a core
    each while they wait. Parallel file systems do not; of what is not known, the best is believed.
    """
    mount = mount_of(directory)
    return mount is None or not mount.type.startswith(_ONE_WRITER)


def _parse_mount(line: str) -> Mount | None:
    fields, _, rest = line.partition(" - ")
    parts, tail = fields.split(), rest.split()
    if len(parts) < 6 or len(tail) < 2:
        return None
    point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), parts[4])
    return Mount(point, tail[0], tail[1], parts[5])


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
