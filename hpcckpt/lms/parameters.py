"""What steers the distance planner. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """What TFLMSv2 is told; `LMS` explains each."""

    swapout_threshold: int = -1
    swapin_groupby: int = -1
    swapin_ahead: int = -1
    sync_mode: int = 0
    serialization: tuple[int | str, ...] = ()
    serialization_by_size: float = 0
    window: int | None = None
    """Not of TFLMSv2, whose asynchronous swap-outs are without bound: the bytes that may be on their way out while
    compute goes on."""

    @property
    def is_out_synchronous(self) -> bool:
        """Whether compute waits for swap-outs."""
        return self.sync_mode in (1, 3)

    @property
    def is_in_synchronous(self) -> bool:
        """Whether swap-ins wait for compute; `swapin_ahead` and `swapin_groupby` then mean nothing."""
        return self.sync_mode in (2, 3)
