"""The callback that backs a cycle up on ranks of Horovod."""

from __future__ import annotations

from hpcckpt.horovod.callbacks import RestoreCallback
from hpcckpt.train.callbacks.backup_callback import BackupCallback

__all__ = ["HorovodBackup"]


class HorovodBackup(BackupCallback, RestoreCallback):
    """Restores or broadcasts, compares all ranks, and reports each committed step."""
