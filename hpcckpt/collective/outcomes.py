"""The result of a function that may fail while other ranks wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from hpcckpt.errors import Failure, as_failure

T = TypeVar("T")
MAX_FAILURES = 16
"""Failures of more ranks are left out: an error that every rank gets must not grow with the job."""


class Outcome(NamedTuple):
    """A value, or the text of a failure: what is sent to other ranks."""

    value: Any
    failure: Failure | None = None


def failures_of(outcomes: Sequence[Outcome]) -> dict[int, Failure]:
    """Return the failures among the outcomes of all ranks, by rank, as `first_failures` does. Pure."""
    return first_failures({rank: each.failure for rank, each in enumerate(outcomes) if each.failure is not None})


def first_failures(failures: Mapping[int, Failure]) -> dict[int, Failure]:
    """Return the failures of the first ranks that failed, and the first of each further kind. Pure."""
    found: dict[int, Failure] = {}
    kinds: set[str] = set()
    for rank, failure in sorted(failures.items()):
        if len(found) < MAX_FAILURES or failure.kind not in kinds:
            found[rank] = failure
            kinds.add(failure.kind)
    return found


def reduce_outcomes(outcomes: Sequence[Outcome], fn: Callable[[], T]) -> tuple[T | None, dict[int, Failure]]:
    """Return what `fn` returns; or the failures: of the ranks, else that of `fn`, which is root's. Root only."""
    failures = failures_of(outcomes)
    if failures:
        return None, failures
    made = capture(fn)
    return made.value, {0: as_failure(made.error)} if made.error is not None else {}


class Captured(NamedTuple, Generic[T]):
    """What a call returned, or the exception that it raised: on the rank where it ran."""

    value: T | None
    error: BaseException | None = None

    @property
    def outcome(self) -> Outcome:
        """The same without the live exception, for other ranks."""
        return Outcome(self.value) if self.error is None else Outcome(None, as_failure(self.error))

    @property
    def interrupt(self) -> BaseException | None:
        """KeyboardInterrupt or SystemExit, if it raised one: to be raised once the other ranks can receive it."""
        return None if isinstance(self.error, Exception) else self.error

    def get(self) -> T:
        """Return the value, or raise the exception."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def capture(fn: Callable[[], T]) -> Captured[T]:
    """Call a function and keep what it returns or raises, KeyboardInterrupt and SystemExit too. Independent.

    Exceptions are caught here so that other ranks can receive them first. The collective writes of HDF5 catch theirs
    themselves: after a failure they still take part in each transfer.
    """
    try:
        return Captured(fn())
    except BaseException as error:  # noqa: BLE001 - other ranks wait for the outcome, whatever it is
        return Captured(None, error)
