"""What is to be done to a graph: which tensors leave, when they come back, what is computed again, what waits for what.

A plan names nodes and is applied by either applier: `hpcckpt.lms.apply_v1` edits a `tf.Graph`, the native pass a
function that TensorFlow is about to run. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcckpt.lms.graph import Slot, Use

PREFIX = "lms/"


@dataclass(frozen=True, slots=True)
class SwapOut:
    """A tensor that leaves as soon as it is there; its near consumers keep it until they are done."""

    name: str
    tensor: Use
    nbytes: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """What brings a tensor back, once, for some of its consumers."""

    name: str
    swap_out: str
    consumers: tuple[Slot, ...]
    took: tuple[Use, ...] = ()
    """What each consumer took before, where that was an alias of the tensor; empty if all took the tensor itself."""


@dataclass(frozen=True, slots=True)
class Copy:
    """An op that is computed again: a copy of `op` with other inputs, for some consumers of its outputs.

    `inputs` are in the order of the op's own, and may be outputs of swap-ins and of other copies (``lms/...:0``).
    """

    name: str
    op: str
    inputs: tuple[Use, ...]
    consumers: tuple[tuple[int, Slot], ...]
    """Which output, and where it goes."""


@dataclass(frozen=True, slots=True)
class Release:
    """What gives a tensor's memory back to the kernel when its last user has run, where an allocator would keep it."""

    name: str
    tensor: Use


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is done to one graph; empty if nothing is.

    `edges` are control edges ``(first, then)`` between any nodes, old and new.
    """

    swap_outs: tuple[SwapOut, ...] = ()
    swap_ins: tuple[SwapIn, ...] = ()
    copies: tuple[Copy, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    planner: str = "distance"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What it was made with, for reports."""
    releases: tuple[Release, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.swap_outs or self.copies or self.edges or self.releases)

    @property
    def nbytes_out(self) -> int:
        """Bytes that leave in a step."""
        return sum(swap.nbytes for swap in self.swap_outs)

    @property
    def nbytes_in(self) -> int:
        """Bytes that come back in a step."""
        sizes = {swap.name: swap.nbytes for swap in self.swap_outs}
        return sum(sizes[swap.swap_out] for swap in self.swap_ins)

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes that it adds."""
        outs, ins = (out.name for out in self.swap_outs), (back.name for back in self.swap_ins)
        copies, releases = (copy.name for copy in self.copies), (release.name for release in self.releases)
        return frozenset((*outs, *ins, *copies, *releases))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote: what is done to a graph, without what the plan was made with."""
        told = json.loads(text)
        return cls(
            tuple(SwapOut(s["name"], Use.of(s["tensor"]), s["nbytes"]) for s in told["swap_outs"]),
            tuple(SwapIn(s["name"], s["swap_out"], tuple(map(Slot.of, s["consumers"]))) for s in told["swap_ins"]),
            tuple(_copy_of(c) for c in told["copies"]),
            tuple((first, then) for first, then in told["edges"]),
            releases=tuple(Release(r["name"], Use.of(r["tensor"])) for r in told.get("releases", ())),
        )

    def to_json(self) -> str:
        """Write what is done to the graph: equal plans are equal texts."""
        told = {
            "swap_outs": [{"name": s.name, "tensor": str(s.tensor), "nbytes": s.nbytes} for s in self.swap_outs],
            "swap_ins": [
                {"name": s.name, "swap_out": s.swap_out, "consumers": [str(slot) for slot in s.consumers]}
                for s in self.swap_ins
            ],
            "copies": [
                {
                    "name": c.name,
                    "op": c.op,
                    "inputs": [str(use) for use in c.inputs],
                    "consumers": [[index, str(slot)] for index, slot in c.consumers],
                }
                for c in self.copies
            ],
            "edges": [list(edge) for edge in self.edges],
        }
        if self.releases:
            told["releases"] = [{"name": r.name, "tensor": str(r.tensor)} for r in self.releases]
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """SHA-256 of what is done, in hexadecimal: the same on all ranks, or training must not begin."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return what reports say of it."""
        told = {key: value for key, value in asdict(self).items() if key in ("planner", "parameters")}
        counts = {"n_swap_outs": len(self.swap_outs), "n_swap_ins": len(self.swap_ins), "n_copies": len(self.copies)}
        return told | counts | {"nbytes_out": self.nbytes_out, "nbytes_in": self.nbytes_in, "digest": self.digest}


def _copy_of(told: Mapping[str, Any]) -> Copy:
    consumers = tuple((index, Slot.of(slot)) for index, slot in told["consumers"])
    return Copy(told["name"], told["op"], tuple(map(Use.of, told["inputs"])), consumers)
