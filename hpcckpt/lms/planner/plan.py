"""What is to be done to a graph: which tensors leave, when they come back, what is computed again, what waits for what.

A plan names nodes and is applied by either applier: `hpcckpt.lms.runtime.apply_to_graph` edits a `tf.Graph`, the native
pass a function that TensorFlow is about to run. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcckpt.lms.graph.graph import InputSlot, Use

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
    consumers: tuple[InputSlot, ...]
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
    consumers: tuple[tuple[int, InputSlot], ...]
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
        document = json.loads(text)
        return cls(
            tuple(SwapOut(s["name"], Use.of(s["tensor"]), s["nbytes"]) for s in document["swap_outs"]),
            tuple(
                SwapIn(s["name"], s["swap_out"], tuple(map(InputSlot.of, s["consumers"]))) for s in document["swap_ins"]
            ),
            tuple(_copy_of(c) for c in document["copies"]),
            tuple((first, then) for first, then in document["edges"]),
            releases=tuple(Release(r["name"], Use.of(r["tensor"])) for r in document.get("releases", ())),
        )

    def to_json(self) -> str:
        """Write what is done to the graph: equal plans are equal texts."""
        document = {
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
            document["releases"] = [{"name": r.name, "tensor": str(r.tensor)} for r in self.releases]
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """SHA-256 of what is done, in hexadecimal: the same on all ranks, or training must not begin."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return what reports say of it."""
        document = {key: value for key, value in asdict(self).items() if key in ("planner", "parameters")}
        counts = {"n_swap_outs": len(self.swap_outs), "n_swap_ins": len(self.swap_ins), "n_copies": len(self.copies)}
        return document | counts | {"nbytes_out": self.nbytes_out, "nbytes_in": self.nbytes_in, "digest": self.digest}


def _copy_of(document: Mapping[str, Any]) -> Copy:
    consumers = tuple((index, InputSlot.of(slot)) for index, slot in document["consumers"])
    return Copy(document["name"], document["op"], tuple(map(Use.of, document["inputs"])), consumers)


# -- text for the native pass ---------------------------------------------------------------------


def text_of(plan: Plan) -> str:
    """Return the lines of a plan, with tabs between the words."""
    return "".join("\t".join(map(str, words)) + "\n" for words in _lines(plan))


def _lines(plan: Plan) -> Iterator[list[str | int]]:
    for out in plan.swap_outs:
        yield ["out", out.name, *out.tensor]
    for back in plan.swap_ins:
        yield ["in", back.name, back.swap_out, *(word for slot in back.consumers for word in slot)]
    for copy in plan.copies:
        inputs = [word for use in copy.inputs for word in use]
        consumers = [word for index, slot in copy.consumers for word in (index, *slot)]
        yield ["copy", copy.name, copy.op, len(copy.inputs), *inputs, *consumers]
    for release in plan.releases:
        yield ["release", release.name, *release.tensor]
    for first, then in plan.edges:
        yield ["edge", first, then]
