"""What a training ran on, for the run directory: versions, ranks, hosts, the program's commit, the command.

No environment variable is recorded: some may hold secrets.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections import Counter
from typing import Any

from hpcckpt._version import __version__
from hpcckpt.train.loop.distribution import Team
from hpcckpt.train.run.resume_point import ATTEMPT, REQUEST
from hpcckpt.train.run.run_directory import now

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "horovod", "mpi4py", "h5py", "tensorboard", "hjson")
_SUBMITTED = {"request": REQUEST, "attempt": ATTEMPT}
_GIT_S = 5.0


def job_facts(team: Team, resume: str) -> dict[str, Any]:
    """Return what there is to know of this job. Collective."""
    hosts = team.comm.gather(platform.node()) or []
    return {
        "began": now(),
        "command": shlex.join([sys.executable, *sys.argv]),
        "directory": os.getcwd(),
        "resume": resume,
        **{key: os.environ[name] for key, name in _SUBMITTED.items() if os.environ.get(name)},
        "ranks": team.size,
        "hosts": dict(Counter(hosts)),
        "distributed": team.kind,
        "hpcckpt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions(),
        "devices": _devices() if team.is_root else [],
        **({"mpi": _mpi_library()} if team.kind == "mpi4py" else {}),
        **(_commit() if team.is_root else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that a training may depend on. Independent."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _devices() -> list[str]:
    import tensorflow as tf

    return [device.device_type for device in tf.config.list_physical_devices()]


def _mpi_library() -> str:
    from hpcckpt.collective.mpi import MPI  # type: ignore[attr-defined]  # mpi4py has one door

    return str(MPI.Get_library_version()).split(",")[0].strip("\0 \n")


def _commit() -> dict[str, Any]:
    """Return the commit of the program's working tree, and whether files differ from it; nothing outside of git."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return {}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"git": {"commit": commit, "is_changed": None if changes is None else bool(changes)}}


def _git(*words: str) -> str | None:
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
