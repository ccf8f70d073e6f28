"""Whether the output that a page shows is what was printed.

The only differences that count for nothing are listed here:

* ``…`` in a shown line is any text; a shown line that is only ``…`` or ``...`` is any number of lines
* runs of blanks are one blank, and lines that are empty or only rules of a table are left out
* owners, sizes and times in the lines of ``ls -l``, and its first line
* the path of the directory in which the page runs, and ``/home/me``: both are ``/DIR``
* warnings of TensorFlow about itself, and that the directory is in memory, as it is where the suite runs: `NOISE`
* times, durations, rates, process ids, hexadecimal identities of 12 digits and more: see `VARYING`
* on a page whose setup has ``decimals=False``: the digits of numbers with a decimal point (losses, sizes)
* what a setup names in ``varying``
"""

from __future__ import annotations

import re
from collections.abc import Sequence

VARYING: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+\d\d:\d\d)?", "TIME"),
    (r"^([-dlrwx]{10}) +\d+ \S+ +\S+ +\d+ [A-Z][a-z]{2} +\d+ +[\d:]+", r"\1"),
    (r"(passed in [\d.]+s) \(\d+:\d\d:\d\d\)", r"\1"),  # pytest adds it after a minute
    (r"\b\d+:\d\d:\d\d\b", "DURATION"),
    (r"\b[\d.,]+ ?([KMGT]i)?B/s", "RATE"),
    (r"\b(\d+ h )?(\d+ min )?[\d.,]+ ?(ms|s|min|h)\b", "DURATION"),
    (r"(?<![\w.])[0-9a-f]{12,}\b", "ID"),
    (r"\bprocess \d+", "process N"),
    (r"\(PID: \d+\)", "(PID: N)"),
    (r"^.*line \d+: +\d+ Killed .*$", "Killed"),
)
DECIMALS_LAST: tuple[tuple[str, str], ...] = ((r"-?\b\d+\.\d+(e[-+]\d+)?", "DECIMAL"),)
RULES = re.compile(r"[\s\u2500-\u257f=-]*|total \d+")
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
NOISE = re.compile(
    r"WARNING:(tensorflow|absl):|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] (tensorflow|external)"
    r"|Instructions for updating"
    r"|warning +file system +tmpfs |\s*-> keep checkpoints on disk; use memory only as a fast first tier"
)
SKIP = {"…", "..."}


def normalised(line: str, varying: Sequence[tuple[str, str]]) -> str:
    """Return a line without what counts for nothing."""
    for pattern, replacement in varying:
        line = re.sub(pattern, replacement, line)
    return " ".join(re.sub("[\u2500-\u257f]", " ", line).split())


def is_line(shown: str, real: str) -> bool:
    """Return whether a line of a page is this real one."""
    parts = [re.escape(part.strip()) for part in re.split(r"…|\.\.\.(?=/)", shown)]
    return re.fullmatch(r"\s*.*\s*".join(parts) if len(parts) > 1 else parts[0], real) is not None


def difference(shown: Sequence[str], real: Sequence[str], varying: Sequence[tuple[str, str]] = ()) -> str:
    """Return what is different, or nothing."""
    all_varying = (*VARYING, *varying)
    wanted, found = (
        [normalised(line, all_varying) for line in lines if not RULES.fullmatch(line) and not NOISE.match(line)]
        for lines in (shown, real)
    )
    if _matches(wanted, found):
        return ""
    return "shown:\n" + "".join(f"  {line}\n" for line in shown) + "real:\n" + "".join(f"  {line}\n" for line in real)


def _matches(shown: list[str], real: list[str]) -> bool:
    """Match lines, where one that is only dots is any number of them; each run of lines is looked for once."""
    possible = {0}
    for line in shown:
        if line in SKIP:
            possible = set(range(min(possible), len(real) + 1)) if possible else set()
        else:
            possible = {at + 1 for at in possible if at < len(real) and is_line(line, real[at])}
    return len(real) in possible
