"""Which tensors did not change since the newest committed step, on one rank.

A pointer proves nothing by itself: once nobody else holds a variable's buffer, it is updated in place.  So a
tensor counts as unchanged only if it has the same pointer **and** our reference was held without a break since
the newest committed step.  Whatever is held is copied by its next update; so only what has shown itself frozen
is held on to: what had the same checksums in two steps, one after the other.  That is no proof, and needs to be
none: it only begins the holding.

A save that fails, or a restore, ends all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcckpt.backends.base import Known, Payload
from hpcckpt.plan import WriteItem


class Unchanged:
    """What this rank knows of the tensors of the newest committed step."""

    def __init__(self) -> None:
        self._known: dict[WriteItem, Known] = {}

    def mark(self, payloads: Sequence[Payload]) -> None:
        """Tell payloads what is known of them, and whether they are the same as in the newest committed step."""
        known, self._known = self._known, {}  # until this save is committed too, nothing is known
        for payload in payloads:
            if payload.is_held:
                payload.compare_with(known.get(payload.item))

    def committed(self, payloads: Sequence[Payload]) -> None:
        """Remember what stands in the step that was committed just now."""
        self._known = {payload.item: payload.known for payload in payloads if payload.known is not None}

    def forget(self) -> None:
        """Let go of everything that is held."""
        self._known = {}
