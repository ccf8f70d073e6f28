"""Where tensors go that leave: settings, checked, and what the tiers counted. Pure."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hpcckpt.errors import OptionError, Problem, list_problems

Tier = Literal["auto", "host", "file", "host-then-file"]
DIRECTORY = "HPCCKPT_LMS_DIR"
"""The environment variable that names a directory where nothing else does."""
SPARE = 64 << 20


@dataclass(frozen=True, slots=True)
class TierConfig:
    """How tensors are kept that leave.

    Parameters
    ----------
    tier : str
        ``host``: memory of the host, for devices with memory of their own (on the CPU it copies, and frees nothing: a
        control). ``file``: a file without a name in `directory`. ``host-then-file``: the host up to `host_limit`, then
        the file. ``auto``: ``host`` with a GPU, else ``file``.
    directory : str, optional
        On a disk of this node; ``HPCCKPT_LMS_DIR`` or the directory for temporary files if not given.
    window : int
        Bytes that may still be on their way out when a swap-out is done already. With 0 it is done when the tensor's
        memory is free: control edges of a plan then mean what they say.
    host_limit, file_limit : int
        Bytes in each tier at a time; 0: no limit.
    min_bytes : int
        Smaller tensors stay where they are.
    spare : int
        Bytes of memory that are kept when what came back is freed, for what comes back next: new memory costs the
        kernel more than reading into it costs the disk.
    rank : int, optional
        Named in errors.
    is_mapped : bool
        Allocate swapped-in tensors directly from the kernel, and return them directly back; else TensorFlow's
        allocator.
    is_named : bool
        Make the file by a name that is removed at once, even where ``O_TMPFILE`` would do.
    """

    tier: Tier = "auto"
    directory: str | os.PathLike[str] | None = None
    window: int = 0
    host_limit: int = 0
    file_limit: int = 0
    min_bytes: int = 1 << 16
    spare: int = SPARE
    rank: int | None = None
    is_mapped: bool = True
    is_named: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be, naming all of it."""
        problems = [
            Problem(name, f"{getattr(self, name)!r} – bytes, 0 or more")
            for name in ("window", "host_limit", "file_limit", "min_bytes", "spare")
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0
        ]
        if self.tier not in get_args(Tier):
            problems.insert(0, Problem("tier", f"{self.tier!r} – one of {', '.join(get_args(Tier))}"))
        if self.tier == "host-then-file" and self.host_limit == 0:
            problems.append(Problem("host_limit", "0 – how many bytes go to the host before the file takes the rest"))
        if problems:
            raise OptionError(list_problems(problems))

    @property
    def place(self) -> str:
        """The directory, whether it was given or not."""
        return os.fspath(self.directory or os.environ.get(DIRECTORY) or tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class Moved:
    """What one swap-out or swap-in did, over all its runs."""

    count: int
    nbytes: int
    n_hot: int
    """Swap-ins that found their tensor still here; swap-outs that kept theirs, being small."""
    wait_ns: int
    """From its start until it was done, in all."""


@dataclass(frozen=True, slots=True)
class FileTier:
    """The file: where it is, how it is used, how full it is and was."""

    directory: str
    notes: str
    """A note for the user; empty if there is none."""
    is_direct: bool
    used: int
    peak: int
    size: int
    """Its length: what is used, and what is free in it; what is free at its end goes back when swaps pause for 2 s."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What was counted since `reset_stats`; `live_handles` and the bytes without ``peak`` are of this moment."""

    live_handles: int = 0
    """Tensors that swap-outs hold; 0 between steps."""
    written_bytes: int = 0
    written_ns: int = 0
    read_bytes: int = 0
    read_ns: int = 0
    host_bytes: int = 0
    peak_host_bytes: int = 0
    in_flight_bytes: int = 0
    peak_in_flight_bytes: int = 0
    outs: Mapping[str, Moved] = field(default_factory=dict)
    ins: Mapping[str, Moved] = field(default_factory=dict)
    stall_by_op: Mapping[str, int] = field(default_factory=dict)
    """For each op that takes what came back: nanoseconds that it waited for it when all else was there."""
    file: FileTier | None = None

    @property
    def stall_ns(self) -> int:
        """Nanoseconds that ops waited for their swap-ins, in all."""
        return sum(self.stall_by_op.values())

    @property
    def n_hot(self) -> int:
        """Swap-ins whose tensor was still on its way out."""
        return sum(moved.n_hot for moved in self.ins.values())

    @property
    def bytes_out(self) -> int:
        """Bytes that left, or would have: without tensors that are too small."""
        return sum(moved.nbytes for moved in self.outs.values())

    @property
    def bytes_in(self) -> int:
        """Bytes that came back, or were still here."""
        return sum(moved.nbytes for moved in self.ins.values())

    @classmethod
    def from_json(cls, text: str) -> Stats:
        """Read the library's figures."""
        document: dict[str, Any] = json.loads(text)
        outs, ins, stalls, file = (document.pop(key) for key in ("outs", "ins", "stalls", "file"))
        return cls(
            **document,
            outs={name: Moved(*row) for name, row in outs.items()},
            ins={name: Moved(*row) for name, row in ins.items()},
            stall_by_op=stalls,
            file=FileTier(**file) if file else None,
        )
