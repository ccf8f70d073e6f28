"""Names in a run directory: how a step, a temporary and a retired directory are called."""

from __future__ import annotations

import operator
import re
import secrets
from typing import Any

from hpcckpt.errors import StateError

MANIFEST = "manifest.json"
DATA = "data"
LOCK = ".lock"
PINS = ".pins"
DAMAGED = ".damaged"
HALT = "HALT"
HALTED = ".HALT.done"
"""What a file HALT is called that a job has obeyed."""
MAX_STEP = 10**18
_STEP = re.compile(r"step-([0-9]{10,19})")


def as_step(step: Any) -> int:
    """Return the number of a step that a program gave, as an ``int``. Pure.

    Integers of NumPy, PyTorch and TensorFlow count too.

    Raises
    ------
    StateError
        If it is not a whole number: ``3.7``, ``"5"``, ``True``; or out of range.
    """
    value = step.numpy() if hasattr(step, "numpy") else step
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        if is_bool:
            raise TypeError
        number = operator.index(value)
    except (TypeError, AttributeError):
        raise StateError(f"step {step!r} is not a whole number: give an int, such as the number of batches") from None
    if not 0 <= number <= MAX_STEP:
        raise StateError(f"step {number} is not between 0 and {MAX_STEP}")
    return number


def step_dirname(step: int) -> str:
    """Return the directory name of a committed step."""
    return f"step-{step:010d}"


def parse_step(dirname: str) -> int | None:
    """Return the step of a directory name, or None; the inverse of `step_dirname`."""
    match = _STEP.fullmatch(dirname)
    if match is None or step_dirname(int(match[1])) != dirname:
        return None
    return int(match[1])


def new_nonce() -> str:
    """Return a name part that no other job will choose."""
    return secrets.token_hex(6)


def staging_dirname(nonce: str) -> str:
    """Return the name under which a step is written before it is published."""
    return f".next-{nonce}"


def retired_dirname(nonce: str) -> str:
    """Return the name of a step that retention took out of sight."""
    return f".retired-{nonce}"


def bad_dirname(nonce: str) -> str:
    """Return the name of a damaged step that is kept aside as evidence."""
    return f".bad-{nonce}"


def aside_dirname(step: int, nonce: str) -> str:
    """Return the name of a good step that was moved aside when its run went back to an older one."""
    return f".aside-{step_dirname(step)}-{nonce}"


_REPLACED = re.compile(r"\.replaced-[0-9a-f]{12}-(.+)")


def replaced_dirname(dirname: str, nonce: str) -> str:
    """Return where a directory waits while another one takes its name."""
    return f".replaced-{nonce}-{dirname}"


def replaced_original(dirname: str) -> str | None:
    """Return the name that a waiting directory had, or ``None``; the inverse of `replaced_dirname`."""
    match = _REPLACED.fullmatch(dirname)
    return match[1] if match else None


def is_prepared(dirname: str) -> bool:
    """Return whether this is a staging directory, which is prepared before its save begins."""
    return dirname.startswith(".next-")


def is_aside(dirname: str) -> bool:
    """Return whether this was moved aside when its run went back to an older step or began again."""
    return dirname.startswith(".aside-")


def is_bad(dirname: str) -> bool:
    """Return whether this is a damaged step that is kept as evidence."""
    return dirname.startswith(".bad-")


def is_temporary(dirname: str) -> bool:
    """Return True for the directory of a save that is to come, in progress, or was killed."""
    return dirname.startswith(".next-") or (dirname.startswith(".step-") and ".tmp-" in dirname)


def is_retired(dirname: str) -> bool:
    """Return True if this directory is to be removed."""
    return dirname.startswith(".retired-")
