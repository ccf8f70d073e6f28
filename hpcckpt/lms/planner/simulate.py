"""TFLMSv2's simulator of a plan: the memory of a step whose ops run level by level. Pure.

1. An op's outputs are allocated, and its inputs if they come from the host or from inside a loop.
2. After it ran, inputs without further consumers on the device are freed. All aliases of a tensor are one buffer.
3. A swapped tensor is held by its near consumers only; because the copy takes time, until the level of the last of them
   is done, unless compute waits for it.
4. A swapped-in tensor is allocated once the ops that it waits for have run.

Time, workspace of kernels and in-place reuse are not simulated: so the search uses 0.9 of the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcckpt.lms.graph.aliases import Aliases
from hpcckpt.lms.graph.filters import is_in_variable
from hpcckpt.lms.graph.graph import Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import Levels
from hpcckpt.lms.planner.edited_graph import edited
from hpcckpt.lms.planner.plan import Plan


@dataclass(frozen=True)
class Trace:
    """A step as simulated.

    Attributes
    ----------
    peak : int
        Most bytes held at a time.
    peak_at : str
        The op that ran then.
    memory : tuple of int
        The bytes held after each op.
    host_peak : int
        The most bytes swapped out at a time.
    failed_at : str
        The op that did not get its memory, and at which the simulation ends; empty if all did.
    """

    peak: int
    peak_at: str
    memory: tuple[int, ...]
    host_peak: int
    failed_at: str = ""

    @property
    def fits(self) -> bool:
        """Whether the step completed."""
        return not self.failed_at


class _DoesNotFitError(Exception):
    """A tensor is as large as what is free, or larger."""


def simulate(context: GraphContext, levels: Levels, plan: Plan, available: int | None = None) -> Trace:
    """Simulate a step with a plan in `available` bytes; without a limit if none are given."""
    order = tuple(name for name in levels.in_order() if context.runs_on_device(name))
    step = _Step(context, order, plan)
    ends = {name: end for names in levels.ops for end in [step.last_of(names)] for name in names}
    step.hold_swapped(plan, ends)
    device = _Device(step, available)
    memory: list[int] = []
    for name in order:
        try:
            device.run(name)
        except _DoesNotFitError:
            return Trace(device.peak, device.peak_at, tuple(memory), device.host_peak, failed_at=name)
        memory.append(device.used)
    return Trace(device.peak, device.peak_at, tuple(memory), device.host_peak)


class _Step:
    """What is known before the step runs: producers and consumers of buffers, and what happens after which op."""

    def __init__(self, context: GraphContext, order: tuple[str, ...], plan: Plan) -> None:
        self._context, self._order = context, order
        self._graph = edited(context.graph, plan)
        self._root = Aliases(self._graph, context.is_device_op).root
        self._place = {name: index for index, name in enumerate(order)}
        self.takes: dict[str, list[Use]] = {}
        self.makes: dict[str, list[Use]] = {}
        self.n_holders: Counter[Use] = Counter()
        for name in order:
            op = self._graph.ops[name]
            self.takes[name] = [self._root(use) for use in op.inputs]
            self.makes[name] = [self._root(Use(name, number)) for number in range(len(op.outputs))]
            self.n_holders.update(self.takes[name])
        self.releases: dict[str, list[Use]] = {}
        self.leave: dict[str, int] = {}
        self.arrivals = self._arrivals(plan)
        self.freed_on_host = self._freed_on_host(plan)

    def last_of(self, names: Iterable[str]) -> str:
        """Return which of these ops runs last; an empty text if none runs."""
        return max((name for name in names if name in self._place), key=self._place.__getitem__, default="")

    def nbytes(self, buffer: Use) -> int:
        """Return how much a buffer takes; what lies in a variable takes nothing more."""
        op = self._graph.ops[buffer.op]
        return 0 if is_in_variable(op) else op.outputs[buffer.number].nbytes(self._context.batch_size)

    def hold_swapped(self, plan: Plan, ends: Mapping[str, str]) -> None:
        """Let each copy to the host hold its tensor until its last near consumer ran, or that op's level is through."""
        last = {buffer: name for name in self._order for buffer in self.takes[name]}
        waiting: dict[str, list[str]] = {}
        for first, then in plan.edges:
            waiting.setdefault(first, []).append(then)
        for out in plan.swap_outs:
            buffer = self._root(out.tensor)
            holder = last.get(buffer, out.tensor.op)
            is_waited_for = any(buffer in self.takes.get(name, ()) for name in waiting.get(out.name, ()))
            until = holder if is_waited_for else ends[holder]
            self.n_holders[buffer] += 1
            self.releases.setdefault(until, []).append(buffer)
            self.leave[out.tensor.op] = self.leave.get(out.tensor.op, 0) + out.nbytes

    def _arrivals(self, plan: Plan) -> dict[str, list[Use]]:
        """Return which swap-ins come once which op ran: the last of those that they wait for."""
        waits: dict[str, list[str]] = {back.name: [] for back in plan.swap_ins}
        for first, then in plan.edges:
            if then in waits:
                waits[then].append(first)
        found: dict[str, list[Use]] = {}
        for back, firsts in waits.items():
            found.setdefault(self.last_of(firsts), []).append(Use(back, 0))
        return found

    def _freed_on_host(self, plan: Plan) -> dict[str, int]:
        """Return how many bytes on the host are free once which op ran: the last that takes one of its swap-ins."""
        takers: dict[str, list[str]] = {}
        for back in plan.swap_ins:
            takers.setdefault(back.swap_out, []).extend(slot.op for slot in back.consumers)
        found: dict[str, int] = {}
        for out in plan.swap_outs:
            last = self.last_of(takers[out.name])
            found[last] = found.get(last, 0) + out.nbytes
        return found


class _Device:
    """The memory of a device while a step runs."""

    def __init__(self, step: _Step, available: int | None) -> None:
        self._step, self._available = step, available
        self._left = Counter(step.n_holders)
        self._held: dict[Use, int] = {}
        self.used = self.peak = self.host_peak = self._host = 0
        self.peak_at = ""

    def run(self, name: str) -> None:
        """Run an op, and then what happens after it."""
        step = self._step
        for buffer in (*step.takes[name], *step.makes[name]):
            self._have(buffer, name)
        self._host += step.leave.get(name, 0)
        self.host_peak = max(self.host_peak, self._host)
        for buffer in (*step.takes[name], *step.releases.get(name, ())):
            self._left[buffer] -= 1
        for buffer in (*step.takes[name], *step.makes[name], *step.releases.get(name, ())):
            self._free(buffer)
        for buffer in step.arrivals.get(name, ()):
            self._have(buffer, name)
        self._host -= step.freed_on_host.get(name, 0)

    def _have(self, buffer: Use, name: str) -> None:
        if buffer in self._held:
            return
        nbytes = self._step.nbytes(buffer)
        if self._available is not None and 0 < nbytes >= self._available - self.used:
            raise _DoesNotFitError
        self._held[buffer] = nbytes
        self.used += nbytes
        if self.used > self.peak:
            self.peak, self.peak_at = self.used, name

    def _free(self, buffer: Use) -> None:
        if self._left[buffer] <= 0 and buffer in self._held:
            self.used -= self._held.pop(buffer)
