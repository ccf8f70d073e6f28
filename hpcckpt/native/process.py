"""Settings of the process and its threads that matter to speed.  Nothing of this is done unless it is asked for.

A call each, so native code would add nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_LARGEST_MMAP_THRESHOLD = 4 << 20 << 3 if sys.maxsize > 1 << 32 else 512 << 10  # glibc refuses more
_LARGEST_INT = (1 << 31) - 1


def keep_freed_memory(nbytes: int, *, any_size: bool = False) -> bool:
    """Let the C library keep freed memory for its next allocations, instead of unmapping it.

    Memory that comes from the system anew must be touched page by page, which can cost ten times the copy into it.
    It concerns whatever allocates with ``malloc`` or ``posix_memalign``: TensorFlow on CPU, torch, NumPy.  It lasts as
    long as the process, and replaces the C library's own adaptation of these limits.

    Parameters
    ----------
    nbytes
        How much free memory at the end of the heap may stay; from 2 GiB on it is not limited.
    any_size
        Keep buffers larger than 32 MiB too.  They then share one heap with all others, and what lies below the last
        one in use goes back to the system no more.

    Returns
    -------
    bool
        Whether the C library could: glibc can.  One that was preloaded in its place is not asked.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes: {nbytes} is negative")
    if not _is_glibc():
        return False
    settings = [(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)]
    settings += [(_M_TRIM_THRESHOLD, nbytes if nbytes <= _LARGEST_INT else -1)]  # -1: never
    if any_size:
        settings.append((_M_MMAP_MAX, 0))
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)


def set_thread_priority(nice: int) -> bool:
    """Give the calling thread, and the threads it starts from now on, a nice value of their own.

    Parameters
    ----------
    nice
        From -20, the most urgent, to 19; going down again takes a privilege.

    Returns
    -------
    bool
        Whether the system could: on Linux threads have nice values, elsewhere only processes.
    """
    if sys.platform != "linux":
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError:
        return False
    return True


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False
