"""What waits and what wakes, when a signal's exception falls into it."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time

import pytest

from hpcckpt.collective.deadlines import Patience
from hpcckpt.draining import Draining, Flag, Task
from hpcckpt.testing.ranks import run_ranks


class InterruptionError(Exception):
    """What the signal's handler raises."""


@pytest.fixture
def interrupt():
    """Have a signal raise in this thread so many seconds later."""

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


def test_a_part_that_nobody_lets_go_goes_on_by_itself():
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


def test_an_interrupt_between_the_two_removals_of_a_settled_task_hangs_nothing():
    """The answer is forgotten, and the task is still the oldest: the tasks after it must be settled all the same."""

    def body(comm):
        draining = Draining(comm, "saves")
        forget = draining._exchange.forget

        def interrupted(number):
            forget(number)
            draining._exchange.forget = forget
            raise KeyboardInterrupt

        if comm.rank == 1:
            draining._exchange.forget = interrupted
        settled = []
        for number in range(2):
            matter = draining.start(number, "save", lambda: 0, lambda _: number, settled.append)  # noqa: B023
            with contextlib.suppress(KeyboardInterrupt):
                draining.wait(matter)
            draining.wait(matter)
        return [outcome.value for outcome in settled]

    assert run_ranks(2, body, patience=Patience().within(20.0)) == [[0, 1], [0, 1]]
