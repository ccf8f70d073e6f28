"""The way for functions: the native pass asks for a plan when TensorFlow makes a function ready to run.

1. `Planned` stands for the function; around each call the pass is armed for its name
2. `_plan`   in the first call: decide with the other ranks, hand the plan to the pass, begin to read memory
3. `settle`  after it: what the step took is compared with the budget; if it is too much, the function is made again for
   another plan; if no plan keeps the budget, for the best one of those tried
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hpcckpt.lms import engine, messages
from hpcckpt.lms.deciding import add_trial, alone, decide, decide_again, gpu_name, make_tier_ready, scene_of
from hpcckpt.lms.graph import Graph
from hpcckpt.lms.keras_path import is_half
from hpcckpt.lms.levels import loop_ops
from hpcckpt.lms.options import Options, Outcome
from hpcckpt.lms.plan import Plan
from hpcckpt.lms.planning import Made, describe
from hpcckpt.lms.report import Mode
from hpcckpt.lms.session_path import say_plan
from hpcckpt.lms.trials import Trials
from hpcckpt.lms.verification import Watch, resident

_LARGE_LOOP = 0.5
"""The part of the ops that, inside loops, makes a message worth its line."""


class FunctionPath:
    """Plans the functions whose names match, while it is armed.

    Attributes
    ----------
    outcome : Outcome or None
        What was done to the function; that of the last plan, if it was planned again.
    notes : list of str
        Where it cannot act, and what to do.
    """

    def __init__(self, options_of: Callable[[], Options], nbytes_learned: Callable[[], int] = lambda: 0) -> None:
        self._options_of, self._nbytes_learned = options_of, nbytes_learned
        self._watch: Watch | None = None
        self._target: int | None = None
        self._level: int | None = None
        self._left = 0
        self._trials = Trials()
        self._is_settled = False
        self._decided: tuple[Graph, Made] | None = None
        self._is_ready = self._is_alone = False
        self.outcome: Outcome | None = None
        self.notes: list[str] = []

    @contextmanager
    def armed(self, pattern: str) -> Iterator[None]:
        """Have functions whose names match planned meanwhile; errors of planners and tiers are raised as what they are.

        Raises
        ------
        BackendError
            If the native library is not built, with what to do about it.
        """
        options = self._options_of()
        self._make_ready(options)
        engine.arm(pattern, self._plan, batch_size=options.batch_size)
        try:
            with engine.typed_errors():
                yield
        except BaseException:
            if self._watch is not None:
                self._watch.drop()
            raise
        finally:
            engine.disarm()

    def _make_ready(self, options: Options) -> None:
        if not self._is_ready:
            make_tier_ready(options)
            self._is_ready = True

    def note(self, text: str) -> None:
        """Say once where it cannot act, and keep it for the report."""
        if text not in self.notes:
            self.notes.append(text)
        self._options_of().speaker.warn_once(text)

    # -- within the call that makes a function ready to run

    def _plan(self, graph: Graph, info: Any) -> Plan | None:
        if is_half(info.name):
            self.note(messages.OUTER_TAPE.format(function=info.name))
            return None
        options = self._options_of()
        if options.is_training and not trains(graph):
            return None
        return self._planned(graph, info.name, alone(options) if self._is_alone else options)

    def _planned(self, graph: Graph, name: str, options: Options) -> Plan | None:
        options.speaker.say(messages.EDITING)
        n_inside = len(loop_ops(graph))
        if n_inside > _LARGE_LOOP * len(graph.ops):
            self.note(messages.FRAMES.format(n_ops=n_inside, function=name))
        scene = scene_of(options, graph, is_optimized=True)
        if self.outcome is None:
            describe(scene, self._nbytes_learned(), options.speaker, is_gpu=gpu_name(options.settings) is not None)
        made = self._kept_for(graph) or decide(options, scene, self._nbytes_learned(), self._target)
        self._is_alone = True  # a short batch may make one rank retrace: it must not wait for the others then
        say_plan(options, scene, made)
        n_attempts = max(1, len(self._trials.all) + (not self._is_settled))
        mode: Mode = "none" if made.failure else "pass" if made.is_necessary else "off"
        self.outcome = Outcome(mode, name, scene, made, n_attempts=n_attempts)
        if self._is_settled and self._trials.all:
            self.outcome = replace(self.outcome, measured=self._trials.best.measured)
        elif options.settings.verify:
            self._begin_to_read(gpu_name(options.settings))
        return made.plan if made.is_necessary and made.plan else None

    def _kept_for(self, graph: Graph) -> Made | None:
        """Return the plan that was decided after a step, if it is for this graph: the function is traced again."""
        decided, self._decided = self._decided, None
        return decided[1] if decided is not None and decided[0].ops.keys() == graph.ops.keys() else None

    def _begin_to_read(self, gpu: str | None) -> None:
        """Read memory above the level before the first step; tracing again is no part of a step."""
        grown = 0 if self._level is None else max(0, resident(gpu) - self._left)
        self._watch = Watch(gpu)
        self._watch.begin(None if self._level is None else self._level + grown)

    # -- after the step

    def settle(self) -> bool:
        """Read what the step took; return whether its function is to be made again, for another plan. Collective."""
        watch, outcome = self._watch, self.outcome
        if watch is None or not watch.is_on or outcome is None or outcome.made is None or outcome.scene is None:
            return False
        measured, options = watch.end(), self._options_of()
        self._level, self._left = measured.level, resident(watch.gpu)
        self.outcome = replace(outcome, measured=measured)
        add_trial(options, self._trials, outcome.made, measured)
        again = decide_again(options, outcome.scene, self._nbytes_learned(), self._trials) or self._best(options)
        if again is None:
            return False
        self._target, self._decided = again.target, (outcome.scene.graph, again)
        return True

    def _best(self, options: Options) -> Made | None:
        """End the trials; return the best plan, if it is not the last one."""
        self._is_settled = True
        best, last = self._trials.best, self._trials.all[-1]
        if best.made.budget is not None and best.peak > best.made.budget:
            options.speaker.warn_once(messages.not_kept(best.peak, best.made.budget))
        return None if best is last else best.made


def trains(graph: Graph) -> bool:
    """Return whether a function has gradients in it: Keras 3 calls what trains and what evaluates by one name."""
    return any("gradient" in name.lower() for name in graph.ops)
