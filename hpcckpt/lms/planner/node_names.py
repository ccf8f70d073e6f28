"""Names of the nodes that a plan adds: from the tensors they move, and none twice. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpcckpt.lms.graph.graph import Use
from hpcckpt.lms.planner.plan import PREFIX


class Names:
    """Hands out names that nothing in a graph has; the same ones for the same questions in the same order."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {name.lower() for name in taken}  # for TensorFlow, names that differ only in case are the same

    def swap_out(self, tensor: Use) -> str:
        """Return a name for what takes a tensor away: ``lms/swapout_conv1_Relu_0``."""
        return self._unique(f"{PREFIX}swapout_{_flat(tensor)}")

    def swap_in(self, tensor: Use) -> str:
        """Return a name for what brings a tensor back."""
        return self._unique(f"{PREFIX}swapin_{_flat(tensor)}")

    def release(self, tensor: Use) -> str:
        """Return a name for what gives a tensor's memory back."""
        return self._unique(f"{PREFIX}release_{_flat(tensor)}")

    def copy(self, op: str) -> str:
        """Return a name for an op that is computed again."""
        return self._unique(f"{PREFIX}copy_{_flat(op)}")

    def _unique(self, name: str) -> str:
        found, number = name, 0
        while found.lower() in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found.lower())
        return found


def _flat(name: Use | str) -> str:
    return str(name).replace("/", "_").replace(":", "_")
