"""Calling a caller's function from the middle of native work, without losing what it raises."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class CallingBack:
    """Calls a function, keeps the first error it raises, and raises that when the work is done.

    As a context manager around the work; what is called never raises.

    Parameters
    ----------
    function
        Called with an integer.
    """

    def __init__(self, function: Callable[[int], object]) -> None:
        self._function = function
        self._error: BaseException | None = None

    def __call__(self, number: int) -> None:
        """Call the function; keep its error."""
        try:
            self._function(number)
        except BaseException as error:  # noqa: BLE001 - even KeyboardInterrupt must not stop a thread of the work
            if self._error is None:
                self._error = error

    def __enter__(self) -> CallingBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._error is None:
            return
        if error is None:
            raise self._error
        error.__context__ = self._error  # the work failed too, and that is the error for its caller
