"""Whether all ranks see the same directory: what rank 0 writes there must appear to everybody."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcckpt.collective.communicator import Communicator
from hpcckpt.tools.doctor.all_ranks import ranks_text
from hpcckpt.tools.doctor.file_system import PREFIX
from hpcckpt.tools.doctor.finding import Finding

PATIENCE_S = 5.0
_POLL_S = 0.05


def findings(comm: Communicator, directory: Path) -> Iterator[Finding]:
    """Yield on root whether every rank sees what root writes in an existing directory. Collective."""
    name = comm.bcast(_write(directory) if comm.is_root else None)
    try:
        seen = comm.gather(not name or _appears(directory / name))
    finally:
        if comm.is_root and name:
            with suppress(OSError):
                (directory / name).unlink()
    if not name or seen is None:
        return  # that it cannot be written is said elsewhere
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if blind:
        message = f"rank {ranks_text(blind)} does not see in {PATIENCE_S:.0f} s what rank 0 writes in {directory}"
        remedy = "choose a directory that all nodes share; a node-local one is for scratch only"
        yield Finding("shared", "problem", message, remedy)
    else:
        yield Finding("shared", "ok", f"all {comm.size} ranks see what rank 0 writes")


def _write(directory: Path) -> str:
    name = f"{PREFIX}{secrets.token_hex(8)}"
    try:
        (directory / name).touch(mode=0o600, exist_ok=False)
    except OSError:
        return ""
    return name


def _appears(path: Path) -> bool:
    """Wait for a file: network file systems show what others make after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(path):  # which takes what may not be looked at for absent, and never raises
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
