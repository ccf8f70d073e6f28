"""The lines that root writes about the checkpoints of a run: short on a terminal, ``key=value`` in a log."""

from __future__ import annotations

from collections.abc import Sequence

from hpcckpt.core.results import Restored, SavedStep
from hpcckpt.core.std_streams import is_terminal
from hpcckpt.core.units import nbytes_text


def saved_line(saved: SavedStep, epoch: int) -> str:
    """Return the line about a committed step. Independent."""
    if is_terminal():
        return f"hpcckpt: saved step {saved.step} (epoch {epoch}): {nbytes_text(saved.nbytes)} in {saved.seconds:.2f} s"
    nbytes, rate = (nbytes_text(value, "") for value in (saved.nbytes, saved.nbytes / max(saved.seconds, 1e-9)))
    return (
        f"hpcckpt: saved step={saved.step} epoch={epoch} bytes={nbytes} stall={saved.stall_seconds:.3f}s "
        f"total={saved.seconds:.3f}s bw={rate}/s backend={saved.backend} files={saved.files} kept={saved.kept}"
    )


def resume_line(restored: Restored, epoch: int, batch: int, n_ranks: int, iterator: str, level: str) -> str:
    """Return the line about a restore. Independent."""
    n_missing, n_unexpected = len(restored.missing), len(restored.unexpected)
    if is_terminal():
        ranks = f", {restored.n_ranks} -> {n_ranks} ranks" if restored.n_ranks != n_ranks else ""
        differences = f", {n_missing} missing, {n_unexpected} unexpected" if n_missing or n_unexpected else ""
        return (
            f"hpcckpt: resume at epoch {epoch}, batch {batch}, level {level}{ranks}{differences}, from {restored.path}"
        )
    return (
        f"hpcckpt: resume step={restored.step} epoch={epoch} batch={batch} from={restored.path} "
        f"ranks {restored.n_ranks}->{n_ranks} level={level} iterator={iterator} "
        f"missing={n_missing} unexpected={n_unexpected}"
    )


def level_lines(level: str, reasons: Sequence[str], method: str, remedy: str) -> list[str]:
    """Return the lines about what a resume of this run can promise, and how it would promise more. Independent."""
    said = f"a resume will be at level {level}" if is_terminal() else f"next resume level={level} iterator={method}"
    how = f"; for level=exact {remedy}" if remedy else ""
    if len(reasons) < 2:
        return [f"hpcckpt: {said}{''.join(f' because {reason}' for reason in reasons)}{how}"]
    listed = [f"hpcckpt: level={level}, reason {i} of {len(reasons)}: {reason}" for i, reason in enumerate(reasons, 1)]
    return [f"hpcckpt: {said} for {len(reasons)} reasons{how}", *listed]


def learning_rate_lines(program: float | None, restored: float | None) -> list[str]:
    """Return the line about a learning rate that is not the one that the program gave, if it is another. Pure."""
    texts = [f"{rate:.6g}" for rate in (restored, program) if rate is not None]
    if len(set(texts)) < 2:
        return []
    line = (
        f"hpcckpt: the learning rate is {texts[0]}, restored from the checkpoint, not {texts[1]}, which the program "
        "compiled; a LearningRateScheduler can set another one"
    )
    return [line]


def equal_line(n_tensors: int, how: str, n_ranks: int) -> str:
    """Return the line about tensors that were ``restored`` or ``broadcast``, and compared. Pure."""
    ranks = f"{n_ranks} rank{'s' if n_ranks != 1 else ''}"
    return f"hpcckpt: {n_tensors} tensors {how}, equal on {ranks} before the first batch"


def position_line(nbytes: int, position_nbytes: int) -> str:
    """Return the line about a step that is large because it holds the position in the data. Pure."""
    size, position, rest = map(nbytes_text, (nbytes, position_nbytes, nbytes - position_nbytes))
    return (
        f"hpcckpt: exact resume makes each step {size}, not {rest}: {position} are the position in the data, with its "
        "shuffle buffers; smaller buffers, or iterator='skip' (level=state), make smaller steps"
    )
