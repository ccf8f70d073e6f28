"""A staging directory that was used before, for backends whose ranks have files of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpcckpt import files, layout, native


def keep_own_files(path: Path, names: Iterable[str]) -> None:
    """Keep the files of these names, as a manifest has them, if they have no other name; remove the rest. Root only."""
    data = path / layout.DATA
    own = {os.path.basename(name) for name in names}
    for entry in list(os.scandir(data)):
        if entry.name not in own or entry.stat(follow_symlinks=False).st_nlink != 1:
            files.unlink(entry.path)
    native.fsync_dir(str(data))
