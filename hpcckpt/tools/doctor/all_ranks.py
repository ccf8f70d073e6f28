"""Findings of many ranks as one list: common findings once, others with their ranks.

1. (all) exchange host names; the first rank of each host checks the host, every rank itself.  A check that fails
   becomes a finding.
2. (all) gather on root; the findings of the first rank of a host are those of its other ranks too.
3. (root) join: one entry for each finding, with its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpcckpt.collective.communicator import Communicator
from hpcckpt.tools.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class RankFindings:
    """A finding, and the ranks that have it; no ranks if all have it."""

    finding: Finding
    ranks: tuple[int, ...] = ()


def look(act: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what `act` finds; that it fails is a finding too. Independent."""
    found: list[Finding] = []
    try:
        found.extend(act())
    except Exception as error:  # noqa: BLE001 - one check that breaks must not hide what the others find
        message = f"a check broke off: {type(error).__name__}: {error}"
        found.append(Finding("doctor", "warning", message, "report it; the findings above hold"))
    return found


def gather(
    comm: Communicator, host: str, at_host: Callable[[], Iterable[Finding]], at_rank: Callable[[], Iterable[Finding]]
) -> list[RankFindings]:
    """Look on every rank; return what all have found on root, and nothing elsewhere. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    host : str
        Where this rank runs.
    at_host, at_rank : callable
        What looks at a host, and at a rank.
    """
    hosts = comm.allgather(host)
    leaders = [hosts.index(name) for name in hosts]
    found = comm.gather((look(at_host) if leaders[comm.rank] == comm.rank else [], look(at_rank)))
    if found is None:
        return []
    return join([[*found[leader][0], *own] for leader, (_, own) in zip(leaders, found, strict=True)])


def join(found: Sequence[Sequence[Finding]]) -> list[RankFindings]:
    """Return what several ranks have found as one list, in the order in which topics come first. Pure."""
    first: dict[tuple[str, str, str], Finding] = {}
    ranks: dict[tuple[str, str, str], list[int]] = {}
    for rank, findings in enumerate(found):
        for finding in findings:
            first.setdefault(finding.sameness, finding)
            ranks.setdefault(finding.sameness, []).append(rank)
    topics = {topic: number for number, (topic, *_) in reversed(list(enumerate(first)))}
    ordered = sorted(first, key=lambda sameness: topics[sameness[0]])  # stable: variants stay together
    everybody = set(range(len(found)))
    whose = {key: () if set(ranks[key]) == everybody else tuple(dict.fromkeys(ranks[key])) for key in ordered}
    return [RankFindings(first[key], whose[key]) for key in ordered]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in short, ``0-3,6``. Pure."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)
