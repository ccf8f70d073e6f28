"""A laptop without any scheduler, on which batch scripts are rehearsed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOREIGN = ("SLURM_", "PBS_", "COBALT_", "HPCCKPT_")


def dry_run(home: Path, *words: str, script: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run bash with these words, or with a script on its standard input, as a dry run."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = os.pathsep.join([str(Path(sys.executable).parent), clean["PATH"]])
    environ = {**clean, "HPCCKPT_DRY_RUN": "1", "HOME": str(home), "PATH": path, **more}
    return subprocess.run(
        ["bash", *words], input=script or "", env=environ, capture_output=True, text=True, check=False, cwd=home
    )
