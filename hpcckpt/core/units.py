"""Sizes in words, for people: read as they are written, and written in binary units."""

from __future__ import annotations

import math
import re

_SIZE = re.compile(r"(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)(b?)", re.IGNORECASE)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_nbytes(text: str) -> float:
    """Return a size in bytes: ``98 MB`` is 98 * 10**6, ``98 MiB`` and ``98M`` are 98 * 2**20.

    Raises
    ------
    ValueError
        If the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is no size: write it as 629145600, '600 MiB', '600M' (the same) or '629 MB'")
    is_decimal = bool(match[4]) and not match[3]
    power = " kmgt".index(match[2].lower() or " ")
    nbytes = float(match[1]) * float((1000 if is_decimal else 1024) ** power)
    if math.isinf(nbytes):
        raise ValueError(f"{text[:40]!r}… is more bytes than can be counted")
    return nbytes


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
