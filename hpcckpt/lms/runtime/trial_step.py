"""One step of a graph, run to see what it takes: on a copy of the graph, in a separate session."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from hpcckpt.lms.planner.make_plan import PlanResult
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.verify_step import OUT_OF_MEMORY, Measured, MemoryWatch
from hpcckpt.lms.runtime.apply_to_graph import SwapOps, apply
from hpcckpt.lms.runtime.feeds import feeds_of
from hpcckpt.lms.runtime.process_stats import session_config


class Dry(NamedTuple):
    """What a step took, or why none could be run; and what was fed where the graph does not define a rank."""

    measured: Measured
    why_not: str = ""
    assumed: str = ""


def dry_step(
    graph: Any,
    plan: Plan | None,
    swap: SwapOps,
    batch_size: int | None,
    gpu: str | None = None,
    level: int | None = None,
) -> Dry:
    """Run what ``minimize`` made once, fed by `feeds_of`, and return what that took. All ranks do it together."""
    train_ops = graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP)
    if not train_ops:
        return _not("the graph has no train op (optimizer.minimize makes one)")
    try:
        return _run(graph, [op.name for op in train_ops], plan, swap, batch_size, (gpu, level))
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return Dry(Measured(OUT_OF_MEMORY))
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return _not(f"a trial step failed: {str(error).splitlines()[0]}")
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
    feeds = feeds_of(graph, fetches, batch_size)
    if feeds.unknown:
        return _not("; ".join(feeds.unknown))
    copy = _copied(graph)
    if plan:
        apply(copy, plan, swap)
    steps = [copy.get_operation_by_name(name) for name in fetches]
    with copy.as_default(), tf.compat.v1.Session(graph=copy, config=session_config()) as session:
        v1 = tf.compat.v1
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(v1.tables_initializer())
        watch = MemoryWatch(where[0])
        watch.begin(where[1])
        try:
            session.run(steps, feeds.arrays)
            return Dry(watch.end(), assumed=feeds.text)
        finally:
            watch.drop()


def _copied(graph: Any) -> Any:
    with graph.as_default():
        meta = tf.compat.v1.train.export_meta_graph()
    copy = tf.Graph()
    with copy.as_default():
        tf.compat.v1.train.import_meta_graph(meta)
    return copy


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
