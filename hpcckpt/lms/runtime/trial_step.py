"""One step of a graph, run to see what it takes: on a copy of the graph, in a separate session."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hpcckpt.lms.planner.make_plan import PlanResult
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.verify_step import OUT_OF_MEMORY, Measured, MemoryWatch
from hpcckpt.lms.runtime.apply_to_graph import SwapOps, apply
from hpcckpt.lms.runtime.process_stats import session_config


class Dry(NamedTuple):
    """What a step took, or why none could be run."""

    measured: Measured
    why_not: str = ""


def dry_step(
    graph: Any,
    plan: Plan | None,
    swap: SwapOps,
    batch_size: int | None,
    gpu: str | None = None,
    level: int | None = None,
) -> Dry:
    """Run what ``minimize`` made once, fed with zeros, and return what that took. All ranks do it together."""
    train_ops = graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP)
    if not train_ops:
        return _not("the graph has no train op (optimizer.minimize makes one)")
    try:
        return _run(graph, [op.name for op in train_ops], plan, swap, batch_size, (gpu, level))
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return Dry(Measured(OUT_OF_MEMORY))
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return _not(f"a step fed with zeros failed: {str(error).splitlines()[0]}")
    finally:
        gc.collect()


def _not(why: str) -> Dry:
    return Dry(Measured(0), why)


def _run(
    graph: Any,
    fetches: list[str],
    plan: Plan | None,
    swap: SwapOps,
    batch_size: int | None,
    where: tuple[str | None, int | None],
) -> Dry:
    copy = _copied(graph)
    if plan:
        apply(copy, plan, swap)
    steps = [copy.get_operation_by_name(name) for name in fetches]
    feeds = _zeros(placeholders_of(steps), batch_size)
    if isinstance(feeds, str):
        return _not(feeds)
    with copy.as_default(), tf.compat.v1.Session(graph=copy, config=session_config()) as session:
        v1 = tf.compat.v1
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(v1.tables_initializer())
        watch = MemoryWatch(where[0])
        watch.begin(where[1])
        try:
            session.run(steps, feeds)
            return Dry(watch.end())
        finally:
            watch.drop()


def _copied(graph: Any) -> Any:
    with graph.as_default():
        meta = tf.compat.v1.train.export_meta_graph()
    copy = tf.Graph()
    with copy.as_default():
        tf.compat.v1.train.import_meta_graph(meta)
    return copy


def placeholders_of(ops: Iterable[Any]) -> list[Any]:
    """Return the placeholders that some ops need, by name."""
    todo, seen = list(ops), set()
    while todo:
        op = todo.pop()
        if op.name not in seen:
            seen.add(op.name)
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    graph = next(iter(ops)).graph
    found = [graph.get_operation_by_name(name) for name in sorted(seen)]
    return [op.outputs[0] for op in found if op.type == "Placeholder"]


def _zeros(placeholders: Iterable[Any], batch_size: int | None) -> dict[Any, Any] | str:
    """Return what to feed, or why that cannot be determined."""
    feeds = {}
    for tensor in placeholders:
        if tensor.shape.rank is None:
            return f"placeholder {tensor.op.name!r} has no known rank"
        sizes = tensor.shape.as_list()
        shape = [(batch_size or 1) if dim is None and place == 0 else dim or 1 for place, dim in enumerate(sizes)]
        feeds[tensor] = np.zeros(shape, tensor.dtype.as_numpy_dtype)
    return feeds


# -- plans that were measured ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan, what its step took on this rank, and the peak on the rank where that was most."""

    result: PlanResult
    measured: Measured
    peak: int


@dataclass
class Trials:
    """The trials of one graph or function, in order."""

    all: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The trial with the lowest peak, the first of those."""
        return min(self.all, key=lambda trial: trial.peak)

    def holds(self, result: PlanResult) -> bool:
        """Return whether this very plan was tried."""
        return any(trial.result.plan.digest == result.plan.digest for trial in self.all)
