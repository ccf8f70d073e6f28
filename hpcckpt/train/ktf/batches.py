"""`ktf.batches`: see `hpcckpt.train.batches`."""

from __future__ import annotations

from hpcckpt.train.names.aliases import attach_alias

__getattr__, __dir__ = attach_alias("ktf.batches")
