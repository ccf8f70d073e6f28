"""The drains of one checkpointer, in the order of the saves, and who waits for them."""

from __future__ import annotations

from hpcckpt.collective.background import DRAIN_NICE, BackgroundTasks
from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.outcomes import Outcome
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import CollectiveError, RetiredError, StepNotFoundError
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.run_directory import Lineage, RunDirectory
from hpcckpt.saving.save_queue import Listeners
from hpcckpt.tiers.copy import Pace, Rules
from hpcckpt.tiers.drain import CopyReport, Drain, DrainOutcome, DrainTasks

_GONE = frozenset({RetiredError.kind, StepNotFoundError.kind})


class DrainQueue:
    """The drains of one checkpointer, one at a time; the same on all ranks.

    Attributes
    ----------
    background : BackgroundTasks
        The collective tasks of the drains.
    listeners : Listeners
        Called with each drained step, when this rank receives the outcome.
    """

    def __init__(self, comm: Communicator, scratch: RunDirectory, persistent: RunDirectory) -> None:
        self.background = BackgroundTasks(comm, "drains")
        self.listeners = Listeners()
        self._comm, self._scratch, self._persistent = comm, scratch, persistent
        self._drains: list[Drain] = []
        options = persistent.options
        self._lag = options.max_in_flight - 1 + options.scratch_keep
        system, bandwidth = scratch.system, options.scratch_bandwidth
        self._pace = Pace(None if bandwidth is None else bandwidth / comm.size, system)
        rules = Rules(1, self._pace, nice=DRAIN_NICE, system=system)
        self._tasks = DrainTasks(scratch, persistent, rules, self._drains)
        self._n_started = 0

    # -- start -------------------------------------------------------------------------------------

    def start(self, number: int, saved: SavedStep, save_id: str, *, overwrite: bool) -> Drain:
        """Start to drain a step that was committed on scratch; once, if it is repeated; return that. Independent."""
        drain = next((drain for drain in self._drains if drain.number == number), None)
        if drain is None:
            for each in [each for each in self._drains if each.is_left and each.saved.step >= saved.step]:
                if each.task is None:
                    self.drop(each)
            drain = Drain(number, saved, save_id, overwrite, self._comm.clock.monotonic() - saved.seconds)
        if not drain.is_over:
            self._start(drain)  # S2
        return drain

    def start_left(self, info: StepInfo) -> Drain:
        """Start to drain a step that an earlier job left, or that this one could not drain yet. Independent."""
        m = info.manifest
        assert m is not None
        drain = next((each for each in self._drains if each.save_id == m.save_id and each.drained is None), None)
        if drain is None:
            left = SavedStep(info.step, info.path, m.nbytes, len(m.files), 0.0, 0.0, 0, m.backend, tier="scratch")
            drain = Drain(-1, left, m.save_id, overwrite=False, began=self._comm.clock.monotonic())
        drain.manifest = None if self._scratch.nodes.is_shared else m
        drain.failures = None
        self._start(drain)
        return drain

    def _start(self, drain: Drain) -> None:
        if drain.task is not None:
            return
        number = self._n_started
        before = next((d.task.local for d in reversed(self._drains) if d.task is not None), None)
        if drain not in self._drains:
            self._drains.append(drain)

        def copy() -> CopyReport:
            if before is not None:
                before.join(f"step {drain.saved.step} waits for the drain before it")
            return self._tasks.copy(drain)

        task = self.background.begin(
            self.background.prepare(
                2 * number,
                f"drain step {drain.saved.step}",
                copy,
                lambda outcomes: self._tasks.reduce_copy(drain, outcomes),
                lambda outcome: self._verify(drain, number, outcome),
            )
        )
        drain.task, self._n_started = task, number + 1  # in one line: an interrupt before it repeats all of this

    def _verify(self, drain: Drain, number: int, outcome: Outcome) -> None:
        """Start to read the copy back, unless it failed. Independent."""
        result = _result(outcome)
        if result.failures:
            self._end(drain, outcome)
            return
        drain.task = self.background.begin(
            self.background.prepare(
                2 * number + 1,
                f"drain step {drain.saved.step}",
                lambda: self._tasks.verify(drain, result.entries),
                lambda outcomes: self._tasks.reduce_commit(drain, outcomes),
                lambda outcome: self._end(drain, outcome),
            )
        )

    def _end(self, drain: Drain, outcome: Outcome) -> None:
        """Apply root's outcome; may be repeated. Independent."""
        result = _result(outcome)
        if result.drained is not None and not self._comm.is_root:
            if not drain.is_left:
                self._persistent.lineage = Lineage(self._scratch.lineage.run_id, drain.save_id, drain.saved.step)
            if self._scratch.is_leading:
                self._tasks.unpin(drain)
        if not drain.is_over:
            drain.is_reported = False
            drain.drained, drain.failures = result.drained, result.failures or None  # D6
        drain.task = None
        if result.drained is not None:
            self.listeners.call(drain, result.drained)

    def drop(self, drain: Drain) -> None:
        """Forget a drain that failed, because the run continues without its step. Independent."""
        self._drains.remove(drain)

    def leave_behind(self, step: int) -> None:
        """Note that the run goes on from a step: later ones are drained until their numbers are saved. Independent."""
        for drain in self._drains:
            drain.is_left = drain.is_left or (drain.drained is None and drain.saved.step > step)

    # -- wait --------------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """Whether a step is being drained, as far as known here."""
        return any(not drain.is_over for drain in self._drains)

    @property
    def is_drained(self) -> bool:
        """Whether all steps are in the run directory, as far as known here."""
        return all(drain.drained is not None for drain in self._drains)

    def wait(self, drain: Drain) -> SavedStep:
        """Wait until a step is in the run directory, without a limit of its speed; raise what failed. Collective."""
        self._pace.lift()
        try:
            while drain.task is not None and not drain.is_over:
                self.background.wait(drain.task)
        finally:
            self._pace.limit()
        drain.is_reported = True
        if drain.drained is None:
            raise drain.error(drain.failures or {})
        return drain.drained

    def make_room(self, n_saves: int, replaced: int | None = None) -> None:
        """Wait for the drains that a save of this number must not overtake; raise one's failure, once. Collective.

        That is also one of the step that is `replaced`, so call it when no save is in flight then.  Which are waited
        for depends only on the arguments, so all ranks raise the same.
        """
        n_drained = n_saves - self._lag
        for drain in [d for d in self._drains if d.number < n_drained or d.saved.step == replaced]:
            if not drain.is_reported:
                self.wait(drain)
        # those saves are reported here, so no `start` is repeated; one that failed needs to know what came after it
        while self._drains and self._drains[0].drained is not None and self._drains[0].number < n_drained:
            del self._drains[0]

    def finish(self, *, is_going_back: bool = False) -> None:
        """Wait for all drains, and repeat those that failed; raise the first failure. Collective.

        Call it when no save is in flight. A caller that `is_going_back` to an earlier step may do so after it was told
        once that a later one cannot be drained.
        """
        failure: CollectiveError | None = None
        for drain in list(self._drains):
            is_passed_over = is_going_back and drain.is_reported
            try:
                self._finish(drain)
            except CollectiveError as error:
                if self._is_replaced(drain, error):
                    self.drop(drain)
                elif not is_passed_over:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _is_replaced(self, drain: Drain, error: CollectiveError) -> bool:
        """Return True if a drain failed because a later save of its number has replaced its step on scratch."""
        is_gone = set(error.kinds.values()) <= _GONE
        return is_gone and any(
            each.saved.step == drain.saved.step for each in self._drains if each.number > drain.number
        )

    def _finish(self, drain: Drain) -> None:
        try:
            self.wait(drain)
            return
        except CollectiveError:
            if self._comm.calls.is_broken_off:
                raise
        drain.failures, drain.began = (
            None,
            self._comm.clock.monotonic(),
        )  # the time since it failed is not that of a drain
        self._start(drain)  # never the only copy on scratch, if that can be prevented
        self.wait(drain)


def _result(outcome: Outcome) -> DrainOutcome:
    """Return what root sent, or its failure. Pure."""
    if outcome.failure is not None:
        return DrainOutcome(failures={0: outcome.failure})
    result: DrainOutcome = outcome.value
    return result
