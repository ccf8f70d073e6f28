"""Jobs that are asked to stop, at any moment: one durable step, the same on all ranks, and exit code 75.

One case is one job (:mod:`_preemption_job`) that trains, validates and saves until it is asked to stop: by a signal to
one rank, to all, to all processes of the job, to the launcher, or to a batch script that hands it on; by the file
``HALT``; or by the end of its walltime.  One job in four is a ``fit`` of Keras with Horovod.
It is asked while a rank warms up, computes, validates, or while a save drains.  Then all that is visible is read, and
the next job, on another number of ranks, must go on from the step that this one stopped at.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery, journal
from hpcckpt.testing.ranks import run_ranks
from tests.campaign import _preemption_job as job
from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign._preemption_job import Order, Shown
from tests.campaign._preemption_running import BrokenPromiseError, Plan, Request, Running, ask, find_mpirun, is_in

SITUATIONS = ("warm-up", "step", "validation", "drain", "any time")
RESERVE_S = 600.0
"""So long that a job is not over before it has begun, on a machine that has much else to do."""
PATIENCE_S = 3.0
"""More than by default: what is counted must not depend on what else the machine has to do."""


# -- one case --------------------------------------------------------------------------------------


def draw(case: Case) -> Plan:
    """Draw a job, and how it is asked to stop."""
    rng = case.rng
    is_keras = case.number % 4 == 1
    n_ranks = rng.choice([1, 2, 2, 2, 2, 3]) if is_keras else rng.choice([1, 2, 2, 2, 3, 3, 4])
    by = rng.choices(["SIGTERM", "SIGUSR1", "SIGUSR2", "HALT", "walltime"], [4, 3, 2, 1, 1])[0]
    whom = rng.choices(["one rank", "all ranks", "all processes", "the launcher", "the script"], [5, 3, 2, 2, 2])[0]
    if whom == "the launcher" and (n_ranks == 1 or by == "SIGTERM"):  # on SIGTERM it kills its ranks itself
        whom = "the script"
    when = rng.choice(SITUATIONS)
    request = Request(by, whom, rng.randrange(n_ranks), when, rng.choice([0, 0.002, 0.02]), rng.random() < 0.2)
    return Plan(_order(case, request, is_keras=is_keras), request, n_ranks, is_keras)


def _order(case: Case, request: Request, *, is_keras: bool) -> Order:
    rng, when = case.rng, request.when
    paths = {name: str(case.scratch / name) for name in ("directory", "diary", "board")}
    options: dict[str, Any] = {"halt_every_s": 0.05 if request.by == "HALT" else 10.0, "patience_s": PATIENCE_S}
    if request.by == "walltime":
        options |= {"job_end": time.time() + (15.0 if is_keras else 3.0) + RESERVE_S, "reserve": RESERVE_S}
    return Order(
        **paths,
        is_synchronous=is_keras or rng.random() < 0.8,
        warm_up_s=0.3 if when == "warm-up" else 0.0,
        step_s=rng.choice([0.001, 0.004, 0.02]),
        drain_s=0.15 if when == "drain" else rng.choice([0, 0, 0.02]),
        save_every=rng.choice([3, 5, 50]) if when != "drain" else 5,
        validate_every=rng.choice([2, 10]),
        n_validation=rng.choice([2, 10]),
        stops_in_validation=rng.random() < 0.5 or is_keras,  # Keras: behind it
        stops_in_warm_up=rng.random() < 0.5 and not is_keras,
        saves_first=rng.random() < 0.5,
        has_worker=not is_keras and (rng.random() < 0.4 or request.whom == "all processes"),
        seed=rng.randrange(1 << 30),
        watch=options,
    )


def run(case: Case) -> Outcome:
    """Run a job, ask it to stop, and look at what it left."""
    plan = draw(case)
    job.make_board(Path(plan.order.board))
    Path(plan.order.directory).mkdir()
    running = Running(plan, case.scratch / "log")
    try:
        figures = stop(running, plan.request, case)
        return Outcome("good", str(plan), figures={**figures, "ranks": float(plan.n_ranks)})
    except BrokenPromiseError as broken:
        return Outcome(broken.verdict, str(plan), f"{broken}\n{plan.n_ranks} ranks, {plan.request!r}\n{plan.order}")
    finally:
        running.end()


def stop(running: Running, request: Request, case: Case) -> dict[str, float]:
    """Ask the job to stop when it is time, and check how it ends."""
    was_seen = True
    if request.by != "walltime":  # which comes by itself
        assert running.wait_for(lambda shown: all(one.activity != "nothing" for one in shown)), running.tail()
        time.sleep(case.rng.uniform(0, 0.5) if request.when == "any time" else 0.0)
        was_seen = running.wait_for(is_in(request), 30.0 if running.plan.is_keras else 5.0)
        time.sleep(request.later_s)
    shown = ask(running, request)
    asked = time.time()
    code = running.wait()
    seconds = time.time() - asked
    if code != hc.preemption.EXIT_CODE:
        raise BrokenPromiseError("wrong", f"exit code {code}\n{running.tail()}")
    step = check_told(running)
    late = step - max(one.step for one in shown)
    if is_bounded(running.plan) and late > 1 + has_no_boundary(running.order, shown):
        raise BrokenPromiseError("wrong", f"step {step} is the last one, {late} later\n{shown}\n{running.tail()}")
    if request.by == "walltime" and running.order.watch["job_end"] < time.time():
        raise BrokenPromiseError("wrong", f"the job ended after its walltime\n{running.tail()}")
    durable = check_steps(running, step)
    check_goes_on(running.plan, step, case)
    figures = {"situation met": float(was_seen)}
    if not is_bounded(running.plan):
        return figures
    kind = "Keras" if running.plan.is_keras else "loop"
    times = {
        f"{kind}: seconds until it is durable": max(0.0, durable - asked),
        f"{kind}: until the job has ended": seconds,
    }
    return figures | {"steps later": float(late)} | times


def is_bounded(plan: Plan) -> bool:
    """Return True if it can be said which step was going on when the job was asked."""
    is_direct = plan.request.by.startswith("SIG") and plan.request.whom not in {"the launcher", "the script"}
    return plan.order.is_synchronous and is_direct


def has_no_boundary(order: Order, shown: list[Shown]) -> bool:
    """Return True if a rank is where no boundary comes before the next step has ended."""
    activities = {one.activity for one in shown}
    is_behind_it = not order.saves_first and any(one.is_draining and one.step % order.save_every == 0 for one in shown)
    return (
        "boundary" in activities  # which may have looked already
        or (not order.stops_in_validation and "validation" in activities)
        or (not order.stops_in_warm_up and "warm-up" in activities)
        or is_behind_it  # it saves what it has asked about already
    )


def check_told(running: Running) -> int:
    """Check that all ranks stopped at one step; return it."""
    told = job.read_diary(Path(running.order.diary))
    if sorted(line["rank"] for line in told) != list(range(running.n_ranks)):
        raise BrokenPromiseError("wrong", f"not all ranks stopped: {told}\n{running.tail()}")
    if len({line["stopped"] for line in told}) != 1:
        raise BrokenPromiseError("wrong", f"the ranks stopped at different steps: {told}")
    if any(line["has_lost_worker"] for line in told):
        raise BrokenPromiseError("wrong", f"a worker was lost before the end: {told}")
    return int(told[0]["stopped"])


def check_steps(running: Running, last: int) -> float:
    """Check that the last step is there, whole, and nothing that was not to be; return when it was published."""
    directory = Path(running.order.directory)
    infos = discovery.scan(directory)
    steps = [info.step for info in infos]
    regular = range(running.order.save_every, last + 1, running.order.save_every)
    if not steps or steps[-1] != last:
        raise BrokenPromiseError("lost", f"the ranks stopped at step {last}; there are {steps[-5:]}\n{running.tail()}")
    extra = set(steps) - set(regular) - {last}
    missing = set(regular) - set(steps)
    if extra or missing:
        raise BrokenPromiseError("wrong", f"steps {sorted(extra)} are there, {sorted(missing)} are not")
    for info in infos:
        if not info.is_restorable or open_step(info.path).verify():
            raise BrokenPromiseError("wrong", f"step {info.step} is not whole: {info.problem}")
        if set(hc.load(info.path)["w"].tolist()) != {float(info.step)}:
            raise BrokenPromiseError("wrong", f"step {info.step} holds other values")
    side = {journal.NAME, layout.HALTED}
    left = [name for name in os.listdir(directory) if not name.startswith("step-") and name not in side]
    if left:
        raise BrokenPromiseError("wrong", f"left behind: {left}")
    return infos[-1].path.stat().st_ctime


def check_goes_on(plan: Plan, last: int, case: Case) -> None:
    """Check that the next job goes on from the last step."""
    if plan.is_keras:
        if case.rng.random() < 0.3:
            check_fit_goes_on(plan, last, case)
        return

    def body(comm: Any) -> int:
        state = {"w": np.zeros(4096), "mine": hc.PerRank(np.zeros(8))}
        with hc.Checkpointer(plan.order.directory, comm=comm, max_to_keep=None) as ckpt:
            step = ckpt.restore(state).step
            assert set(state["w"].tolist()) == {float(step)}
            ckpt.save(step + 1, state)
        return step

    if set(run_ranks(case.rng.choice([1, 2, 3]), body)) != {last}:
        raise BrokenPromiseError("lost", f"the next job did not go on from step {last}")


def check_fit_goes_on(plan: Plan, last: int, case: Case) -> None:
    """Check that a ``fit`` goes on from the last step, and comes to its end two steps later."""
    order = replace(plan.order, n_steps=last + 2, drain_s=0.0, watch={"signals": (), "halt_every_s": 0})
    again = Running(replace(plan, order=order, request=Request("HALT")), case.scratch / "log-2")
    try:
        code = again.wait()
        if code or f"resume step={last} " not in again.tail():
            raise BrokenPromiseError("lost", f"the next job did not go on from step {last}: {code}\n{again.tail()}")
    finally:
        again.end()


def reason_to_skip() -> str:
    """Say what is not here."""
    if find_mpirun() is None:
        return "no mpirun on the PATH"
    return "" if find_spec("horovod") else "no Horovod"


CAMPAIGN = Campaign(
    "preemption",
    "Jobs asked to stop at any moment, by signals to one rank or to all, HALT or their walltime: one durable step, the "
    "same on all ranks, within one step of the one that was going on, exit code 75, no worker lost, nothing left over.",
    full=100,
    run=run,
    timeout_s=1200.0,
    jobs=1,
    in_memory=True,
    reason_to_skip=reason_to_skip,
)
