"""How much memory there is: an accelerator's, or what this process may still take of the host's."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt.core.units import nbytes_text, nbytes_text_up
from hpcckpt.errors import MemoryBudgetError

RATIO_VARIABLE = "TF_LMS_SIMULATOR_MEM_RATIO"
HOST_VARIABLE = "TF_GPU_HOST_MEM_LIMIT_IN_MB"
_HOST_DEFAULT_MB = 65536
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes, and whose they are."""

    nbytes: int
    source: str
    is_device: bool = False


def memory_ratio() -> float:
    """Return the part of the memory a simulation counts on: ``TF_LMS_SIMULATOR_MEM_RATIO``, 0.9, or 0.8 with DDL."""
    return float(os.environ.get(RATIO_VARIABLE) or (0.8 if "DDL_OPTIONS" in os.environ else 0.9))


def host_limit() -> int:
    """Return the host memory that tensors on their way may take, ``TF_GPU_HOST_MEM_LIMIT_IN_MB``, in bytes."""
    return int(os.environ.get(HOST_VARIABLE) or _HOST_DEFAULT_MB) << 20


def gpus() -> list[Any]:
    """Return the GPUs that TensorFlow sees."""
    import tensorflow as tf

    found: list[Any] = tf.config.list_physical_devices("GPU")
    return found


def uses_onednn() -> bool:
    """Return whether TensorFlow computes with oneDNN on the CPU; False if this TensorFlow does not tell."""
    try:
        from tensorflow.python.util import _pywrap_util_port
    except ImportError:
        return False
    return bool(_pywrap_util_port.IsMklEnabled())


def device_limit(gpu_device: str | None = None) -> Limit | None:
    """Return the memory of the GPU that is used; `None` where there is none. Starts the GPU."""
    if not gpus():
        return None
    from tensorflow.python.client import device_lib

    wanted = re.sub(r".*(\d+)$", r"\1", gpu_device or "0")
    for each in device_lib.list_local_devices():
        if each.device_type == "GPU" and each.name.endswith(f":{wanted}"):
            return Limit(int(each.memory_limit), each.name, is_device=True)
    return None


def free_host_memory() -> Limit:
    """Return what this process may still take of the host's memory."""
    found = [Limit(_kibibytes(Path("/proc/meminfo"), "MemAvailable"), "MemAvailable")]
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        found.append(Limit(max(0, soft - _kibibytes(Path("/proc/self/status"), "VmData")), "RLIMIT_DATA"))
    found += [limit for files in _CGROUPS if (limit := _cgroup(*files))]
    return min(found, key=lambda limit: limit.nbytes)


def _cgroup(limit: str, usage: str) -> Limit | None:
    try:
        most, now = Path(limit).read_text(encoding="utf-8").strip(), Path(usage).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return Limit(max(0, int(most) - int(now)), "cgroup") if most.isdigit() else None


def _kibibytes(path: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return int(match[1]) << 10 if match else 0


# -- memory beside the tensors --------------------------------------------------------------------


FIXED = 12 << 20
SHARE = 0.16


def tensor_bytes(budget: int) -> int:
    """Return what the tensors of a step may take within a budget; not above 0 if the budget is too small for any."""
    return int((budget - FIXED) / (1 + SHARE))


def refused(budget: int, nearest: int, n_in_loops: int = 0) -> MemoryBudgetError:
    """Return the error that names the nearest budget, rounded up, so that it can be given as it is written."""
    loops = f" ({n_in_loops} operations are inside while loops, which are not swapped)" if n_in_loops else ""
    error = MemoryBudgetError(
        f"memory_budget: {nbytes_text(budget)} cannot be kept by this graph, whatever is swapped{loops}; the nearest "
        f"budget that can be kept is {nbytes_text_up(nearest)}: give that, or use a smaller batch"
    )
    error.nearest = nearest
    return error


def budget_for(nbytes: int) -> int:
    """Return the least budget within which tensors may take this much."""
    budget = FIXED + int(nbytes * (1 + SHARE))
    while tensor_bytes(budget) < nbytes:
        budget += 1
    return budget
