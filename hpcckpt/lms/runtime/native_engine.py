"""The native part of LMS, as Python sees it: tiers, figures, and the graph pass that asks for plans.

1. `load` finds the library; nothing changes by that.
2. `configure` makes the tier ready, so that a directory that will not do is found out before training.
3. `arm` lets the pass call back, once for each matching function that TensorFlow makes ready to run, with its graph;
   the plan that is returned is applied to it. `disarm` ends that; functions that are ready stay as they are.
4. `typed_errors` around a step gives errors of tiers and planners back as what they were.

Nothing here is collective.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import ConfigError, HpcckptError, NoSpaceError, OptionError, StorageError, from_os_error
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.planner.plan import Plan, text_of
from hpcckpt.lms.storage_tiers import Stats, TierConfig
from hpcckpt.native import lms_ops

_PROBE_BYTES, _N_PROBES = 16 << 20, 8
_REFUSED = "hpcckpt.lms cannot swap in"
_TIER = re.compile(r"hpcckpt\.lms \(errno (\d+)\): (.*?)(?=\n| \[Op:| \[\[|$)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class FunctionInfo(NamedTuple):
    """What the pass asks about, beside its graph."""

    name: str
    """Of the function; empty for the graph of a session."""
    is_session: bool


Planner = Callable[[Graph, FunctionInfo], Plan | None]


@dataclass(frozen=True, slots=True)
class OpTime:
    """How long an op took, over all its runs, and when it first began: an order to sort by."""

    count: int
    total_ns: int
    first_ns: int

    @property
    def mean_ns(self) -> int:
        """Nanoseconds of one run."""
        return self.total_ns // max(self.count, 1)


_is_loaded = False
_failure: BaseException | None = None


def load() -> Any:
    """Load the library and return its ops: ``hpcckpt_swap_out(tensor)``, ``hpcckpt_swap_in(handle, T=dtype)``.

    Raises
    ------
    BackendError
        If it cannot be built for the TensorFlow that is installed, with what to do about it.
    """
    global _is_loaded
    raw = lms_ops.load_lms().raw
    _is_loaded = True
    return raw


def is_loaded() -> bool:
    """Return whether `load` was called, and so whether anything can have been counted."""
    return _is_loaded


def _module() -> lms_ops.LmsModule:
    load()
    return lms_ops.load_lms().module


# -- tiers ---------------------------------------------------------------------------------------


def configure(config: TierConfig) -> str:
    """Set up the tier; return a note for the user (e.g. that it is on tmpfs), or an empty text.

    Swapped-out tensors stay where they are until they are swapped in. With unchanged settings the present file is kept.

    Raises
    ------
    ConfigError, NoSpaceError, ReadOnlyError, StorageError
        If the file cannot be made where it was to be; nothing is changed then.
    """
    place = config.place
    try:
        _module().configure(*_settings(config, is_fallback=False))
    except OSError as error:
        raise _of_directory(error, place) from None
    file = stats().file
    return f"the tier in {place} {file.notes}" if file is not None and file.notes else ""


def set_fallback(config: TierConfig) -> None:
    """Set the tier for graphs that swap before `configure` was called; no file is made until then.

    Raises
    ------
    BackendError
        As `load` does.
    """
    _module().configure(*_settings(config, is_fallback=True))


def _settings(config: TierConfig, *, is_fallback: bool) -> tuple[Any, ...]:
    rank = -1 if config.rank is None else config.rank
    sizes = (config.window, config.host_limit, config.file_limit, config.min_bytes, config.spare)
    return tier_of(config), config.place, *sizes, rank, config.is_mapped, config.is_named, is_fallback


def tier_of(config: TierConfig) -> str:
    """Return which tier is meant by ``auto``."""
    if config.tier != "auto":
        return config.tier
    import tensorflow as tf

    return "host" if tf.config.list_physical_devices("GPU") else "file"


def _of_directory(error: OSError, place: str) -> HpcckptError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ConfigError(
            f"the directory for tensors that LMS swaps out, {place}: {error.strerror}; make it on a disk of every "
            "node, or name another one: LMS(directory=...) or HPCCKPT_LMS_DIR"
        )
    return from_os_error(error, "making the file for tensors that LMS swaps out in")


def bandwidth(tier: str = "") -> tuple[float, float]:  # noqa: ARG001 (the tier that is set is the one that is measured)
    """Return the bytes per second that the tier which is set writes and reads, measured now, which takes about 0.3 s.

    They are those of a stream, with the window 0: one way at a time, and nothing else to do.

    Raises
    ------
    NoSpaceError, StorageError
        If it cannot be written.
    """
    try:
        writing_ns, reading_ns = _module().probe(_PROBE_BYTES, _N_PROBES)
    except RuntimeError as error:
        raise _of_tier(str(error)) or error from None
    nbytes = _PROBE_BYTES * _N_PROBES
    return nbytes * 1e9 / max(writing_ns, 1), nbytes * 1e9 / max(reading_ns, 1)


def allocator_keeps_freed() -> bool:
    """Return whether TensorFlow's allocator on the CPU keeps what is freed, as oneDNN's pool does.

    With ``TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1``, set before TensorFlow starts, it does not.
    """
    return _module().keeps_freed()


def stats() -> Stats:
    """Return what was counted."""
    return Stats.from_json(_module().stats())


def reset_stats() -> None:
    """Reset the counters; current values (bytes in use) stay."""
    _module().reset_stats()


def wait_until_idle(limit_s: float = 60.0) -> bool:
    """Wait until nothing is in transit; return True if that was reached in time, as between steps."""
    end = time.monotonic() + limit_s
    while stats().live_handles or stats().in_flight_bytes:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def hinder(write_delay_ms: int = 0, read_delay_ms: int = 0, take: int = 0, write: int = 0, read: int = 0) -> None:
    """Inject faults of a disk: delays, or failures with these values of errno; without arguments: none. For tests.

    A delay of -1 lasts until the next call.
    """
    _module().hinder(write_delay_ms, read_delay_ms, take, write, read)


# -- the pass ------------------------------------------------------------------------------------


def arm(
    match: str, planner: Planner, *, sessions: bool = False, stalls: bool = True, batch_size: int | None = None
) -> None:
    """Make the pass request a plan for each function that TensorFlow compiles and whose name matches.

    It is called from TensorFlow, in any thread, with the interpreter's lock. It must not run ops that match.

    Parameters
    ----------
    match : str
        A regular expression, searched in names such as ``__inference_train_function_1991``.
    planner : callable
        Given the graph and a `FunctionInfo`; returns a plan, or `None` to leave the function alone. What it raises
        becomes the error of the step, and `typed_errors` gives it back.
    sessions : bool
        Include the graphs of sessions, pruned to what is fetched; they have no names to match.
    stalls : bool
        Add nodes that measure how long ops wait for swap-ins. They add control edges; with oneDNN these may change what
        is fused, and so the last digits.
    batch_size : int, optional
        The first dimension of the graph's inputs, where that is unknown.

    Raises
    ------
    OptionError
        If `match` is no regular expression.
    """

    def plan(name: str, is_session: bool, graph: str) -> str | None:
        global _failure
        try:
            made = planner(Graph.from_json(graph), FunctionInfo(name, is_session))
            return text_of(made) if made else None
        except BaseException as error:
            _failure = error
            raise

    try:
        _module().arm(match, sessions, stalls, batch_size or 0, plan)
    except ValueError as error:
        raise OptionError(str(error)) from None


def disarm() -> None:
    """Disable the pass; functions that were compiled stay as they are."""
    _module().disarm()


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise the original error of a planner or a tier, which TensorFlow has wrapped in one of its errors.

    Raises
    ------
    NoSpaceError, StorageError
        If a tier is full, or a disk fails.
    """
    import tensorflow as tf

    global _failure
    try:
        yield
    except tf.errors.OpError as error:
        original, _failure = _failure, None
        if original is not None and _REFUSED in error.message:
            raise original from error
        if typed := _of_tier(error.message):
            raise typed from error
        raise


def _of_tier(text: str) -> HpcckptError | None:
    match = _TIER.search(text)
    return (NoSpaceError if int(match[1]) in _FULL else StorageError)(match[2]) if match else None


# -- times of ops, memory --------------------------------------------------------------------------


class Recorded(dict[str, OpTime]):
    """Times of ops by their names, filled when the recording ends; may include ops outside the graph in question."""


@contextmanager
def op_times() -> Iterator[Recorded]:
    """Record the time of each op that runs meanwhile, in functions and in sessions, on both stacks.

    TensorFlow's own recorder is used, without a profiler and its files. Names are those of the graph in the pass. An op
    that waits asynchronously (``IteratorGetNext``, a collective, a swap op) shows only how long its start took.

    Raises
    ------
    ConfigError
        If a profiler is recording already.
    """
    recorded = Recorded()
    if not _module().start_op_times():
        raise ConfigError("times of ops cannot be recorded while a profiler records: end it first, or begin it later")
    try:
        yield recorded
    finally:
        for name, *time_ in _module().stop_op_times():
            recorded[name] = OpTime(*time_)


class Peak:
    """The peak memory of this process, once it is known."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.highest = start

    @property
    def nbytes(self) -> int:
        """How far it rose above the start."""
        return self.highest - self.start

    def __str__(self) -> str:
        return f"{nbytes_text(self.nbytes)} above {nbytes_text(self.start)}"


@contextmanager
def peak_resident() -> Iterator[Peak]:
    """Measure the peak of this process's resident memory meanwhile, as counted by the kernel: no peak is missed.

    Raises
    ------
    StorageError
        If the kernel does not let the peak be reset (Linux does, to a process itself).
    """
    try:
        with open("/proc/self/clear_refs", "wb") as file:
            file.write(b"5")  # resets the peak
    except OSError as error:
        raise from_os_error(error, "resetting the peak of resident memory in") from None
    peak = Peak(_status("VmRSS"))
    try:
        yield peak
    finally:
        peak.highest = max(_status("VmHWM"), peak.start)


def _status(key: str) -> int:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{key}:"))


def release_freed_memory(threshold: int = 1 << 16) -> bool:
    """Make malloc return freed blocks from this size on to the kernel at once, for the rest of the process.

    Without it glibc raises its threshold up to 32 MiB, and smaller tensors stay with the process when they are freed:
    swapping them frees nothing. Set it early; ``MALLOC_MMAP_THRESHOLD_=65536`` in the environment is the same. With
    oneDNN, which is the default, tensors come from oneDNN's pool, which keeps freed memory, and this has no effect on
    them unless ``TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1`` is set before TensorFlow starts. Returns whether the C library
    knows the setting.
    """
    import ctypes

    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or os.name != "posix":
        return False
    return bool(mallopt(mmap_threshold, threshold)) and bool(mallopt(trim_threshold, max(threshold, 1 << 20)))
