"""The native part, and what the processor can do for checksums."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from hpcckpt import native
from hpcckpt.tools.doctor.finding import Finding


def findings() -> Iterator[Finding]:
    """Yield what there is to say about the native part and the processor. Independent."""
    yield _native()
    yield _checksums()


def cores() -> Finding:
    """Say how many cores this process may use. Independent."""
    return Finding("cores", "ok", f"{usable_cores()} of {os.cpu_count() or 1} usable by this process")


def _native() -> Finding:
    if native.IMPLEMENTATION == "native":
        return Finding("native part", "ok", "present")
    if os.environ.get("HPCCKPT_NO_NATIVE", "0") not in {"", "0"}:
        return Finding(
            "native part", "note", "switched off by HPCCKPT_NO_NATIVE", "unset HPCCKPT_NO_NATIVE to save faster"
        )
    remedy = "pip install --force-reinstall --no-binary=hpcckpt hpcckpt, with a C++17 compiler, to save faster"
    if importlib.util.find_spec("hpcckpt.native._native") is not None:
        return Finding("native part", "warning", "it does not load; Python is used instead, slower", remedy)
    return Finding("native part", "warning", "absent: Python is used instead, slower", remedy)


def _checksums(cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    machine = platform.machine()
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Finding("checksums", "note", f"{machine}: cannot tell whether the processor computes CRC32C")
    flag = "sse4_2" if machine in {"x86_64", "AMD64"} else "crc32"
    if re.search(rf"^(flags|Features)\s*:.*\b{flag}\b", text, re.MULTILINE):
        return Finding("checksums", "ok", f"{machine} with {flag}: the processor computes CRC32C")
    remedy = "run on a processor with SSE 4.2 or ARMv8 CRC for checksums at memory speed"
    return Finding("checksums", "warning", f"{machine} without {flag}: CRC32C is computed in software", remedy)


def usable_cores() -> int:
    """Return how many cores this process may run on. Independent."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
