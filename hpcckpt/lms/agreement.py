"""All ranks do the same, or none trains: rank 0 decides what is measured, and plans are compared by their digests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import PlanMismatchError
from hpcckpt.lms.graph import Graph
from hpcckpt.lms.plan import Plan

T = TypeVar("T")


class _Told(NamedTuple):
    """What a rank says of its plan."""

    digest: str
    n_out: int
    n_in: int
    n_ops: int
    n_edges: int


def planned_alike(comm: Communicator, graph: Graph, make: Callable[[], Plan]) -> Plan:
    """Return this rank's plan, once all ranks have the same one. Collective.

    Raises
    ------
    CollectiveError
        If planning failed on a rank, alike on all; also of that failure's own class.
    PlanMismatchError
        If a rank's plan is not rank 0's, alike on all.
    """
    plan = comm.agree("plan Large Model Support", make)
    mine = _Told(plan.digest, len(plan.swap_outs), len(plan.swap_ins), len(graph.ops), graph.n_edges)
    _compare(comm.allgather(mine))
    return plan


def _compare(told: Sequence[_Told]) -> None:
    others = [rank for rank, each in enumerate(told) if each.digest != told[0].digest]
    if not others:
        return
    first = others[0]
    raise PlanMismatchError(
        f"the plan of rank {first} is not that of rank 0 ({_words(told[first])}, on rank 0 {_words(told[0])}), and "
        f"{len(others)} of {len(told)} ranks differ: give all ranks the same model, batch size and options of LMS"
    )


def _words(told: _Told) -> str:
    moved = f"{told.n_out} swap-outs and {told.n_in} swap-ins"
    return f"{moved} in {told.n_ops} ops and {told.n_edges} edges, {told.digest[:12]}"
