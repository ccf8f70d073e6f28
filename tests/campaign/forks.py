"""Forked children that use their copy of a checkpointer, while the parent saves: no step of the parent is harmed.

One case is a run of some saves; while each is under way a child is forked, which does at random what programs do with
a copy: save, restore, poll, wait, pin, close, leave a ``with`` block, collect garbage, end.  It must end in time and
get the typed error from every method; each save of the parent must succeed, and each step hold what was saved.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.errors import ForkedError
from tests.campaign._common import Campaign, Case, Outcome

SAVES = 5
CHILD_S = 30.0
NBYTES = (64, 1 << 16, 4 << 20)
Use = Callable[[hc.Checkpointer, hc.PendingSave], Any]


def _leave(ckpt: hc.Checkpointer, _: hc.PendingSave) -> None:
    with ckpt:
        pass
    raise ForkedError  # leaving a block raises nothing, so that the program's own error is seen


def _collect(ckpt: hc.Checkpointer, _: hc.PendingSave) -> None:
    ckpt.__dict__.clear()
    gc.collect()
    raise ForkedError


USES: dict[str, Use] = {
    "save": lambda ckpt, _: ckpt.save(99, {"w": np.full(1000, -1.0)}).result(),
    "restore": lambda ckpt, _: ckpt.restore({"w": np.zeros(1000)}),
    "poll": lambda ckpt, _: ckpt.poll(),
    "wait": lambda ckpt, _: ckpt.wait(),
    "pin": lambda ckpt, _: ckpt.pin(1),
    "close": lambda ckpt, _: ckpt.close(),
    "result": lambda _, pending: pending.result(),
    "leave": _leave,
    "collect": _collect,
}


def _child(ckpt: hc.Checkpointer, pending: hc.PendingSave, use: Use) -> None:
    """End the process: with 0 if the use raised the typed error."""
    code = 1
    with contextlib.suppress(BaseException):
        try:
            use(ckpt, pending)
        except ForkedError:
            code = 0
    os._exit(code)


def _wait(pid: int) -> int | None:
    """Return how a child ended; ``None`` if it had to be killed."""
    end = time.monotonic() + CHILD_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run(case: Case) -> Outcome:
    """Save some steps, each with a child."""
    rng, directory = case.rng, case.scratch / "run"
    uses = [rng.choice(list(USES)) for _ in range(SAVES)]
    state = {"w": np.zeros(rng.choice(NBYTES) // 8)}
    with hc.Checkpointer(directory, max_to_keep=None, async_save=rng.random() < 0.8) as ckpt:
        for step, name in enumerate(uses, start=1):
            state["w"][:] = step
            pending = ckpt.save(step, state)
            time.sleep(rng.choice([0.0, 0.0, 0.0005, 0.003]))  # only varies how far the save is at the fork
            pid = os.fork()
            if pid == 0:
                _child(ckpt, pending, USES[name])
            code = _wait(pid)
            if code != 0:
                return Outcome("hung" if code is None else "wrong", name, f"{name} in a child ended with {code}")
            pending.result()
    damaged = [step for step in range(1, SAVES + 1) if set(hc.load(directory, step=step)["w"].tolist()) != {step}]
    return Outcome("lost", "damaged", f"steps {damaged}") if damaged else Outcome("good", f"{SAVES} children")


CAMPAIGN = Campaign(
    "forks",
    "a forked child that uses its parent's checkpointer gets a typed error, and harms no step and no save",
    full=40,
    run=run,
    in_memory=True,
)
