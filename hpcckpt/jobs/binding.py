"""``python -m hpcckpt.jobs.binding COMMAND``: bind this rank to one GPU, then execute COMMAND.

It goes between a launcher and its command: the devices that a process sees must be set in its environment before MPI
and the framework are imported, which read it at once.  A rank that sees one device or none, because the
scheduler has bound it already, is left as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from hpcckpt.core.std_streams import write_message

LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
)  # fmt: skip
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
CHOICE = "HPCCKPT_GPUS"
"""The devices of a node in the order in which ranks take them: ``3,2,1,0``, ``0.0,0.1,1.0,1.1``."""


def bound(environ: Mapping[str, str], n_nvidia: int) -> dict[str, str]:
    """Return the variable that makes a rank see only its own device. Pure.

    The result is {} if there is nothing to set. The devices that the user names in `CHOICE` order the visible devices,
    but add none to them.

    Parameters
    ----------
    environ : mapping
        The environment of the rank.
    n_nvidia : int
        Number of NVIDIA devices on the node; they are used if no variable names devices.
    """
    rank = _local_rank(environ)
    variable = next((name for name in VISIBLE if environ.get(name)), VISIBLE[0])
    devices, wanted = _split(environ.get(variable, "")), _split(environ.get(CHOICE, ""))
    if len(devices) > 1:
        chosen = [each for each in wanted if _is_among(each, devices)]
        devices = chosen if len(chosen) > 1 else devices  # an order of other devices says nothing about these
    elif variable not in environ:
        devices = wanted or [str(number) for number in range(n_nvidia)]
    if rank is None or len(devices) < 2:
        return {}
    return {variable: devices[rank % len(devices)]}


def _is_among(device: str, visible: Sequence[str]) -> bool:
    """Return True if a device, or the device that it is a tile of, is visible. Pure."""
    return device in visible or device.partition(".")[0] in visible


def _local_rank(environ: Mapping[str, str]) -> int | None:
    found = (environ.get(name, "") for name in LOCAL_RANKS)
    return next((int(value) for value in found if value.isdecimal()), None)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def count_nvidia(names: Iterable[str]) -> int:
    """Count the NVIDIA devices among the names in ``/dev``. Pure."""
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)


def main(words: Sequence[str]) -> int:
    """Execute a command that sees only its own device. Independent.

    The command replaces this process; an exit code is returned only if that fails.
    """
    if not words:
        write_message("hpcckpt: error: which command? LAUNCHER... python -m hpcckpt.jobs.binding COMMAND...")
        return 2
    os.environ.update(bound(os.environ, count_nvidia(os.listdir("/dev"))))
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        write_message(f"hpcckpt: error: {words[0]!r} cannot be started: {error.strerror}")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
