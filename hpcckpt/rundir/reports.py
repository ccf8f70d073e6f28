"""What the ranks report about a save, and what root checks and records of it. No communication."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcckpt._version import __version__
from hpcckpt.core.options import Level
from hpcckpt.core.plan import SaveJob, WriteReport
from hpcckpt.errors import NonFiniteError, ReplicaMismatchError, TreeMismatchError


class RankReport(NamedTuple):
    """What one rank reports about its part of a save.

    Attributes
    ----------
    step : int
        The step it was asked to save.
    written : WriteReport
        What it wrote.
    replicas : list of int or None
        CRC32C of every replicated tensor, when replicas are compared.
    non_finite : tuple of str
        Tensors with NaN or infinite values, when these are guarded against.
    """

    step: int
    written: WriteReport
    replicas: list[int] | None = None
    non_finite: tuple[str, ...] = ()


class Content(NamedTuple):
    """What of a save goes into the manifest beside the plan, as it was when `save` was called."""

    metrics: Mapping[str, float]
    objects: Mapping[str, Any]
    replica_names: Sequence[str] = ()
    level: Level = "state"


def environment() -> dict[str, Any]:
    """Return the versions that matter, of what the program has loaded. Independent."""
    loaded: dict[str, Any] = {
        name: str(getattr(sys.modules[name], "__version__", "unknown"))
        for name in ("numpy", "tensorflow", "keras", "horovod", "mpi4py", "h5py", "torch")
        if name in sys.modules
    }
    return {"hpcckpt": __version__, "python": platform.python_version(), **loaded}


def check_reports(job: SaveJob, content: Content, reports: Sequence[RankReport]) -> None:
    """Raise if ranks that all wrote differ. Pure.

    Raises
    ------
    TreeMismatchError
        If they were asked to save different steps.
    ReplicaMismatchError
        Naming the first tensors that differ between ranks, and the ranks that differ from rank 0.
    NonFiniteError
        Naming the tensors.
    """
    steps = {rank: report.step for rank, report in enumerate(reports) if report.step != job.step}
    if steps:
        shown = ", ".join(f"rank {rank} step {step}" for rank, step in list(steps.items())[:5])
        raise TreeMismatchError(f"ranks save different steps: rank 0 step {job.step}, {shown}; make them save the same")
    _check_replicas(content.replica_names, [report.replicas for report in reports if report.replicas is not None])
    bad = sorted({name for report in reports for name in report.non_finite})
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise NonFiniteError(
            f"NaN or infinite values in {', '.join(map(repr, bad[:5]))}{more}; the step was not committed: "
            "restore the newest one, or save without nan_guard"
        )


def _check_replicas(names: Sequence[str], every: Sequence[list[int]]) -> None:
    if not every or all(theirs == every[0] for theirs in every):
        return
    shown = []
    for number, name in enumerate(names):
        ranks = [rank for rank, theirs in enumerate(every) if theirs[number] != every[0][number]]
        if ranks:
            shown.append(f"{name!r} on rank {', '.join(map(str, ranks))}")
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    raise ReplicaMismatchError(
        f"tensors that should be equal on all ranks differ from rank 0's: {'; '.join(shown[:5])}{more}; "
        "if each rank holds a part of an array, pass hpcckpt.Sharded(part, global_shape, offset); if each rank has its "
        "own value, hpcckpt.PerRank(value); if rank 0's counts, hpcckpt.RootOnly(value); else broadcast before the save"
    )
