"""Whether what was compiled for TensorFlow matches the one that is installed, in version and in C++ ABI.

TensorFlow is not imported: how its C++ strings are laid out (``_GLIBCXX_USE_CXX11_ABI``) is seen in the names of the
functions that its library exports.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

from hpcckpt.native import tf_ops
from hpcckpt.native.tf_ops import Target
from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.probe import package_folder, version_of
from hpcckpt.tools.doctor.software import TENSORFLOW

_NEW_STRINGS = b"__cxx1112basic_string"
_LIBRARIES = ((tf_ops.OPS, "TF ops"), (tf_ops.LMS, "TF ops of LMS"))


def findings() -> Iterator[Finding]:
    """Yield what was compiled against TensorFlow, and whether it matches; nothing without TensorFlow. Independent."""
    tensorflow, folder = version_of(*TENSORFLOW), package_folder("tensorflow")
    if tensorflow is None or folder is None:
        return
    framework = next(folder.glob("libtensorflow_framework.so*"), None)
    abi = "" if framework is None else cxx11_abi(framework)
    horovod = package_folder("horovod")
    binary = next((horovod / "tensorflow").glob("mpi_lib*.so"), None) if horovod else None
    if binary is not None and abi and (theirs := cxx11_abi(binary)) != abi:
        message = f"Horovod has _GLIBCXX_USE_CXX11_ABI={theirs}, TensorFlow {abi}: it cannot be loaded"
        yield Finding(
            "C++ ABI", "problem", message, "rebuild Horovod with the flags of tf.sysconfig.get_compile_flags()"
        )
    elif abi:
        yield Finding("C++ ABI", "ok", f"TensorFlow has _GLIBCXX_USE_CXX11_ABI={abi}")
    for library, topic in _LIBRARIES:
        yield _ops(topic, library, tensorflow[1], abi)


def cxx11_abi(binary: Path) -> str:
    """Return "1" if a library has the C++ strings of today's compilers, "0" if old ones, "" if it is unreadable."""
    try:
        with open(binary, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return "1" if content.find(_NEW_STRINGS) >= 0 else "0"
    except (OSError, ValueError):
        return ""


def _ops(topic: str, library: tf_ops.Library, tensorflow: str, abi: str) -> Finding:
    found, python = version_of("numpy"), str(sys.implementation.cache_tag).replace("-", "")
    numpy = found[1].partition(".")[0] if found else ""
    wanted = Target(tensorflow, abi, python, numpy, tf_ops.sources_digest(library), library.module)
    if tf_ops.find(wanted) is not None:
        return Finding(topic, "ok", f"built for TensorFlow {tensorflow}, _GLIBCXX_USE_CXX11_ABI={abi}, {python}")
    paths = [path for place in tf_ops.directories() for path in sorted(place.glob(f"{library.module}-*.so"))]
    made = [other for path in paths if (other := Target.of_filename(path.name))]
    if not made:
        message = f"not built for TensorFlow {tensorflow} yet: what needs them builds them at its first use"
        return Finding(topic, "note", message, f"to build them now, {tf_ops.REMEDY}")
    nearest = max(made, key=lambda other: sum(a == b for a, b in zip(other, wanted, strict=True)))
    return Finding(
        topic,
        "warning",
        f"{_difference(nearest, wanted)}; they are not used, and new ones are built at the first use",
        f"to build them now, {tf_ops.REMEDY}",
    )


def _difference(made: Target, wanted: Target) -> str:
    """Say what keeps the nearest library from being used. Pure."""
    names = ("TensorFlow", "_GLIBCXX_USE_CXX11_ABI", "Python", "NumPy")
    for name, have, need in zip(names, made, wanted, strict=False):
        if have != need:
            return f"built for {name} {have}, and {need} is installed"
    return "built from the sources of another hpcckpt"
