"""Who is killed, and how often."""

from __future__ import annotations

from tests.campaign.peers.harness import Subject

SUBJECTS = (
    Subject("hpcckpt", "hpcckpt"),
    Subject("tf.train.Checkpoint, CheckpointManager", "tensorflow"),
    Subject("Keras 2.15 BackupAndRestore", "keras"),
    Subject("Keras 3 BackupAndRestore", "keras", ".venv-b"),
    Subject("Keras 3 BackupAndRestore, double_checkpoint", "keras:double", ".venv-b"),
    Subject("torch DCP, one directory", "torch:one-directory"),
    Subject("torch DCP, a directory per step", "torch:directories"),
    Subject("torch DCP, newest with .metadata", "torch:directories-whole"),
    Subject("torch.save, one path", "torch:one-path"),
)
KILLS = 200
