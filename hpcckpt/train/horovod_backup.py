"""The callback that backs a cycle up on ranks of Horovod."""

from __future__ import annotations

from hpcckpt.horovod.callbacks import RestoreCallback
from hpcckpt.train.backups import Telling

__all__ = ["HorovodBackup"]


class HorovodBackup(Telling, RestoreCallback):
    """Restores or broadcasts, compares all ranks, and tells of each step that is committed."""
