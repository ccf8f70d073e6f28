"""Failpoints: named phases of saving and restoring, and the hook for fault injection.

The numbers are those of the commit protocol in ``docs/format.md`` and in
:mod:`hpcckpt.rundir.commit`.  In production no hook is installed and :func:`reached` costs one
comparison.
"""

from __future__ import annotations

from collections.abc import Callable

PHASES = (
    "0-plan",
    "1-begin",
    "2-write",
    "2-written",
    "2-synced",
    "3-report",
    "4-sealed",
    "4-check",
    "4-manifest",
    "4-durable",
    "5-published",
    "6-parent-synced",
    "7-outcome",
    "8-retention",
    "8-retired",
    "9-restore",
)

Hook = Callable[[str, int], None]
_hook: Hook | None = None


def reached(phase: str, rank: int) -> None:
    """Call the hook, if there is one: `rank` is at `phase`."""
    hook = _hook  # another thread may remove it now
    if hook is not None:
        hook(phase, rank)


def install_hook(hook: Hook | None) -> None:
    """Install a fault-injection hook for this process; ``None`` removes it."""
    global _hook  # one hook per process is the point
    _hook = hook
