"""Which tensors did not change since the newest committed step, on one rank.

A pointer proves nothing by itself: once nothing else holds a variable's buffer, it is updated in place.  So a
tensor counts as unchanged only if it has the same pointer **and** our reference was held without a break since
the newest committed step.  Whatever is held is copied by its next update; so only what has shown itself frozen
is held on to: what had the same checksums in two steps, one after the other.  That is no proof, and needs to be
none: it only begins the holding.

A save that fails, or a restore, ends all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcckpt.backends.base import BlockRecord, Payload
from hpcckpt.core.plan import WriteItem


class BlockRecords:
    """What this rank knows of the tensors of the newest committed step."""

    def __init__(self) -> None:
        self._records: dict[WriteItem, BlockRecord] = {}
        self._in_flight: dict[int, Sequence[Payload]] = {}

    @property
    def may_link(self) -> bool:
        """Whether the next save may link values of the newest committed step, and so write less than it has."""
        return bool(self._records)

    def mark(self, number: int, payloads: Sequence[Payload]) -> None:
        """Tell the payloads of a save what is known of them, and whether the newest committed step has the same."""
        records, self._records = self._records, {}  # until this save is committed too, nothing is known
        self._in_flight[number] = payloads
        for payload in payloads:
            if payload.is_held:
                payload.compare_with(records.get(payload.item))

    def ended(self, number: int, *, is_committed: bool) -> None:
        """Remember what the step of a save holds if it was committed just now, and release its payloads."""
        payloads = self._in_flight.get(number, ())
        if is_committed:
            self._records = {payload.item: payload.record for payload in payloads if payload.record is not None}
        self._in_flight.pop(number, None)

    def forget(self) -> None:
        """Release everything that is held."""
        self._records = {}
