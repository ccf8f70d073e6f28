"""Who started this process, and whether MPI and the hosts confirm it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcckpt.collective import launchers
from hpcckpt.tools.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class RankLocation:
    """The host of a rank, and by its launcher the number of ranks on its node and of nodes; 0 if unknown."""

    host: str
    local_size: int
    n_nodes: int


def place() -> RankLocation:
    """Return where this rank runs. Independent."""
    launch = launchers.here().launch
    local, nodes = (launch.local_size, launch.n_nodes) if launch else (None, None)
    return RankLocation(os.uname().nodename, local.value if local else 0, nodes.value if nodes else 0)


def findings(n_ranks: int, reading: launchers.Reading) -> Iterator[Finding]:
    """Yield findings about the launcher; `n_ranks` is the number of ranks that MPI connected. Pure."""
    if reading.disagreements:
        remedy = f"unset what is left from another job, or {launchers.OVERRIDE}=… says whom to believe"
        yield Finding("started by", "problem", "; ".join(reading.disagreements), remedy, gist="disagreement")
        return
    launch = reading.launch
    if launch is None:
        yield Finding("started by", "ok", "no launcher: one process" if n_ranks == 1 else f"MPI: {n_ranks} ranks")
        return
    said = launch.size.value if launch.size else None
    if said not in {None, n_ranks} or (n_ranks == 1 and launch.rank is not None and launch.rank.value > 0):
        remedy = (
            "use the launcher of mpi4py's MPI (srun: --mpi=pmix, or another of srun --mpi=list); "
            f"in a shell that such a job has left: {launchers.OVERRIDE}={launchers.NOBODY}"
        )
        message = f"{launch.launcher} started {said or 'several'} ranks ({launch.size or launch.rank})"
        yield Finding("started by", "problem", f"{message}, MPI connects {n_ranks}", remedy)
        return
    yield Finding("started by", "ok", f"{launch.launcher}: {n_ranks} {'rank' if n_ranks == 1 else 'ranks'}")


def hosts(places: Sequence[RankLocation]) -> Finding:
    """Say where all ranks run, and whether that is what their launchers say. Pure."""
    counts = Counter(place.host for place in places)
    text = ", ".join(f"{host} {count}" for host, count in sorted(counts.items())[:8])
    more = f", and {len(counts) - 8} more" if len(counts) > 8 else ""
    message = f"{len(places)} ranks on {len(counts)} {'host' if len(counts) == 1 else 'hosts'} ({text}{more})"
    wrong = [
        f"rank {rank} expects {place.local_size} ranks on its node, {place.host} has {counts[place.host]}"
        for rank, place in enumerate(places)
        if place.local_size not in {0, counts[place.host]}
    ]
    wrong += [
        f"rank {rank} expects {place.n_nodes} nodes, there are {len(counts)}"
        for rank, place in enumerate(places)
        if place.n_nodes not in {0, len(counts)}
    ]
    if not wrong:
        return Finding("hosts", "ok", message)
    remedy = "hosts of one name, or containers with names of their own? Cores and scratch are shared by this count"
    return Finding("hosts", "warning", f"{message}, but {wrong[0]}", remedy)
