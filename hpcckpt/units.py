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


def nbytes_text_up(nbytes: int) -> str:
    """Return a size as `nbytes_text` does, rounded up: a limit of that size has room for it."""
    unit = min(max(nbytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    if not unit:
        return nbytes_text(nbytes)
    hundredths = -(-nbytes * 100 // (1 << 10 * unit))
    return f"{hundredths // 100}.{hundredths % 100:02d} {_UNITS[unit]}"
