"""Options of the backend ``hdf5``, checked all at once, and what ``driver="auto"`` makes of a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from hpcckpt.core.mounts import mount_of
from hpcckpt.errors import OptionError, Problem, list_problems

DRIVERS = ("direct", "mpio", "per-rank", "auto")
PAGE_BYTES = 4096
STRIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 64 << 20
_STRIPED = ("lustre", "gpfs", "beegfs")
_COHERENT = ("ext", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", "ramfs", *_STRIPED, "cxfs", "ocfs2", "gfs2")


@dataclass(frozen=True, slots=True)
class Hdf5Options:
    """What users may give as ``backend_options``.

    Parameters
    ----------
    driver : {"direct", "mpio", "per-rank", "auto"}
        How the bytes get into the file, see FORMAT.md.
    alignment : int, optional
        Tensors of at least this many bytes begin at a multiple of it; by default the stripe size if it is given, a MiB
        on Lustre, GPFS and BeeGFS, else 4096.
    stripe_count, stripe_size : int, optional
        Lustre: over how many targets a new file is spread (-1: all), and in parts of how many bytes. By default the
        file system decides.
    collective : bool
        mpio: whether ranks write their data together.
    chunks : int, optional
        mpio: store tensors in chunks of about this many bytes.
    compression : {"gzip"}, optional
        mpio: pack the chunks, with the shuffle filter before.
    compression_level : int
        mpio: 1 (fast) to 9.
    check : bool
        mpio: whether each rank reads back what it wrote, as MPI libraries may lose errors of collective writes.
    """

    driver: str = "direct"
    alignment: int | None = None
    stripe_count: int | None = None
    stripe_size: int | None = None
    collective: bool = True
    chunks: int | None = None
    compression: str | None = None
    compression_level: int = 4
    check: bool = True

    @property
    def chunk_bytes(self) -> int | None:
        """Bytes of a chunk; ``None`` if tensors are in one piece."""
        return self.chunks or (CHUNK_BYTES if self.compression else None)

    def alignment_at(self, directory: Path | None) -> int:
        """Return where tensors begin in a file in a directory. Independent."""
        if self.alignment is not None:
            return self.alignment
        if self.stripe_size is not None:
            return self.stripe_size
        return STRIPE_BYTES if _type_of(directory).startswith(_STRIPED) else PAGE_BYTES


def parse(given: Mapping[str, Any]) -> Hdf5Options:
    """Return the options that a user gave.

    Raises
    ------
    OptionError
        Naming everything that is wrong with them.
    """
    known = {field.name for field in fields(Hdf5Options)}
    unknown = [Problem(name, f"is not one of {', '.join(sorted(known))}") for name in given if name not in known]
    options = Hdf5Options(**{name: value for name, value in given.items() if name in known})
    problems = [*unknown, *_problems(options)]
    if problems:
        named = [problem._replace(loc=f"backend_options.{problem.loc}") for problem in problems]
        raise OptionError(list_problems(named))
    return options


def _problems(options: Hdf5Options) -> list[Problem]:
    is_mpio = options.driver == "mpio"
    is_chunked = options.chunks is not None or options.compression is not None
    rules = [
        ("driver", options.driver in DRIVERS, f"{options.driver!r} is not one of {', '.join(DRIVERS)}"),
        ("alignment", _is_count(options.alignment, 1, 1 << 30), "must be 1 to 2**30 bytes, or None"),
        ("stripe_count", _is_count(options.stripe_count, -1, 1 << 16), "must be a number of targets, -1 for all"),
        (
            "stripe_size",
            _is_count(options.stripe_size, 1 << 16, 1 << 32) and not (options.stripe_size or 0) % (1 << 16),
            "must be a multiple of 64 KiB, or None",
        ),
        ("collective", type(options.collective) is bool, "must be True or False"),
        ("check", type(options.check) is bool, "must be True or False"),
        ("chunks", _is_count(options.chunks, 1, MAX_CHUNK_BYTES), "must be 1 to 2**26 bytes, or None"),
        ("compression", options.compression in (None, "gzip"), f"{options.compression!r} is not 'gzip' or None"),
        (
            "compression_level",
            type(options.compression_level) is int and _is_count(options.compression_level, 1, 9),
            "must be 1 to 9",
        ),
        ("chunks", is_mpio or options.chunks is None, "needs driver='mpio'"),
        ("compression", is_mpio or options.compression is None, "needs driver='mpio'"),
        ("collective", options.collective is not False or not is_chunked, "must be True with chunks: HDF5 wants it"),
    ]
    return [Problem(name, message) for name, is_met, message in rules if not is_met]


def _is_count(value: Any, low: int, high: int) -> bool:
    return value is None or (type(value) is int and low <= value <= high)


# -- where files go --------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A driver, and why it was chosen."""

    driver: str
    reason: str


def choose(directory: Path | None, n_ranks: int) -> Choice:
    """Return the driver for a directory and a number of ranks. Independent."""
    kind = _type_of(directory)
    if n_ranks == 1:
        return Choice("direct", "there is one rank")
    if kind.startswith(_COHERENT):
        return Choice("direct", f"{kind} lets ranks write one file together")
    return Choice("per-rank", f"{kind or 'a file system that is not known'} may not keep apart what ranks write")


def _type_of(directory: Path | None) -> str:
    mount = mount_of(directory) if directory is not None else None
    return mount.type if mount is not None else ""
