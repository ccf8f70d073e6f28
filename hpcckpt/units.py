"""Sizes in words, for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def nbytes_text(nbytes: float, space: str = " ") -> str:
    """Return a size in binary units, ``3.21 GiB``; in log lines without the space."""
    unit = 0
    while nbytes >= 1024 and unit < len(_UNITS) - 1:
        nbytes /= 1024
        unit += 1
    return f"{nbytes:.{2 if unit else 0}f}{space}{_UNITS[unit]}"
