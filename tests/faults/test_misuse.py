"""Ranks that make different calls are told so, all of them, and none waits for long."""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.checkpointer import shutdown
from hpcckpt.checkpointer.session import Session
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.collective.deadlines import Patience
from hpcckpt.core import failpoints
from hpcckpt.rundir import discovery
from hpcckpt.testing.faults import Fault, armed
from hpcckpt.testing.ranks import run_ranks

SOON = Patience(first_note_s=0.05, every_s=0.05, status_s=0.02, status_every_s=0.02)
N_RANKS = 3


def state(step: int = 1) -> dict[str, Any]:
    return {"w": np.full(10, float(step))}


def until_told(ckpt: Any) -> None:
    """Poll, as a training does, until it raises."""
    while True:
        ckpt.poll()
        threading.Event().wait(0.001)


def then_poll(ckpt: Any, call: Callable[[Any], Any]) -> None:
    """Make a call, then poll until that raises."""
    call(ckpt)
    until_told(ckpt)


def ended(ckpt: Any) -> None:
    """End as a process does whose program is over; threads have no end of a program."""
    ckpt.comm.calls.end("ended its program")
    until_told(ckpt)


CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "close and save": (lambda c: c.close(), lambda c: (c.save(2, state(2)).result(), c.save(3, state(3)).result())),
    "latest_step and save": (lambda c: c.latest_step(), lambda c: (c.save(2, state(2)).result(), c.close())),
    "restore and save": (lambda c: c.restore(state()), lambda c: (c.save(2, state(2)).result(), c.close())),
    "restore of other steps": (lambda c: c.restore(state(), step=1), lambda c: c.restore(state())),
    "restore, strict and not": (lambda c: c.restore(state(), strict=False), lambda c: c.restore(state())),
    "overwrite": (lambda c: (c.save(1, state(), overwrite=True).result(), until_told(c)), lambda c: c.save(1, state())),
    "a rank that ends": (ended, lambda c: (c.save(2, state(2)), c.close())),
    "a rank that saves alone": (lambda c: (c.save(2, state(2)), c.save(3, state(3)).result()), lambda c: c.close()),
    "best_step and pin": (lambda c: c.pin(1), lambda c: c.unpin(1)),
}


@pytest.mark.parametrize("odd", range(N_RANKS))
@pytest.mark.parametrize("what", CALLS)
def test_different_calls_are_the_same_error_on_every_rank(run_dir, what, odd):
    its, theirs = CALLS[what]

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm, keep_best="loss")
        ckpt.save(1, state(), metrics={"loss": 1.0}).result()
        comm.barrier()
        with pytest.raises(errors.CollectiveMisuseError) as caught:
            then_poll(ckpt, its if comm.rank == odd else theirs)
        for call in (lambda: ckpt.save(9, state()), ckpt.close, ckpt.latest_step, ckpt.poll):
            with pytest.raises(errors.CollectiveMisuseError) as again:
                call()
            assert str(again.value) == str(caught.value)
        return str(caught.value)

    texts = run_ranks(N_RANKS, body, timeout_s=60.0, patience=SOON)
    assert texts == [texts[0]] * N_RANKS
    assert f"rank {odd} " in texts[0]
    assert hc.load(run_dir, step=1)["w"].tolist() == [1.0] * 10
    with hc.Checkpointer(run_dir, on_newer="aside") as ckpt:  # the lock was released
        assert ckpt.restore(state()).step in {1, 2}


def test_a_rank_that_ends_during_a_save_does_not_wait_for_ranks_in_a_call(run_dir):
    """It waits for the reports of the others; they wait for it in a call, in which they send none."""

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state()).result()
        ckpt.save(2, state(2))
        comm.barrier()
        if comm.rank == 0:  # as `exiting` does when the program is over
            ckpt.comm.calls.ending = shutdown.ENDED
        with pytest.raises(errors.CollectiveMisuseError) as caught:
            ckpt._session.finish() if comm.rank == 0 else ckpt.latest_step()
        return str(caught.value)

    texts = run_ranks(N_RANKS, body, timeout_s=60.0, patience=SOON)
    assert texts == [texts[0]] * N_RANKS
    assert "rank 0 ended its program" in texts[0]
    assert hc.load(run_dir, step=1)["w"].tolist() == [1.0] * 10


@pytest.mark.parametrize("odd", range(N_RANKS))
@pytest.mark.parametrize("is_saving", [False, True])
def test_a_rank_that_leaves_its_block_by_an_exception_is_named_with_it(run_dir, odd, is_saving):
    def body(comm):
        try:
            with hc.Checkpointer(run_dir, comm=comm) as ckpt:
                saving = ckpt.save(1, state())
                if not is_saving:
                    saving.result()
                if comm.rank == odd:
                    raise ValueError("own mistake")
                ckpt.save(2, state(2)).result()
                ckpt.save(3, state(3)).result()
        except (ValueError, errors.CollectiveMisuseError) as error:
            return str(error)
        return "no error"

    texts = run_ranks(N_RANKS, body, timeout_s=60.0, patience=SOON)
    assert texts.pop(odd) == "own mistake"
    start = f"rank {odd} left its Checkpointer block by ValueError: own mistake, and rank "
    assert all(text.startswith(start) for text in texts), texts
    with hc.Checkpointer(run_dir) as ckpt:  # the lock was released
        assert ckpt.restore(state()).step == 1


@pytest.mark.parametrize("is_saving", [False, True])
def test_a_checkpointer_whose_block_an_exception_ended_is_closed(run_dir, is_saving):
    ckpt = hc.Checkpointer(run_dir)
    saving = ckpt.save(1, state())
    if not is_saving:
        saving.result()
    ckpt.__exit__(ValueError, ValueError("own"), None)
    with pytest.raises(errors.ClosedError, match="make a new one"):
        ckpt.save(2, state(2))
    ckpt.close()
    with hc.Checkpointer(run_dir) as ckpt:
        assert ckpt.restore(state()).step == 1


def test_a_save_in_flight_of_a_run_that_ended_is_not_committed_over_later_ones(run_dir, monkeypatch, caplog):
    monkeypatch.setattr(Session, "let_saves_end", lambda self: None)  # as if the others reported too late

    def body(comm):
        first = hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, on_newer="aside")
        first.save(1, state()).result()
        first.save(2, state(2))
        first.__exit__(ValueError, ValueError("own"), None)
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, on_newer="aside") as ckpt:
            assert ckpt.restore(state()).step == 1
            ckpt.save(3, state(3)).result()
        shutdown._finish(first._session)  # as at the end of the program

    run_ranks(2, body, timeout_s=60.0)
    assert discovery.step_numbers(run_dir) == [1, 3]
    assert "step 2" in caplog.text
    assert "went on without this step" in caplog.text


@pytest.mark.parametrize("slow_rank", range(N_RANKS))
def test_a_rank_that_writes_for_long_is_waited_for_by_those_that_leave_with_it(run_dir, monkeypatch, slow_rank):
    monkeypatch.setattr("hpcckpt.checkpointer.session.GRACE_S", 0.4)
    never = threading.Event()

    def slow(phase: str, rank: int) -> None:
        if (phase, rank) == ("2-written", slow_rank):
            never.wait(2.0)  # storage that is slower than a rank of which nothing is known is waited for

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state())
        ckpt.__exit__(ValueError, ValueError("own"), None)
        return ckpt._session.is_saving

    failpoints.install_hook(slow)
    try:
        assert run_ranks(N_RANKS, body, timeout_s=60.0) == [False] * N_RANKS
    finally:
        failpoints.install_hook(None)
    assert discovery.step_numbers(run_dir) == [1]


@pytest.mark.parametrize("slow_rank", range(2))
def test_a_rank_that_leaves_waits_for_one_that_writes_within_a_call(run_dir, monkeypatch, slow_rank):
    monkeypatch.setattr("hpcckpt.checkpointer.session.GRACE_S", 0.4)
    never = threading.Event()

    def slow(phase: str, rank: int) -> None:
        if (phase, rank) == ("2-written", slow_rank):
            never.wait(2.0)

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        saving = ckpt.save(1, state())
        if comm.rank == slow_rank:
            assert saving.result().step == 1
        ckpt.__exit__(ValueError, ValueError("own"), None)
        return ckpt._session.is_saving

    failpoints.install_hook(slow)
    try:
        assert run_ranks(2, body, timeout_s=60.0, patience=SOON) == [False, False]
    finally:
        failpoints.install_hook(None)
    assert discovery.step_numbers(run_dir) == [1]


def test_ranks_that_leave_wait_for_a_commit_however_long_it_lasts(run_dir, monkeypatch):
    monkeypatch.setattr("hpcckpt.checkpointer.session.GRACE_S", 0.4)
    never = threading.Event()

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=1)
        ckpt.save(1, state())
        ckpt.__exit__(ValueError, ValueError("own"), None)
        return ckpt._session.is_saving

    failpoints.install_hook(lambda phase, _rank: phase == "4-sealed" and never.wait(3.0))
    try:
        assert run_ranks(2, body, timeout_s=60.0) == [False, False]
    finally:
        failpoints.install_hook(None)


@pytest.mark.parametrize("scratch", [False, True])
def test_a_first_save_is_committed_over_earlier_runs_though_its_run_is_ended(run_dir, tmp_path, scratch):
    where = {"scratch": tmp_path / "scratch"} if scratch else {}
    with hc.Checkpointer(run_dir, **where) as ckpt:
        ckpt.save(1, state())
    is_left = threading.Event()
    failpoints.install_hook(lambda phase, _rank: phase == "2-written" and is_left.wait(0.5))
    try:
        ckpt = hc.Checkpointer(run_dir, **where)
        ckpt.restore(state())
        ckpt.save(2, state(2))
        ckpt.__exit__(ValueError, ValueError("own"), None)
        with hc.Checkpointer(run_dir, **where) as ckpt:
            assert ckpt.restore(state()).step == 2
    finally:
        failpoints.install_hook(None)
    assert discovery.step_numbers(run_dir) == [1, 2]


def test_a_save_on_scratch_of_a_run_that_ended_moves_no_step_of_the_next_aside(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "let_saves_end", lambda self: None)  # as if the others reported too late
    options: dict[str, Any] = {"max_to_keep": None, "on_newer": "aside"}

    def body(comm):
        first = hc.Checkpointer(run_dir, comm=comm, scratch=tmp_path / "scratch", **options)
        first.save(1, state()).durable()
        first.save(2, state(2))
        first.__exit__(ValueError, ValueError("own"), None)
        with hc.Checkpointer(run_dir, comm=comm, **options) as ckpt:
            assert ckpt.restore(state()).step == 1
            ckpt.save(3, state(3)).result()
        shutdown._finish(first._session)  # as at the end of the program
        first._session.close()

    run_ranks(2, body, timeout_s=60.0)
    assert discovery.step_numbers(run_dir) == [1, 3]


def test_ranks_that_leave_do_not_wait_for_long_for_one_that_does_not(run_dir, monkeypatch):
    monkeypatch.setattr("hpcckpt.checkpointer.session.GRACE_S", 0.2)
    others_left = threading.Barrier(N_RANKS)

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state())
        if comm.rank == 1:  # trains on
            others_left.wait(30.0)
        ckpt.__exit__(ValueError, ValueError("own"), None)
        if comm.rank != 1:
            others_left.wait(30.0)

    run_ranks(N_RANKS, body, timeout_s=60.0)


def test_a_save_that_a_rank_which_ended_never_began_delays_no_error(run_dir, monkeypatch):
    """Under mpirun the rank that ended ends the job a second later."""
    monkeypatch.setattr("hpcckpt.checkpointer.session.GRACE_S", 60.0)
    have_saved = threading.Barrier(N_RANKS)

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state()).result()
        if comm.rank == 1:
            have_saved.wait(30.0)
            ckpt.comm.calls.end("ended with ValueError: own")
            return 0.0
        ckpt.save(2, state())
        have_saved.wait(30.0)
        began = time.monotonic()
        with pytest.raises(errors.CollectiveMisuseError, match="own"):
            ckpt.close()
        return time.monotonic() - began

    assert max(run_ranks(N_RANKS, body, timeout_s=100.0, patience=SOON)) < 30.0


def test_a_drain_of_a_run_that_ended_does_not_move_aside_the_steps_of_the_next(run_dir, tmp_path):
    goes_on, options = threading.Event(), {"max_to_keep": None, "on_newer": "aside"}

    def body(comm):
        first = hc.Checkpointer(run_dir, comm=comm, scratch=tmp_path / "scratch", **options)
        first.save(1, state()).durable()
        failpoints.install_hook(lambda phase, _rank: phase == "drain-begun" and goes_on.wait(30.0))
        first.save(2, state(2)).result()
        first.__exit__(ValueError, ValueError("own"), None)
        with hc.Checkpointer(run_dir, comm=comm, **options) as ckpt:
            assert ckpt.restore(state()).step == 1
            ckpt.save(3, state(3)).result()
        comm.barrier()
        goes_on.set()
        shutdown._finish(first._session)  # as at the end of the program
        first._session.close()

    try:
        run_ranks(2, body, timeout_s=60.0)
    finally:
        goes_on.set()
        failpoints.install_hook(None)
    assert discovery.step_numbers(run_dir) == [1, 3]


def test_an_exception_leaves_the_block_when_this_rank_has_written_its_part(run_dir, monkeypatch):
    monkeypatch.setattr("hpcckpt.checkpointer.session.GRACE_S", 0.3)
    is_left = threading.Event()

    def slow(phase: str, _rank: int) -> None:
        if phase == "2-written":
            is_left.wait(1.0)  # longer than other ranks are waited for

    failpoints.install_hook(slow)
    try:
        ckpt = hc.Checkpointer(run_dir)
        ckpt.save(1, state())
        ckpt.__exit__(ValueError, ValueError("own"), None)
    finally:
        is_left.set()
        failpoints.install_hook(None)
    assert discovery.step_numbers(run_dir) == [1]


def test_a_checkpointer_that_is_refused_frees_its_communicator(run_dir, monkeypatch):
    freed = []
    monkeypatch.setattr(SerialCommunicator, "free", lambda self: freed.append(self))
    with pytest.raises(errors.OptionError):
        hc.Checkpointer(run_dir, comm=SerialCommunicator(), max_to_keep=-1)
    assert len(freed) == 1


def test_only_the_newest_step_of_a_run_can_be_replaced_and_that_is_the_reason_given(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).result()
        with pytest.raises(errors.NewerStepError, match="only the newest step can be replaced"):
            ckpt.save(1, state(3), overwrite=True).result()
        ckpt.save(2, state(4), overwrite=True).result()
    assert hc.load(run_dir)["w"][0] == 4


def test_a_save_of_a_forgotten_checkpointer_is_committed_before_the_next_is_made(run_dir):
    hc.Checkpointer(run_dir).save(1, state())
    gc.collect()
    with hc.Checkpointer(run_dir) as ckpt:
        assert ckpt.latest_step() == 1
        assert ckpt.restore(state()).step == 1
        ckpt.save(2, state(2)).result()


def test_a_function_that_is_called_with_each_step_cannot_break_the_saves(ranks, run_dir, caplog):
    def body(comm):
        called = []
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.on_saved(lambda _: ckpt.wait())
            ckpt.on_saved(lambda _: 1 / 0)
            ckpt.on_saved(lambda saved: called.append(saved.step))
            for step in (1, 2, 3):
                ckpt.save(step, state(step))
        return called

    assert ranks(body) == [[1, 2, 3]] * ranks.size
    shown = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert any("may not call the checkpointer" in text for text in shown)
    assert "division by zero" in shown
    assert hc.load(run_dir)["w"][0] == 3


def test_the_error_names_both_ranks_and_their_calls(run_dir):
    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        with pytest.raises(errors.CollectiveMisuseError) as caught:
            then_poll(ckpt, lambda c: c.save(1, state()) if comm.rank == 0 else c.close())
        return str(caught.value)

    texts = run_ranks(2, body, timeout_s=60.0, patience=SOON)
    assert (
        texts == ["rank 0 is in save(1), rank 1 in close(): all ranks must make the same calls, in the same order"] * 2
    )


def test_a_rank_that_was_several_calls_ahead_is_compared_at_each(run_dir):
    """Root waits for no other rank in calls that only look."""
    is_ahead = threading.Event()

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        comm.barrier()
        with pytest.raises(errors.CollectiveMisuseError) as caught:
            (ahead if comm.rank == 0 else behind)(ckpt)
        return str(caught.value)

    def ahead(ckpt):
        for _ in range(4):
            ckpt.latest_step()
        is_ahead.set()
        until_told(ckpt)

    def behind(ckpt):
        assert is_ahead.wait(60)
        then_poll(ckpt, lambda c: (c.has_steps(), c.latest_step()))

    texts = run_ranks(2, body, timeout_s=60.0, patience=SOON)
    assert "rank 0 is in latest_step(), rank 1 in has_steps()" in texts[0]


def test_the_error_names_an_option_that_differs(run_dir):
    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state()).result()
        with pytest.raises(errors.CollectiveMisuseError) as caught:
            then_poll(ckpt, lambda c: c.restore(state(), strict=comm.rank == 0))
        return str(caught.value)

    texts = run_ranks(2, body, timeout_s=60.0, patience=SOON)
    assert "rank 0 is in restore(step=None, strict=True), rank 1 in restore(step=None, strict=False)" in texts[0]


def test_ranks_that_save_different_steps_can_save_again(run_dir):
    """That is not fatal: what the ranks hold is known, and each save is a new one."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state()).result()
            with pytest.raises(errors.TreeMismatchError):
                ckpt.save(2 + comm.rank, state()).result()
            return ckpt.save(5, state(5)).result().step

    assert run_ranks(N_RANKS, body, timeout_s=60.0) == [5] * N_RANKS


@pytest.mark.parametrize("call", ["save", "latest_step", "restore", "close"])
def test_a_waiting_rank_logs_which_rank_has_not_come(run_dir, caplog, call):
    """The ranks that wait know the last call of the rank that does not come; when it comes all is well."""
    seen = threading.Event()

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        if call != "save":
            ckpt.save(7, state()).result()
        if comm.rank == 1:
            assert seen.wait(60)
        calls = {
            "save": lambda: ckpt.save(7, state()).result(),
            "latest_step": lambda: (ckpt.latest_step(), ckpt.comm.barrier()),
            "restore": lambda: ckpt.restore(state()),
            "close": ckpt.close,
        }
        calls[call]()
        ckpt.close()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if re.search(r"\[rank [02]\] .*rank 1 has not entered a call of hpcckpt since", record.getMessage()):
                seen.set()

    handler = Watching()
    logging.getLogger("hpcckpt").addHandler(handler)
    try:
        run_ranks(N_RANKS, body, timeout_s=100.0, patience=SOON)
    finally:
        logging.getLogger("hpcckpt").removeHandler(handler)


def test_a_rank_that_does_not_come_ends_the_job_at_the_time_out(run_dir, caplog):
    done = threading.Event()

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=0.5)
        ckpt.save(1, state()).result()
        comm.barrier()
        if comm.rank == 1:
            assert done.wait(60)
            return
        try:
            ckpt.restore(state())
        finally:
            done.set()

    with caplog.at_level(logging.CRITICAL, "hpcckpt"), pytest.raises(SystemExit):
        run_ranks(2, body, timeout_s=100.0, patience=SOON)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert any(
        "restore()" in text and "rank 1 has not entered a call of hpcckpt since save(1)" in text for text in said
    )


@pytest.mark.parametrize("stalled", range(N_RANKS))
def test_a_read_that_stalls_is_named_and_is_the_same_error_on_all(run_dir, caplog, stalled):
    go_on = threading.Event()

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=1.0)
        ckpt.save(1, state()).result()
        comm.barrier()
        with pytest.raises(errors.PeerTimeoutError) as caught:
            ckpt.restore(state())
        return str(caught.value)

    def stall(phase: str, rank: int) -> None:
        if phase == "9-restore" and rank == stalled:
            go_on.wait(100)

    from hpcckpt.core import failpoints

    failpoints.install_hook(stall)
    try:
        texts = run_ranks(N_RANKS, body, timeout_s=100.0, patience=SOON)
    finally:
        failpoints.install_hook(None)
        go_on.set()
    assert texts == [texts[0]] * N_RANKS
    assert f"rank {stalled} is in restore() (reads" in texts[0]
    assert "bytes so far" in texts[0]
    others = [r.getMessage() for r in caplog.records if f"rank {stalled} is in restore() (reads" in r.getMessage()]
    assert any(f"[rank {stalled}]" not in text for text in others)


STALLED = """
import sys, threading
import numpy as np
import hpcckpt as hc
from hpcckpt import errors; from hpcckpt.core import failpoints as phases
from hpcckpt.testing.ranks import run_ranks

def body(comm):
    ckpt = hc.Checkpointer(sys.argv[1], comm=comm, peer_timeout_s=0.5)
    ckpt.save(1, {"w": np.ones(10)}).result()
    phases.install_hook(lambda phase, rank: phase == "9-restore" and rank == 1 and threading.Event().wait())
    try:
        ckpt.restore({"w": np.ones(10)})
    except errors.PeerTimeoutError:
        return "timed out"

print(run_ranks(2, body, timeout_s=100.0))
"""


def test_a_program_can_end_while_a_read_never_returns(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", STALLED, str(tmp_path / "run")], timeout=60, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "['timed out', 'timed out']\n"), ended.stderr


def test_a_rank_that_is_interrupted_in_a_call_is_an_error_on_the_others(run_dir):
    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state()).result()
        comm.barrier()
        with pytest.raises((KeyboardInterrupt, errors.CollectiveError)) as caught:
            ckpt.restore(state())
        assert ckpt.restore(state()).step == 1
        ckpt.close()
        return type(caught.value).__name__

    with armed(Fault("9-restore", "raise", 1, error=KeyboardInterrupt())):
        names = run_ranks(N_RANKS, body, timeout_s=100.0)
    assert names == ["CollectiveError", "KeyboardInterrupt", "CollectiveError"]
