"""Ctrl-C at any line of a call leaves a checkpointer that works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors

PACKAGE = str(Path(hc.__file__).parent)
FOLLOWED = ("checkpointer", "saving", "draining", "settling", "closing", "exchange", "communicator", "writing")
"""Modules that wait, or keep what came from other ranks and threads."""


class Interrupting:
    """Raises KeyboardInterrupt at one line of `FOLLOWED` that this thread executes, counted from 0 on."""

    def __init__(self, at: int) -> None:
        self.n_left = at
        self.is_raised = False

    def __call__(self, frame: Any, event: str, arg: object) -> Any:
        del arg
        name = frame.f_code.co_filename
        if not (name.startswith(PACKAGE) and Path(name).stem in FOLLOWED):
            return None
        if event == "line" and not self.is_raised:
            self.n_left -= 1
            if self.n_left < 0:
                self.is_raised = True
                raise KeyboardInterrupt
        return self

    def during(self, call: Callable[[], Any]) -> None:
        """Call a function and interrupt it."""
        sys.settrace(self)
        try:
            call()
        except (KeyboardInterrupt, errors.CollectiveError):
            pass
        finally:
            sys.settrace(None)


def saved(ckpt: Any, step: int) -> Any:
    """Save a step after an interrupt; a save that the interrupt made fail is reported once, by the next call."""
    try:
        return ckpt.save(step, {"w": np.full(10, float(step))}).result()
    except errors.CollectiveError as error:
        assert "KeyboardInterrupt" in str(error)  # noqa: PT017
        return ckpt.save(step, {"w": np.full(10, float(step))}).result()


def interrupted(run_dir: Path, at: int, call: str, **options: Any) -> bool:
    """Interrupt a call at a line; return False if it has fewer lines."""
    ckpt = hc.Checkpointer(run_dir / str(at), backend="rankfile", **options)
    ckpt.save(1, {"w": np.ones(10)}).result()
    interrupting = Interrupting(at)
    pending = None if call == "save" else ckpt.save(2, {"w": np.full(10, 2.0)})
    calls: dict[str, Callable[[], Any]] = {
        "save": lambda: ckpt.save(2, {"w": np.full(10, 2.0)}).result(),
        "result": lambda: pending.result(),  # type: ignore[union-attr]
        "wait": ckpt.wait,
        "close": ckpt.close,
    }
    interrupting.during(calls[call])
    if call == "close":
        ckpt.close()
        assert hc.load(run_dir / str(at))["w"].tolist() == [2.0] * 10
    else:
        saved(ckpt, 3)
        ckpt.close()
        steps = {step: hc.load(run_dir / str(at), step=step)["w"] for step in (1, 2, 3) if step != 2 or call != "save"}
        assert {step: set(w.tolist()) for step, w in steps.items()} == {step: {float(step)} for step in steps}
    return interrupting.is_raised


@pytest.mark.parametrize("call", ["save", "result", "wait", "close"])
def test_a_call_that_was_interrupted_at_any_line_leaves_a_working_checkpointer(run_dir, call):
    at = 0
    while interrupted(run_dir, at, call):
        at += 1
    assert at > 20


def test_a_save_that_reads_the_state_itself_and_is_interrupted_is_not_torn(run_dir):
    """What it reads may change as soon as `save` has returned."""
    state = {"w": np.ones(10)}
    with hc.Checkpointer(run_dir, async_save=False, max_to_keep=None) as ckpt:
        for at in range(1, 300, 11):
            state["w"][:] = at
            Interrupting(at).during(lambda at=at: ckpt.save(2 * at, state))
            state["w"][:5] = -1.0
            saved(ckpt, 2 * at + 1)
        steps = ckpt.all_steps()
    assert all(len(set(hc.load(run_dir, step=step)["w"].tolist())) == 1 for step in steps)
