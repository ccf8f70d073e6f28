"""What an argument must be that comes from a configuration, whatever its type says."""

from __future__ import annotations

from typing import Any


def is_whole(value: Any, lowest: int) -> bool:
    """Return True if a value is a whole number from `lowest` on, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest
