"""Threads that wait for each other, and collective tasks, when a signal raises an exception in them."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time

import pytest

from hpcckpt.collective.background import BackgroundTasks
from hpcckpt.collective.deadlines import Patience
from hpcckpt.collective.outcomes import capture
from hpcckpt.collective.thread_tasks import Task
from hpcckpt.core.system import Flag
from hpcckpt.testing.ranks import run_ranks


class InterruptionError(Exception):
    """What the signal's handler raises."""


@pytest.fixture
def interrupt():
    """Have a signal raise in this thread N seconds later."""

    def raise_one(number, frame):
        raise InterruptionError

    before = signal.signal(signal.SIGALRM, raise_one)
    gc.disable()  # what falls into a finalizer is lost
    yield lambda after_s: signal.setitimer(signal.ITIMER_REAL, after_s)
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_flag_can_be_set_wherever_an_exception_fell_into_a_wait(interrupt):
    """With a `threading.Event` this hangs after some dozen interruptions."""
    for _ in range(1000):
        flag = Flag()
        with contextlib.suppress(InterruptionError):
            interrupt(0.0001)
            while True:
                flag.clear()
                flag.wait(0.00001)
        setter = threading.Thread(target=flag.set, daemon=True)
        setter.start()
        setter.join(60)
        assert not setter.is_alive()


def test_a_flag_that_was_set_twice_lets_one_wait_through():
    flag = Flag()
    flag.set()
    flag.set()
    flag.wait()
    began = time.monotonic()
    flag.wait(0.01)
    assert time.monotonic() - began >= 0.01


def test_a_task_whose_go_flag_is_never_set_starts_by_itself():
    woken = Flag()
    task = Task(lambda: 7, woken, Flag())
    task.join()
    assert task.outcome is not None
    assert task.outcome.value == 7


def test_another_thread_can_wait_for_a_task_that_got_no_thread(monkeypatch):
    """It ran on the thread that was to start it, which does not end."""
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no thread")))
        task = Task(lambda: 7, Flag()).start()
    waiting = threading.Thread(target=task.join, daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()
    assert task.outcome is not None
    assert task.outcome.value == 7


def test_an_interrupt_while_a_finished_task_is_removed_hangs_nothing():
    """Its result is forgotten, and it is still the oldest task: the tasks after it must be finished all the same."""

    def body(comm):
        background = BackgroundTasks(comm, "saves")
        forget = background._exchange.forget

        def interrupted(number):
            forget(number)
            background._exchange.forget = forget
            raise KeyboardInterrupt

        if comm.rank == 1:
            background._exchange.forget = interrupted
        results = []
        for number in range(2):
            task = background.begin(background.prepare(number, "save", lambda: 0, lambda _: number, results.append))  # noqa: B023
            with contextlib.suppress(KeyboardInterrupt):
                background.wait(task)
            background.wait(task)
        return [outcome.value for outcome in results]

    assert run_ranks(2, body, patience=Patience().within(20.0)) == [[0, 1], [0, 1]]


def test_an_interrupt_of_a_captured_function_is_an_outcome_too():
    def fn():
        raise KeyboardInterrupt("now")

    captured = capture(fn)
    assert captured.outcome.failure is not None
    assert captured.outcome.failure.text == "KeyboardInterrupt: now"
    with pytest.raises(KeyboardInterrupt, match="now"):
        captured.get()


def test_a_value_that_was_captured_is_returned():
    captured = capture(lambda: None)
    assert captured.outcome == (None, None)
    assert captured.get() is None
