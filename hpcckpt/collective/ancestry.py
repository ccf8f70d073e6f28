"""What the ancestors of this process tell: slurmstepd, which starts tasks and batch scripts, is titled by its step."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

_TITLE = re.compile(rb"slurmstepd: \[(\d{1,20})\.(\w{1,20})\]")
_MAX_DEPTH = 64


def slurm_step() -> str:
    """Return the step of Slurm that this process is of, ``7.0`` or ``7.batch``; "" where none is seen. Independent."""
    return _step_above(os.getpid())


@functools.lru_cache(maxsize=2)
def _step_above(pid: int, processes: Path = Path("/proc")) -> str:
    for _ in range(_MAX_DEPTH):
        try:
            found = _TITLE.match((processes / str(pid) / "cmdline").read_bytes())
            stat = (processes / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        if found:
            return f"{found[1].decode()}.{found[2].decode()}"
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid <= 0:
            return ""
    return ""
