"""A graph with its derived properties: the input of the planners and the simulator. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hpcckpt.lms.graph.activity import conditional_ops, inactive_ops
from hpcckpt.lms.graph.aliases import Aliases
from hpcckpt.lms.graph.filters import Filters, every_op, is_collective
from hpcckpt.lms.graph.graph import ITEM_BITS, Graph, Op, Use
from hpcckpt.lms.graph.levels import EXIT, Levels, loop_ops, sort


@dataclass(frozen=True)
class GraphContext:
    """The input of a planner.

    Attributes
    ----------
    graph : Graph
        The graph.
    is_device_op : callable
        Returns True for ops on the accelerator; with host memory and a file as tiers, for all.
    filters : Filters
        The user's filters.
    is_training, keras : bool
        Decide which batch normalizations and which branch of ``keras_learning_phase`` run.
    batch_size : int, optional
        The size assumed for an unknown first dimension.
    min_bytes : int
        Smaller tensors are not swapped.
    is_optimized : bool
        Whether TensorFlow's optimizer has run on the graph, as in the native pass.
    """

    graph: Graph
    is_device_op: Callable[[Op], bool] = every_op
    filters: Filters = field(default_factory=Filters)
    is_training: bool = True
    keras: bool = False
    batch_size: int | None = None
    min_bytes: int = 0
    is_optimized: bool = False

    def check_filters(self) -> list[str]:
        """Return warnings of filters that match nothing; see `Filters.check`."""
        return self.filters.check(self.graph, is_optimized=self.is_optimized)

    @cached_property
    def levels(self) -> Levels:
        """The levels before anything is done to the graph."""
        return sort(self.graph)

    @cached_property
    def inactive(self) -> frozenset[str]:
        """Ops that do not run."""
        return inactive_ops(self.graph, self.levels, is_training=self.is_training, keras=self.keras)

    @cached_property
    def conditional(self) -> frozenset[str]:
        """Ops that run only if a condition holds."""
        return conditional_ops(self.graph, self.levels)

    @cached_property
    def loops(self) -> frozenset[str]:
        """Ops of while loops."""
        return loop_ops(self.graph)

    @cached_property
    def aliases(self) -> Aliases:
        """Which tensors share memory."""
        return Aliases(self.graph, self.is_device_op)

    def runs_on_device(self, name: str) -> bool:
        """Return True if an op is on the accelerator and runs."""
        return name not in self.inactive and self.is_device_op(self.graph.ops[name])

    def may_be_waited_for(self, name: str) -> bool:
        """Return True if a control edge of a plan may begin at this op."""
        return self.may_wait(name) and name not in self.conditional

    def may_wait(self, name: str) -> bool:
        """Return True if a control edge of a plan may end at this op: not in a loop's frame, nor at a collective."""
        op = self.graph.ops[name]
        is_inside = name in self.loops and (op.type not in EXIT or bool(op.frame))
        return not is_inside and not is_collective(op) and name not in self.inactive

    def nbytes(self, use: Use) -> int:
        """Return the size of a tensor, as far as is known."""
        return self.graph.output(use).nbytes(self.batch_size)

    def has_size(self, use: Use) -> bool:
        """Return True if a tensor is numbers, of a known rank."""
        output = self.graph.output(use)
        return output.dtype in ITEM_BITS and output.shape is not None
