"""The lines that a run writes about its checkpoints, on root, for people and for grep."""

from __future__ import annotations

from collections.abc import Sequence

from hpcckpt.run import Restored, SavedStep
from hpcckpt.units import nbytes_text


def saved_line(saved: SavedStep, epoch: int) -> str:
    """Return the line about a committed step."""
    nbytes, rate = (nbytes_text(value, "") for value in (saved.nbytes, saved.nbytes / max(saved.seconds, 1e-9)))
    return (
        f"hpcckpt: saved step={saved.step} epoch={epoch} bytes={nbytes} stall={saved.stall_seconds:.3f}s "
        f"total={saved.seconds:.3f}s bw={rate}/s backend={saved.backend} files={saved.files} kept={saved.kept}"
    )


def resume_line(restored: Restored, epoch: int, batch: int, n_ranks: int, iterator: str, level: str) -> str:
    """Return the line about a restore."""
    return (
        f"hpcckpt: resume step={restored.step} epoch={epoch} batch={batch} from={restored.path} "
        f"ranks {restored.n_ranks}->{n_ranks} level={level} iterator={iterator} "
        f"missing={len(restored.missing)} unexpected={len(restored.unexpected)}"
    )


def level_line(level: str, reasons: Sequence[str], method: str) -> str:
    """Return the line about what a resume of this run can promise."""
    why = f" because {'; '.join(reasons)}" if reasons else ""
    return f"hpcckpt: level={level} iterator={method}{why}"
