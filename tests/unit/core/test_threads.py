"""Items that threads share: results in order, the first error, and fewer threads where the system refuses more."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest

from hpcckpt.core.threads import map_in_threads


@pytest.mark.parametrize("n_threads", [1, 3, 50])
def test_every_item_is_worked_on_once_and_results_are_in_order(n_threads: int) -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item * item

    assert map_in_threads(work, iter(range(20)), n_threads) == [item * item for item in range(20)]
    assert sorted(begun) == [*range(20)]
    assert map_in_threads(work, [], n_threads) == []


def test_of_items_that_fail_the_first_in_order_is_reported() -> None:
    has_last_failed = threading.Event()

    def work(item: int) -> NoReturn:
        if item == 2:
            has_last_failed.set()
        has_last_failed.wait(60)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        map_in_threads(work, range(3), 3)


def test_after_a_failure_no_further_item_is_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise ValueError(item)

    with pytest.raises(ValueError, match=r"^3$"):
        map_in_threads(work, range(100), 1)
    assert begun == [0, 1, 2, 3]


def test_an_interrupt_comes_before_errors_of_earlier_items() -> None:
    is_interrupted = threading.Event()

    def work(item: int) -> NoReturn:
        if item == 1:
            is_interrupted.set()
            raise KeyboardInterrupt
        is_interrupted.wait(60)
        raise ValueError(item)

    with pytest.raises(KeyboardInterrupt):
        map_in_threads(work, range(2), 2)


def test_where_the_system_refuses_threads_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert map_in_threads(lambda item: -item, range(5), 4) == [0, -1, -2, -3, -4]


def test_no_thread_is_left_when_the_call_returns() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda item: 1 // item, range(10), 4)
    assert threading.active_count() == before
