"""All ranks change their steps identically, or none trains: all report the same difference."""

from __future__ import annotations

from typing import Any

import pytest

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import CollectiveError, OptionError, PlanMismatchError
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.messages import LmsLog
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.planner.make_plan import PlanRequest, describe, make
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.runtime.collective_plan import check_same_plan
from hpcckpt.lms.settings import Parameters, checked
from hpcckpt.testing.ranks import run_ranks
from tests.support.lms.graphs import hourglass

GRAPH = hourglass(6)


def plan(threshold: int) -> Plan:
    return plan_by_distance(GraphContext(GRAPH), Parameters(threshold, 0, 1))


def agreed(comm: Communicator, threshold: int) -> str:
    try:
        return check_same_plan(comm, GRAPH, lambda: plan(threshold)).digest
    except (CollectiveError, PlanMismatchError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equal_plans_go_on_with_one_digest(n: int) -> None:
    told = run_ranks(n, lambda comm: agreed(comm, 2))
    assert told == [plan(2).digest] * n


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_with_another_plan_is_refused_by_all_alike(n: int) -> None:
    told = run_ranks(n, lambda comm: agreed(comm, 2 if comm.rank < n - 1 else 4))
    assert len(set(told)) == 1
    assert told[0].startswith(f"PlanMismatchError: the plan of rank {n - 1} is not that of rank 0 (")
    assert f"1 of {n} ranks differ: give all ranks the same model, batch size and options of LMS" in told[0]


def test_the_message_says_what_is_in_each_plan() -> None:
    told = run_ranks(2, lambda comm: agreed(comm, 2 + 3 * comm.rank))
    assert f"on rank 0 {len(plan(2).swap_outs)} swap-outs and" in told[0]


@pytest.mark.parametrize("n", [2, 3])
def test_planning_that_fails_on_one_rank_fails_on_all_alike(n: int) -> None:
    def body(comm: Communicator) -> str:
        def fails() -> Plan:
            if comm.rank == n - 1:
                raise OptionError("batch_size: not known here")
            return plan(2)

        with pytest.raises(OptionError) as error:
            check_same_plan(comm, GRAPH, fails)
        return str(error.value)

    assert run_ranks(n, body) == [f"plan Large Model Support: [rank {n - 1}] batch_size: not known here"] * n


def test_the_lines_are_said_once_per_job(caplog: Any) -> None:
    caplog.set_level("INFO", logger="hpcckpt.lms")
    settings = checked(**vars_of(swapout_threshold=2, swapin_ahead=1, swapin_groupby=0))
    run_ranks(3, lambda comm: said(PlanRequest(GraphContext(GRAPH), settings), LmsLog(comm.rank, comm.size)))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines))
    assert all(line.startswith("[0] [LMS][0] ") for line in lines)


def said(task: PlanRequest, lms_log: LmsLog) -> str:
    describe(task.context, 0, lms_log)
    return make(task, "distance", lms_log).plan.digest


def vars_of(**more: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from hpcckpt.lms.settings import LmsSettings

    return asdict(LmsSettings()) | more
