"""The public class `Checkpointer`: how a run is opened, used and closed.

The names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.checkpointer.checkpointer import Checkpointer, PendingSave
    from hpcckpt.core.results import Restored, SavedStep

_HOME = {
    "Checkpointer": "checkpointer",
    "PendingSave": "checkpointer",
    "Restored": "checkpointer",
    "SavedStep": "checkpointer",
}

__all__ = ["Checkpointer", "PendingSave", "Restored", "SavedStep"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
