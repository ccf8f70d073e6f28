"""Ctrl-C at any line of a call leaves a checkpointer that works; of several ranks on all, or on none."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.collective import waits
from hpcckpt.collective.deadlines import Patience
from hpcckpt.restoring import restore
from hpcckpt.rundir import discovery
from hpcckpt.testing.faults import Fault, armed
from hpcckpt.testing.ranks import run_ranks

PACKAGE = str(Path(hc.__file__).parent)
FOLLOWED = (
    "checkpointer", "session", "save", "save_queue", "pending", "background", "thread_tasks", "outcomes", "outcome",
    "node_local", "restore", "communicator", "calls", "waits", "interrupts", "write",
)  # fmt: skip
"""Modules that wait, or keep what came from other ranks and threads."""
N_RANKS = 3
CALLS = ("save", "result", "wait", "close", "restore")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of saves need not wait for a disk."""
    memory = Path("/dev/shm")
    is_there = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="hpcckpt-test-", dir=memory if is_there else tmp_path) as made:
        yield Path(made)


class Interrupting:
    """Raises SIGINT at one line of `FOLLOWED` that this thread executes, counted from 0 on."""

    def __init__(self, at: int, function: str = "") -> None:
        self.n_left = at
        self.function = function
        self.is_raised = False

    def __call__(self, frame: Any, event: str, arg: object) -> Any:
        del arg
        code = frame.f_code
        if not (code.co_filename.startswith(PACKAGE) and Path(code.co_filename).stem in FOLLOWED):
            return None
        if event == "line" and not self.is_raised and self.function in {"", code.co_name}:
            self.n_left -= 1
            if self.n_left < 0:
                self.is_raised = True
                signal.raise_signal(signal.SIGINT)
        return self

    def during(self, call: Callable[[], Any]) -> None:
        """Call a function and interrupt it."""
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(None)


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(10, float(step))}


def loaded(run_dir: Path) -> dict[int, set[float]]:
    """Return the values of every step."""
    return {step: set(hc.load(run_dir, step=step)["w"].tolist()) for step in discovery.step_numbers(run_dir)}


def call_of(ckpt: Any, call: str, pending: Any, step: int) -> Callable[[], Any]:
    calls: dict[str, Callable[[], Any]] = {
        "save": lambda: ckpt.save(step, state(step)).result(),
        "result": lambda: pending.result(),
        "wait": ckpt.wait,
        "close": ckpt.close,
        "restore": lambda: ckpt.restore(state(0)),
    }
    return calls[call]


# -- one rank --------------------------------------------------------------------------------------


def saved(ckpt: Any, step: int) -> Any:
    """Save a step after an interrupt; a save that the interrupt made fail is reported once, by the next call."""
    try:
        return ckpt.save(step, state(step)).result()
    except errors.CollectiveError as error:
        assert "KeyboardInterrupt" in str(error)  # noqa: PT017
        return ckpt.save(step, state(step)).result()


def interrupted(ckpt: Any, run_dir: Path, at: int, call: str) -> bool:
    """Interrupt a call at a line; return False if it has fewer lines."""
    first = 3 * at + 1
    saved(ckpt, first)
    interrupting = Interrupting(at)
    pending = ckpt.save(first + 1, state(first + 1)) if call in {"result", "wait"} else None
    try:
        interrupting.during(call_of(ckpt, call, pending, first + 1))
    except (KeyboardInterrupt, errors.CollectiveError):
        pass
    saved(ckpt, first + 2)
    steps = loaded(run_dir)
    assert {first, first + 2, *([first + 1] if pending else [])} <= set(steps)
    assert steps == {step: {float(step)} for step in steps}
    return interrupting.is_raised


def closed(run_dir: Path, at: int) -> bool:
    """Interrupt `close` at a line; return False if it has fewer lines."""
    ckpt = hc.Checkpointer(run_dir)
    ckpt.save(2 * at, state(2 * at)).result()
    ckpt.save(2 * at + 1, state(2 * at + 1))
    interrupting = Interrupting(at)
    try:
        interrupting.during(ckpt.close)
    except KeyboardInterrupt:
        ckpt.close()
    assert not (run_dir / ".lock").exists()
    assert hc.load(run_dir)["w"].tolist() == [2.0 * at + 1] * 10
    return interrupting.is_raised


@pytest.mark.parametrize("call", ["result", *(pytest.param(c, marks=pytest.mark.slow) for c in CALLS if c != "result")])
def test_a_call_that_was_interrupted_at_any_line_leaves_a_working_checkpointer(base, call):
    at, run_dir = 0, base / "run"
    if call == "close":
        while closed(run_dir, at):
            at += 1
    else:
        with hc.Checkpointer(run_dir) as ckpt:
            while interrupted(ckpt, run_dir, at, call):
                at += 1
            if call == "restore":
                ckpt.restore(state(0))
        assert not (run_dir / ".pins").exists()
    assert at > 20


def test_a_save_that_reads_the_state_itself_and_is_interrupted_is_not_torn(run_dir):
    """What it reads may change as soon as `save` has returned."""
    w = {"w": np.ones(10)}
    with hc.Checkpointer(run_dir, async_save=False, max_to_keep=None) as ckpt:
        for at in range(1, 300, 11):
            w["w"][:] = at
            try:
                Interrupting(at).during(lambda at=at: ckpt.save(2 * at, w))
            except (KeyboardInterrupt, errors.CollectiveError):
                pass
            w["w"][:5] = -1.0
            saved(ckpt, 2 * at + 1)
    assert all(len(values) == 1 for values in loaded(run_dir).values())


# -- several ranks ---------------------------------------------------------------------------------


def error_of(call: Callable[[], Any]) -> str:
    """Return the class of the error that a call raises, or ""."""
    try:
        call()
    except errors.HpcckptError as error:
        return type(error).__name__
    return ""


def interrupted_in_group(run_dir: Path, at: int, call: str, odd: int) -> bool:
    """Interrupt one rank of three at a line of a call; return False if it has fewer lines."""
    interrupting = Interrupting(at)

    def body(comm: Any) -> str:
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=60.0)
        ckpt.save(1, state(1)).result()
        pending = ckpt.save(2, state(2)) if call in {"result", "wait", "close"} else None
        comm.barrier()
        act, found = call_of(ckpt, call, pending, 2), []
        try:
            found.append(error_of(lambda: interrupting.during(act) if comm.rank == odd else act()))
        except KeyboardInterrupt:
            assert comm.rank == odd
        if call != "close":
            found += [error_of(lambda step=step: ckpt.save(step, state(step)).result()) for step in (3, 4)]
        found.append(error_of(ckpt.close))
        return next(filter(None, found), "")

    first_errors = run_ranks(
        N_RANKS, body, timeout_s=60.0, patience=Patience(interrupt_s=30.0, status_s=0.05), main_rank=odd
    )
    assert first_errors == [first_errors[0]] * N_RANKS
    # where the interrupt came before the call began, this rank's next call is another one than theirs
    assert first_errors[0] in {"", "TreeMismatchError", "CollectiveMisuseError"}
    steps = loaded(run_dir)
    assert steps == {step: {float(step)} for step in steps}
    assert {1} <= set(steps) if first_errors[0] else {2 if call == "close" else 4} <= set(steps)
    return interrupting.is_raised


@pytest.mark.parametrize("call", CALLS)
def test_one_rank_of_three_that_is_interrupted_leaves_all_of_them_the_same(base, call):
    at = {"save": 5, "result": 0, "wait": 33, "close": 99, "restore": 7}[call]
    while interrupted_in_group(base / str(at), at, call, at % 2):
        at += 101


@pytest.mark.slow
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_one_rank_of_three_interrupted_at_any_line_leaves_all_the_same(base, call, odd):
    at = 0
    while interrupted_in_group(base / str(at), at, call, odd):
        at += 3 if call == "restore" else 1
    assert at > 100


@pytest.mark.parametrize("call", ["save", "latest_step", "restore", "close", "close after a save"])
def test_a_rank_interrupted_while_others_do_not_come_is_an_error_on_them(run_dir, call):
    """It waits for a moment, in which they may come; then all ranks may go on together, or are all closed."""
    has_left = threading.Event()

    def body(comm: Any) -> list[str]:
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=60.0)
        ckpt.save(1, state(1)).result()
        if call in {"save", "close after a save"}:
            ckpt.save(2, state(2))
        act = ckpt.latest_step if call == "latest_step" else call_of(ckpt, call.split()[0], None, 3)
        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                Interrupting(0, "_tick").during(act)
            has_left.set()
        else:
            assert has_left.wait(60)
            with pytest.raises(errors.CollectiveError, match="KeyboardInterrupt"):
                act()
        found = [] if call.startswith("close") else [error_of(lambda: ckpt.save(4, state(4)).result())]
        return [*found, error_of(ckpt.close)]

    found = run_ranks(N_RANKS, body, timeout_s=60.0, patience=Patience(interrupt_s=0.1, status_s=0.02), main_rank=1)
    assert set(map(tuple, found)) == {("",)} if call.startswith("close") else {("", "")}
    assert not (run_dir / ".lock").exists()
    steps = loaded(run_dir)
    assert steps == {step: {float(step)} for step in steps}
    assert {2 if call == "close after a save" else 1} <= set(steps)


def test_a_rank_that_hears_late_of_an_interrupt_does_not_go_on_with_the_call_alone(run_dir, monkeypatch):
    """Rank 2 is held up in its wait until root's news of rank 1 and the result that it waits for are both there."""
    has_left, is_waiting, is_sent = (threading.Event() for _ in range(3))
    tick, n_held = waits._tick, [0]

    def slow_tick(comm: Any, *args: Any) -> None:
        tick(comm, *args)
        if comm.rank == 2 and has_left.is_set() and not is_sent.is_set():
            n_held[0] += 1
            is_waiting.set()
            assert is_sent.wait(60)

    monkeypatch.setattr(waits, "_tick", slow_tick)

    def body(comm: Any) -> str:
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=60.0)
        ckpt.save(1, state(1)).result()
        ckpt.save(2, state(2))
        if comm.rank == 1:
            with pytest.raises(KeyboardInterrupt):
                Interrupting(0, "_tick").during(lambda: ckpt.save(3, state(3)))
            has_left.set()
        else:
            assert has_left.wait(60)
            assert comm.rank == 2 or is_waiting.wait(60)
            with pytest.raises(errors.CollectiveError, match="KeyboardInterrupt"):
                ckpt.save(3, state(3))
        pending = ckpt.save(4, state(4))
        if comm.rank == 0:
            is_sent.set()
        return error_of(lambda: (pending.result(), ckpt.close()))

    found = run_ranks(3, body, timeout_s=60.0, patience=Patience(interrupt_s=0.1, status_s=0.02), main_rank=1)
    assert (found, n_held) == ([""] * 3, [1])


def test_a_rank_that_receives_late_that_another_left_a_save_it_began_begins_it_too(run_dir, monkeypatch):
    """Rank 1 is held up until root has committed step 2, begun step 3, and been interrupted."""
    has_left, is_waiting = threading.Event(), threading.Event()
    tick = waits._tick

    def slow_tick(comm: Any, *args: Any) -> None:
        tick(comm, *args)
        if comm.rank == 1 and not has_left.is_set() and ckpts[1]._session.queue.in_flight[0].task.is_reported:
            is_waiting.set()
            assert has_left.wait(60)

    def body(comm: Any) -> list[str]:
        ckpt = ckpts[comm.rank] = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=60.0)
        ckpt.save(1, state(1)).result()
        ckpt.save(2, state(2))
        comm.barrier()
        monkeypatch.setattr(waits, "_tick", slow_tick)
        if comm.rank == 0:
            assert is_waiting.wait(60)
            with armed(Fault("0-plan", "raise", 0, error=KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
                ckpt.save(3, state(3))
            has_left.set()
        else:
            ckpt.save(3, state(3))
        return [error_of(ckpt.wait), error_of(lambda: ckpt.save(4, state(4)).result()), error_of(ckpt.close)]

    ckpts: dict[int, Any] = {}
    assert run_ranks(2, body, timeout_s=60.0) == [["CollectiveError", "", ""]] * 2
    assert set(loaded(run_dir)) == {1, 2, 4}


def twice(ckpt: Any) -> None:
    with ckpt.comm.calls.call("twice"):
        if ckpt.comm.rank > 0:
            ckpt.comm.barrier()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it was not raised")


def test_a_second_interrupt_within_a_call_takes_effect_at_once(run_dir):
    def body(comm: Any) -> None:
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state(1)).result()
        with pytest.raises(KeyboardInterrupt if comm.rank == 0 else errors.CollectiveError):
            twice(ckpt)
        ckpt.close()

    run_ranks(2, body, timeout_s=60.0, main_rank=0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_restore_that_was_interrupted_changes_the_state_no_more(run_dir, monkeypatch):
    """Its thread has ended its read when the interrupt is raised."""
    read, go_on, has_ended = restore._Reading.__call__, threading.Event(), []

    def slow_read(reading):
        go_on.wait(60.0)
        try:
            return read(reading)
        finally:
            has_ended.append(reading._rank)

    def interrupt(*_, **__):
        threading.Timer(0.1, go_on.set).start()
        raise KeyboardInterrupt

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, {"w": np.ones(10)}).result()
        comm.barrier()
        monkeypatch.setattr(restore._Reading, "__call__", slow_read)
        monkeypatch.setattr(restore, "wait_until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ckpt.restore({"w": np.zeros(10)})
        return comm.rank in has_ended

    assert run_ranks(2, body, timeout_s=60.0) == [True, True]
