"""The two lines that a run writes about its checkpoints, on root, for people and for grep."""

from __future__ import annotations

import sys

from hpcckpt.run import Restored, SavedStep


def write_line(line: str) -> None:
    """Write one line to standard error at once, so that a killed job's log has it. Root only."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def saved_line(saved: SavedStep, epoch: int) -> str:
    """Return the line about a committed step."""
    rate = saved.nbytes / max(saved.seconds, 1e-9)
    return (
        f"hpcckpt: saved step={saved.step} epoch={epoch} bytes={_size(saved.nbytes)} stall={saved.stall_seconds:.3f}s "
        f"total={saved.seconds:.3f}s bw={_size(rate)}/s backend={saved.backend} files={saved.files} kept={saved.kept}"
    )


def resume_line(restored: Restored, epoch: int, batch: int, n_ranks: int, iterator: str) -> str:
    """Return the line about a restore."""
    return (
        f"hpcckpt: resume step={restored.step} epoch={epoch} batch={batch} from={restored.path} "
        f"ranks {restored.n_ranks}->{n_ranks} level={restored.level} iterator={iterator} "
        f"missing={len(restored.missing)} unexpected={len(restored.unexpected)}"
    )


def _size(nbytes: float) -> str:
    """Return a number of bytes in words without a space: ``3.21GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f}B" if unit == "B" else f"{nbytes:.2f}{unit}"
        nbytes /= 1024
    return f"{nbytes:.2f}TiB"
