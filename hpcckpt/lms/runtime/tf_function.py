"""Planning of functions: the native pass requests a plan when TensorFlow compiles a function.

1. `WatchedFunction` wraps the function; around each call the pass is armed for its name
2. `_plan`   in the first call: decide with the other ranks, pass the plan on, start measuring memory
3. `check_step`  after it: compare the step's memory with the budget; if it is exceeded, build the function again with
   another plan; if no plan keeps the budget, with the best one tried
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

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


@dataclass
class _Function:
    """One function: what its steps took, and the plan that was decided after the last one."""

    trials: Trials = field(default_factory=Trials)
    outcome: LmsOutcome | None = None
    watch: MemoryWatch | None = None
    level: int | None = None
    left: int = 0
    is_settled: bool = False
    decided: tuple[Graph, PlanResult] | None = None


class FunctionPath:
    """Plans the functions whose names match while it is armed.

    Attributes
    ----------
    outcome : LmsOutcome or None
        What was done to the function that was planned last; that of the last plan, if it was planned again.
    notes : list of str
        What could not be planned, and what to do.
    """

    def __init__(self, options_of: Callable[[], LmsOptions], nbytes_learned: Callable[[], int] = lambda: 0) -> None:
        self._options_of, self._nbytes_learned = options_of, nbytes_learned
        self._functions: WeakKeyDictionary[Any, _Function] = WeakKeyDictionary()
        self._function = _Function()
        self._is_ready = self._is_alone = self._is_without_gradients = False
        self.outcome: LmsOutcome | None = None
        self.notes: list[str] = []

    @contextmanager
    def armed(self, pattern: str, owner: object) -> Iterator[None]:
        """Plan functions whose names match meanwhile; raise errors of planners and tiers with their own types.

        Parameters
        ----------
        pattern : str
            Of the names.
        owner : object
            Calls the function, each with its own trials.

        Raises
        ------
        BackendError
            If the native library is not built, with what to do about it.
        """
        options = self._options_of()
        self._function = self._functions.setdefault(owner, _Function())
        if not self._is_ready:
            make_tier_ready(options)
            self._is_ready = True
        native_engine.arm(pattern, self._plan, batch_size=options.batch_size)
        try:
            with native_engine.typed_errors():
                yield
        except BaseException:
            if self._function.watch is not None:
                self._function.watch.drop()
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
        function = self._function
        n_attempts = max(1, len(function.trials.all) + (not function.is_settled))
        mode: Mode = "none" if result.failure else "pass" if result.is_necessary else "off"
        # a trace for other shapes, after the trials, is planned but not measured
        measured = function.trials.best.measured if function.is_settled and kept else None
        self.outcome = LmsOutcome(mode, name, context, result, measured, n_attempts)
        function.outcome = self.outcome
        if not function.is_settled and options.settings.verify:
            self._begin_to_read(gpu_name(options.settings))
        return result.plan if result.is_necessary and result.plan else None

    def _kept_for(self, graph: Graph) -> PlanResult | None:
        """Return the plan that was decided after a step, if it is for this graph: the function is traced again."""
        decided, self._function.decided = self._function.decided, None
        return decided[1] if decided is not None and decided[0] == graph else None

    def _begin_to_read(self, gpu: str | None) -> None:
        """Read memory above the level before the first step; tracing again is no part of a step."""
        function = self._function
        grown = 0 if function.level is None else max(0, resident(gpu) - function.left)
        function.watch = MemoryWatch(gpu)
        function.watch.begin(None if function.level is None else function.level + grown)

    # -- after the step

    def check_step(self) -> bool:
        """Read what the step took; return whether its function is to be made again, for another plan. Collective."""
        function = self._function
        watch, outcome = function.watch, function.outcome
        if watch is None or not watch.is_on or outcome is None or outcome.result is None or outcome.context is None:
            return False
        measured, options = watch.end(), self._options_of()
        function.level, function.left = measured.level, resident(watch.gpu)
        self.outcome = function.outcome = replace(outcome, measured=measured)
        add_trial(options, function.trials, outcome.result, measured)
        again = decide_again(options, outcome.context, self._nbytes_learned(), function.trials) or self._best(options)
        if again is None:
            return False
        function.decided = (outcome.context.graph, again)
        return True

    def _best(self, options: LmsOptions) -> PlanResult | None:
        """End the trials; return the best plan, if it is not the last one."""
        self._function.is_settled = True
        best, last = self._function.trials.best, self._function.trials.all[-1]
        if best.result.budget is not None and best.peak > best.result.budget:
            options.lms_log.warn_once(messages.not_kept(best.peak, best.result.budget))
        return None if best is last else best.result


def trains(graph: Graph) -> bool:
    """Return whether a function has gradients in it: Keras 3 calls what trains and what evaluates by one name."""
    return any("gradient" in name.lower() for name in graph.ops)
