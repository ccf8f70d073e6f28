"""The checked options of `LMS`: those of TFLMSv2 with its messages, and those of hpcckpt. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from os import PathLike, fspath
from typing import Any, Literal, get_args

from hpcckpt.core.units import parse_nbytes
from hpcckpt.errors import OptionError
from hpcckpt.lms.storage_tiers import Tier


@dataclass(frozen=True, slots=True)
class Parameters:
    """The options of TFLMSv2; `LMS` explains each."""

    swapout_threshold: int = -1
    swapin_groupby: int = -1
    swapin_ahead: int = -1
    sync_mode: int = 0
    serialization: tuple[int | str, ...] = ()
    serialization_by_size: float = 0
    window: int | None = None
    """Not of TFLMSv2, whose asynchronous swap-outs are without bound: the bytes that may be on their way out while
    compute continues."""

    @property
    def is_out_synchronous(self) -> bool:
        """Whether compute waits for swap-outs."""
        return self.sync_mode in (1, 3)

    @property
    def is_in_synchronous(self) -> bool:
        """Whether swap-ins wait for compute; `swapin_ahead` and `swapin_groupby` then mean nothing."""
        return self.sync_mode in (2, 3)


Planner = Literal["cost", "distance"]
SYNC_MODES = (0, 1, 2, 3)
_DEVICE = re.compile(r"\S*[A-Za-z]:\d+")


@dataclass(frozen=True, slots=True)
class LmsSettings(Parameters):
    """All that the constructor of `LMS` takes; it says there what each is."""

    debug: bool = False
    debug_level: int = 1
    cpu_device: str = "/cpu:0"
    gpu_device: str | None = None
    planner: Planner | None = None
    memory_budget: int | None = None
    tier: Tier = "auto"
    directory: str | None = None
    min_bytes: int | None = None
    host_limit: int | None = None
    file_limit: int | None = None
    recompute: bool = True
    verify: bool = True

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of what steers the distance planner alone and was given."""
        own = (each for each in fields(Parameters) if each.name != "window")
        return tuple(each.name for each in own if getattr(self, each.name) != each.default)


def checked(**given: Any) -> LmsSettings:
    """Return the settings.

    Raises
    ------
    OptionError
        If a value is not accepted; it is a ``ValueError``, with the text of the original.
    """
    for name in ("swapout_threshold", "swapin_groupby", "swapin_ahead", "sync_mode"):
        _check_int(name, given[name])
    if not isinstance(given["serialization_by_size"], int | float):
        raise OptionError(_unsupported("serialization_by_size", given, "an integer or a float."))
    _check_int("debug_level", given["debug_level"])
    for name in ("swapout_threshold", "swapin_ahead"):
        if given[name] == 0:
            raise OptionError(f"0 is not a supported value for {name}.")
    for name in ("swapout_threshold", "swapin_groupby", "swapin_ahead"):
        if given[name] < -1:
            raise OptionError(
                f"{given[name]} is not a supported value for {name}: give a larger one, or -1 for a search"
            )
    if given["sync_mode"] not in SYNC_MODES:
        raise OptionError(f"Invalid value for sync_mode {given['sync_mode']}. Valid values are: {set(SYNC_MODES)}")
    given["serialization"] = _levels(given["serialization"])
    return _checked_options(given)


def _check_int(name: str, value: object) -> None:
    if not isinstance(value, int):
        raise OptionError(_unsupported(name, {name: value}, "an integer"))


def _unsupported(name: str, given: dict[str, Any], kind: str) -> str:
    return f"Unsupported value for {name}: {given[name]}. {name} must be {kind}"


def _levels(value: object) -> tuple[int | str, ...]:
    """Return the levels to serialize: a copy, for what the caller keeps must never change."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"serialization: {value!r} – a list of levels and slices, such as [1, '3:5', 7]")
    levels = tuple(each if isinstance(each, int) else str(each).replace(" ", "") for each in value)
    for each in levels:
        if isinstance(each, str):
            read_slice(each)
    return levels


def read_slice(given: str) -> tuple[int | None, int | None, int | None]:
    """Return start, stop and step of a slice of levels; a level alone is a slice that ends with it.

    Raises
    ------
    OptionError
        The text is no slice, or its step is 0 or less.
    """
    try:
        parts = [int(part) if part.strip() else None for part in given.split(":")]
    except ValueError:
        parts = []
    start, stop, step = (*parts, None, None)[:3] if parts else (None, None, 0)
    if len(parts) > 3 or parts in ([], [None]) or (step is not None and step < 1):
        raise OptionError(f"serialization: {given!r} – a level or a slice of levels, such as 7, '3:5' or '200:'")
    return start, start if len(parts) == 1 else stop, step


def _checked_options(given: dict[str, Any]) -> LmsSettings:
    if given["planner"] not in (None, *get_args(Planner)):
        raise OptionError(f"planner: {given['planner']!r} – one of {', '.join(get_args(Planner))}")
    if given["tier"] not in get_args(Tier):
        raise OptionError(f"tier: {given['tier']!r} – one of {', '.join(get_args(Tier))}")
    for name in ("cpu_device", "gpu_device"):
        if given[name] is not None and not (isinstance(given[name], str) and _DEVICE.fullmatch(given[name])):
            raise OptionError(f"{name}: {given[name]!r} – a device of TensorFlow, such as '/cpu:0'")
    for name in ("memory_budget", "min_bytes", "window", "host_limit", "file_limit"):
        given[name] = _nbytes(name, given[name])
    directory = given["directory"]
    if not isinstance(directory, str | PathLike | None):
        raise OptionError(f"directory: {directory!r} – a path")
    given["directory"] = None if directory is None else str(fspath(directory))
    settings = LmsSettings(**given)
    if settings.planner == "cost" and settings.chosen:
        raise OptionError(
            f"planner: 'cost' knows no {', '.join(settings.chosen)}; give planner='distance', or leave them out and "
            "give memory_budget"
        )
    return settings


def _nbytes(name: str, value: object) -> int | None:
    """Return a size in bytes; a text may have a unit, ``"600 MiB"``; see `hpcckpt.core.units.parse_nbytes`."""
    if value is None:
        return None
    number = None if isinstance(value, bool) else value
    if isinstance(value, str):
        with suppress(ValueError):
            number = parse_nbytes(value)
    if isinstance(number, int | float) and 0 <= number < 1 << 63:
        return int(number)
    raise OptionError(
        f"{name}: {value!r} – bytes, as a number or with a unit: 629145600, '600 MiB' (2**20 bytes), '629 MB' (10**6)"
    )
