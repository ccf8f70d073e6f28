"""What a figure means nothing without: the processor, the file system, the versions."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

CPU_FLAGS = ["sse4_2", "pclmulqdq", "avx2", "vpclmulqdq", "avx512f", "avx512bw", "crc32", "pmull", "sve"]
"""What the native part and other libraries choose their loops by, on x86-64 and AArch64."""
LIBRARIES = ["numpy", "mpi4py", "h5py", "safetensors", "tensorflow", "keras", "torch", "jax", "orbax.checkpoint"]
"""A table names the versions of those that its program has imported."""


def cpu() -> str:
    """Return the processor's name, and those of `CPU_FLAGS` that it has."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    found = set(flags[1].split()) if flags else set()
    return ", ".join([name[1] if name else platform.machine(), " ".join(flag for flag in CPU_FLAGS if flag in found)])


def versions() -> dict[str, str]:
    """Return the versions of the kernel, Python, MPI and the `LIBRARIES` that this program has imported."""
    found = {"Linux": platform.release(), "Python": platform.python_version()}
    if "mpi4py.MPI" in sys.modules:
        library = sys.modules["mpi4py.MPI"].Get_library_version().rstrip("\0\n")
        named = re.match(r"(.+?) v?(\d+(?:\.\d+)+)", library)
        found |= {named[1]: named[2]} if named else {"MPI": library.splitlines()[0]}
    return found | {name: sys.modules[name].__version__ for name in LIBRARIES if name in sys.modules}


def file_system(directory: str) -> str:
    """Return the type of the file system that a directory lies on."""
    where, found = os.path.realpath(directory), ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split()
        if os.path.commonpath([mount, where]) == mount and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]
