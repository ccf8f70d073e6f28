"""Planning of functions: the native pass requests a plan when TensorFlow compiles a function.

1. `WatchedFunction` wraps the function; around each call the pass is armed for its name
2. `_plan`   in the first call: decide with the other ranks, pass the plan on, start measuring memory
3. `check_step`  after it: compare the step's memory with the budget; if it is exceeded, build the function again with
   another plan; if no plan keeps the budget, with the best one tried
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hpcckpt.lms import messages
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.levels import loop_ops
from hpcckpt.lms.planner.make_plan import PlanResult, describe
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.verify_step import MemoryWatch, resident
from hpcckpt.lms.report.report import Mode
from hpcckpt.lms.runtime import native_engine
from hpcckpt.lms.runtime.collective_plan import (
    add_trial,
    alone,
    decide,
    decide_again,
    gpu_name,
    graph_context_of,
    make_tier_ready,
)
from hpcckpt.lms.runtime.keras_model import is_half
from hpcckpt.lms.runtime.options import LmsOptions, LmsOutcome
from hpcckpt.lms.runtime.tf_session import log_plan
from hpcckpt.lms.runtime.trial_step import Trials

_LARGE_LOOP = 0.5
"""The share of ops inside loops from which a message is logged."""


class FunctionPath:
    """Plans the functions whose names match while it is armed.

    Attributes
    ----------
    outcome : LmsOutcome or None
        What was done to the function; that of the last plan, if it was planned again.
    notes : list of str
        What could not be planned, and what to do.
    """

    def __init__(self, options_of: Callable[[], LmsOptions], nbytes_learned: Callable[[], int] = lambda: 0) -> None:
        self._options_of, self._nbytes_learned = options_of, nbytes_learned
        self._watch: MemoryWatch | None = None
        self._level: int | None = None
        self._left = 0
        self._trials = Trials()
        self._is_settled = False
        self._decided: tuple[Graph, PlanResult] | None = None
        self._is_ready = self._is_alone = self._is_without_gradients = False
        self.outcome: LmsOutcome | None = None
        self.notes: list[str] = []

    @contextmanager
    def armed(self, pattern: str) -> Iterator[None]:
        """Plan functions whose names match meanwhile; raise errors of planners and tiers with their own types.

        Raises
        ------
        BackendError
            If the native library is not built, with what to do about it.
        """
        options = self._options_of()
        if not self._is_ready:
            make_tier_ready(options)
            self._is_ready = True
        native_engine.arm(pattern, self._plan, batch_size=options.batch_size)
        try:
            with native_engine.typed_errors():
                yield
        except BaseException:
            if self._watch is not None:
                self._watch.drop()
            raise
        finally:
            native_engine.disarm()

    def note(self, text: str) -> None:
        """Log once what cannot be planned, and keep it for the report."""
        if text not in self.notes:
            self.notes.append(text)
        self._options_of().lms_log.warn_once(text)

    @property
    def has_no_gradients(self) -> bool:
        """Whether all functions that were compiled were left alone, for none has gradients."""
        return self._is_without_gradients and self.outcome is None

    # -- within the call that makes a function ready to run

    def _plan(self, graph: Graph, info: Any) -> Plan | None:
        if is_half(info.name):
            self.note(messages.OUTER_TAPE.format(function=info.name))
            return None
        options = self._options_of()
        if options.is_training and not trains(graph):
            self._is_without_gradients = True
            return None
        return self._planned(graph, info.name, alone(options) if self._is_alone else options)

    def _planned(self, graph: Graph, name: str, options: LmsOptions) -> Plan | None:
        options.lms_log.info(messages.EDITING)
        n_inside = len(loop_ops(graph))
        if n_inside > _LARGE_LOOP * len(graph.ops):
            self.note(messages.FRAMES.format(n_ops=n_inside, function=name))
        context = graph_context_of(options, graph, is_optimized=True)
        if self.outcome is None:
            describe(context, self._nbytes_learned(), options.lms_log, is_gpu=gpu_name(options.settings) is not None)
        kept = self._kept_for(graph)
        result = kept or decide(options, context, self._nbytes_learned())
        self._is_alone = True  # a short batch may make one rank retrace: it must not wait for the others then
        log_plan(options, context, result)
        n_attempts = max(1, len(self._trials.all) + (not self._is_settled))
        mode: Mode = "none" if result.failure else "pass" if result.is_necessary else "off"
        self.outcome = LmsOutcome(mode, name, context, result, n_attempts=n_attempts)
        if self._is_settled:  # another trace, for other shapes, is planned but not measured
            self.outcome = replace(self.outcome, measured=self._trials.best.measured if kept else None)
        elif options.settings.verify:
            self._begin_to_read(gpu_name(options.settings))
        return result.plan if result.is_necessary and result.plan else None

    def _kept_for(self, graph: Graph) -> PlanResult | None:
        """Return the plan that was decided after a step, if it is for this graph: the function is traced again."""
        decided, self._decided = self._decided, None
        return decided[1] if decided is not None and decided[0] == graph else None

    def _begin_to_read(self, gpu: str | None) -> None:
        """Read memory above the level before the first step; tracing again is no part of a step."""
        grown = 0 if self._level is None else max(0, resident(gpu) - self._left)
        self._watch = MemoryWatch(gpu)
        self._watch.begin(None if self._level is None else self._level + grown)

    # -- after the step

    def check_step(self) -> bool:
        """Read what the step took; return whether its function is to be made again, for another plan. Collective."""
        watch, outcome = self._watch, self.outcome
        if watch is None or not watch.is_on or outcome is None or outcome.result is None or outcome.context is None:
            return False
        measured, options = watch.end(), self._options_of()
        self._level, self._left = measured.level, resident(watch.gpu)
        self.outcome = replace(outcome, measured=measured)
        add_trial(options, self._trials, outcome.result, measured)
        again = decide_again(options, outcome.context, self._nbytes_learned(), self._trials) or self._best(options)
        if again is None:
            return False
        self._decided = (outcome.context.graph, again)
        return True

    def _best(self, options: LmsOptions) -> PlanResult | None:
        """End the trials; return the best plan, if it is not the last one."""
        self._is_settled = True
        best, last = self._trials.best, self._trials.all[-1]
        if best.result.budget is not None and best.peak > best.result.budget:
            options.lms_log.warn_once(messages.not_kept(best.peak, best.result.budget))
        return None if best is last else best.result


def trains(graph: Graph) -> bool:
    """Return whether a function has gradients in it: Keras 3 calls what trains and what evaluates by one name."""
    return any("gradient" in name.lower() for name in graph.ops)
