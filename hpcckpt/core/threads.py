"""Work on independent items, shared by a few threads that live as long as the call.

Not a `ThreadPoolExecutor`: it fails where the system allows no more threads, and while the program ends, when saves in
flight are finished.  Here the calling thread takes part, and does the work of those that cannot be started.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_INTERRUPT = -1


def map_in_threads(work: Callable[[T], R], items: Iterable[T], n_threads: int) -> list[R]:
    """Call `work` for each item, on this thread and on others; return the results in order. Independent.

    Parameters
    ----------
    work : callable
        Called with one item, by several threads at once; the items are begun in order.
    items : iterable
        The items.
    n_threads : int
        How many threads share them; fewer do where the system refuses more.

    Raises
    ------
    BaseException
        What `work` raised for the first item, in order, for which it failed. No further item is begun then. What a
        signal's handler raises comes before it.
    """
    shared = _Shared(work, list(items))
    others: list[threading.Thread] = []
    try:
        with contextlib.suppress(RuntimeError):  # a limit of the system, or the interpreter ends
            while len(others) < min(n_threads, len(shared.items)) - 1:
                others.append(threading.Thread(target=shared.take_items, name="hpcckpt-share"))
                others[-1].start()
        shared.take_items()
    finally:  # whatever ended the work: none of it is left when the call returns
        shared.is_stopped = True
        for thread in others:
            if thread.ident is not None:
                thread.join()
    if shared.errors:
        raise shared.errors[min(shared.errors)]
    return shared.results


class _Shared(Generic[T, R]):
    """Items that several threads take, what came of them, and the errors by the numbers of the items."""

    def __init__(self, work: Callable[[T], R], items: list[T]) -> None:
        self.items = items
        self.results: list[Any] = [None] * len(items)
        self.errors: dict[int, BaseException] = {}
        self.is_stopped = False
        self._work = work
        self._numbers = iter(range(len(items)))

    def take_items(self) -> None:
        while not self.is_stopped and (number := next(self._numbers, None)) is not None:
            try:
                self.results[number] = self._work(self.items[number])
            except BaseException as error:  # noqa: BLE001 - it is raised by the thread that called
                self.errors[number if isinstance(error, Exception) else _INTERRUPT] = error
                self.is_stopped = True
