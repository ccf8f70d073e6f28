"""Whether the ranks of a step catch a signal yet: a rank that does not is killed by it, and has not saved.

The kernel reports for each process which signals it catches.  Ranks are found by a mark in the environment of the step,
and by the rank that their launcher gave them; those on other nodes are not visible, and assumed
to be in the same state.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Literal

from hpcckpt.jobs.launchers import LAUNCHERS
from hpcckpt.preemption.signals import SUPERVISED

MARK = SUPERVISED
"""The variable that marks the processes of one step."""
_RANKS = (b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK", b"PALS_RANKID", b"SLURM_PROCID")
Ranks = Literal["ready", "not ready", "unseen"]
_RESERVED = 0xFFFFFF00
"""From here on numbers of steps are Slurm's own: of batch scripts, interactive shells, daemons."""
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


def check_ranks(mark: str, launcher: str, number: int) -> Ranks:
    """Return whether the ranks of a step catch a signal: all on this node, not all, or none is seen. Independent.

    Parameters
    ----------
    mark : str
        The value of `MARK` in the step's environment.
    launcher : str
        The name of the program that starts the ranks; if it is a known launcher, "unseen" can be returned.
    number : int
        The signal.
    """
    found: dict[bytes, bool] = {}
    for pid, variables in _processes(mark):
        rank = _rank(variables)
        found[rank] = found.get(rank, False) or catches(pid, number)
    ranks = [catches for rank, catches in found.items() if rank]
    if not ranks and launcher in LAUNCHERS:
        return "unseen"
    return "ready" if all(ranks or found.values()) else "not ready"


def catching(mark: str, number: int) -> list[int]:
    """Return the processes of a step that catch a signal: its ranks, if there are any among them. Independent."""
    found = [(pid, _rank(variables)) for pid, variables in _processes(mark) if catches(pid, number)]
    return [pid for pid, rank in found if rank] or [pid for pid, _ in found]


def slurm_step(mark: str) -> str:
    """Return Slurm's number of the step that the ranks on this node belong to; "" if none is seen. Independent."""
    numbers = {variables.get(b"SLURM_STEP_ID", b"").decode("ascii", "replace") for _, variables in _processes(mark)}
    known = [number for number in numbers if number.isdecimal() and int(number) < _RESERVED]
    return known[0] if len(known) == 1 else ""


def _processes(mark: str) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Yield the processes of a step, and the environment of each."""
    wanted = f"{MARK}={mark}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue  # another user's, or ended meanwhile
        if wanted in variables:
            yield int(name), dict(each.partition(b"=")[::2] for each in variables)


def _rank(variables: dict[bytes, bytes]) -> bytes:
    """Return the rank that a launcher gave, or b""; Slurm gives number 0 to the batch script too. Pure."""
    is_in_step = b"SLURM_STEP_ID" in variables
    return next((variables[name] for name in _RANKS if name in variables and (name != _RANKS[-1] or is_in_step)), b"")


def catches(pid: int, number: int) -> bool:
    """Return True if a process catches a signal. Independent."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = _CAUGHT.search(file.read())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
