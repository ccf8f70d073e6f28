"""The guard of a training loop: it advises at each batch boundary whether to save, and whether to stop."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.core.results import SavedStep
from hpcckpt.core.std_streams import flush_or_discard
from hpcckpt.errors import CodeError, CollectiveError
from hpcckpt.format import layout
from hpcckpt.preemption.agreement import Agreed, Agreement
from hpcckpt.preemption.decision import EXIT_CODE, NOTHING, Advice, Preempted
from hpcckpt.preemption.messages import Messages, describe_watch
from hpcckpt.preemption.options import GuardOptions, read_options
from hpcckpt.preemption.signals import DEFAULT, PROGRAM, signal_flag, signal_numbers
from hpcckpt.preemption.stop_requests import StopRequests
from hpcckpt.preemption.timing import JobTiming
from hpcckpt.preemption.walltime import seconds_left


def watch(
    ckpt: Checkpointer,
    *,
    signals: Iterable[str | int] = DEFAULT,
    walltime: float | str | timedelta | Literal[False] | None = None,
    job_end: float | str | datetime | None = None,
    reserve: float | str | timedelta | None = None,
    halt_every_s: float = 10.0,
    halt_directories: Iterable[str | os.PathLike[str]] = (),
    every_n_minutes: float | Literal["auto"] | None = None,
    mtbf: float | str | timedelta = "24h",
    max_overhead: float = 0.03,
    patience_s: float = 1.0,
    verbose: int = 1,
) -> Guard:
    """Return a guard that notices when this job must stop, and when to save. Collective.

    Parameters
    ----------
    ckpt : Checkpointer
        The checkpointer. The file ``HALT`` is looked for in its run directory.
    signals : iterable of str or int
        Signals that ask the job to stop; ``()`` for none.
    walltime : optional
        How long the job may take, from its start: ``"1:30:00"``, ``"90m"``, or seconds. With ``False`` it does not stop
        before its end.
    job_end : optional
        When the job ends: seconds since 1970, or ISO 8601. Without `walltime` and `job_end` the time is read from the
        environment.
    reserve : optional
        How long before the end to stop; by default estimated from the durations of saves and steps.
    halt_every_s : float
        Seconds between root's checks for the file ``HALT``; 0 for none.
    halt_directories : iterable of path_like
        Directories besides the run directory in which it is looked for.
    every_n_minutes : float or "auto", optional
        Minutes between advised saves; ``"auto"`` from the cost of saves and `mtbf` (Young, Daly).
    mtbf : optional
        Mean time between failures of the whole job, for ``"auto"``.
    max_overhead : float
        The largest part of the time that ``"auto"`` may spend on saves.
    patience_s : float
        Seconds that ranks wait for one another, in addition to the time of a batch, before they continue to a later
        boundary.
    verbose : int
        0 writes nothing; 1 writes a line on root about what is watched, and why the job stops.

    Raises
    ------
    OptionError
        Naming every invalid option, ``HPCCKPT_JOB_END`` included.
    CodeError
        If signals are to be caught outside of the main thread.
    """
    comm = ckpt.comm
    options = comm.agree(
        "preemption: options",
        lambda: read_options(
            is_root=comm.is_root,
            signals=signals,
            walltime=walltime,
            job_end=job_end,
            reserve=reserve,
            halt_every_s=halt_every_s,
            halt_directories=halt_directories,
            every_n_minutes=every_n_minutes,
            mtbf=mtbf,
            max_overhead=max_overhead,
            patience_s=patience_s,
        ),
    )
    return Guard(ckpt, comm.bcast(options), is_logging=bool(verbose) and comm.is_root)


class Guard:
    """Advises at batch boundaries whether to save or to stop; made by `watch`.

    At each boundary the program calls `check` once, with the step that has just ended, and follows the advice, which is
    the same on all ranks. A boundary without advice does not wait. Steps are counted over all epochs; a program that
    resumes from an older step calls `go_back`.

    Parameters
    ----------
    ckpt : Checkpointer
        The checkpointer.
    options : object
        The options, on which all ranks have agreed.
    is_logging : bool
        Whether this rank writes lines.
    """

    def __init__(self, ckpt: Checkpointer, options: GuardOptions, *, is_logging: bool) -> None:
        left_s = seconds_left(options.job_end)
        self._ckpt = ckpt
        self._messages = Messages(is_logging=is_logging)
        self._timing = JobTiming(options, left_s)
        self._requests = StopRequests(ckpt.comm.rank, ckpt.directory, options, self._timing, self._messages)
        ckpt.comm.agree("preemption: catch signals", self._requests.catch)
        self._agreement = Agreement(ckpt.comm.duplicate(), options.patience_s, ckpt.options.peer_timeout_s)
        self._step = -1
        self._advice = NOTHING
        self._stop: Advice | None = None
        self._is_open = True
        self._is_halting = bool(options.halt_every_s)
        if self._is_halting:
            ckpt.journal.listening(halt=True)
        self._forget_saves = ckpt.on_saved(self._take_in)
        self._forget_drains = ckpt.on_drained(self._timing.drained)
        self._messages.log(describe_watch(options, self._timing, left_s, self._requests.halt_path))
        for warning in options.warnings:
            self._messages.warn(warning)

    # -- at each boundary ------------------------------------------------------------------------------

    def check(self, step: int) -> Advice:
        """Return what to do after a step. Collective if it advises something, else Independent.

        It may be called again with the same step while no step ends, for example between the batches of a validation:
        then a stop need not wait until the validation ends.

        Parameters
        ----------
        step : int
            Steps done since the training began, over all epochs.

        Raises
        ------
        CodeError
            If `step` is less than before, or not a whole number.
        """
        self._check_open()
        step = layout.as_step(step)
        if self._stop is not None:
            return self._stop
        if step < self._step:
            raise CodeError(
                f"step {step} comes after step {self._step}: count steps over all epochs, or call go_back({step})"
            )
        self._ckpt.poll()
        self._timing.step_ended(is_saving=self._ckpt.is_saving)
        self._step = step
        self._advice = self._advise(self._agreement.boundary(step, self._requests.request(step), self._ckpt.poll))
        self._timing.step_begins(is_saving=self._ckpt.is_saving)
        return self._advice

    def should_stop(self, step: int) -> bool:
        """Return True if the job is to save and stop, for loops without ``every_n_minutes``. See `check`."""
        return self._advice_at(step).stop

    def should_save(self, step: int) -> bool:
        """Return True if a save is due after a step, by time or because the job stops. See `check`."""
        return self._advice_at(step).save

    def go_back(self, step: int) -> None:
        """Accept older steps: the program resumes from `step`, on all ranks. Independent."""
        self._step = layout.as_step(step)
        self._agreement.go_back()

    def finished(self) -> Advice:
        """Wait, on a rank without further batches, for what the other ranks agree on. Collective.

        Only needed if ranks may differ in the number of their batches. Follow the advice here too, with
        ``advice.step`` as the step, until ``advice.is_end``.
        """
        self._check_open()
        return self._advise(self._agreement.finished(self._ckpt.poll))

    def ask_to_stop(self, reason: str) -> None:
        """Request that the job stops, as a signal would; one rank is enough. Independent."""
        self._requests.ask(reason)

    def time_left(self) -> float | None:
        """Return the seconds until the job ends; None if that is unknown. Independent."""
        return self._requests.time_left()

    @property
    def interval_s(self) -> float | None:
        """Seconds from one advised save to the next, as root computes it; None without ``every_n_minutes``."""
        return self._timing.interval_s

    # -- the end ---------------------------------------------------------------------------------------

    def save_and_exit(
        self,
        state: Any,
        *,
        metrics: Mapping[str, float] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Save the agreed step, unless it is committed already, and `exit`. Collective.

        The failure of an earlier save is only logged, so that this step is saved.

        Raises
        ------
        Preempted
            When the step is durable.
        CollectiveError
            If it cannot be saved; the same on every rank.
        CodeError
            If no stop was agreed on.
        """
        stop = self._agreed_stop()
        try:
            self._ckpt.wait()
        except CollectiveError as error:
            self._messages.warn(f"{error}; step {stop.step} is saved nevertheless")
        if self._ckpt.last_step != stop.step:
            self._ckpt.save(stop.step, state, metrics=metrics, objects=objects).result()
        self.exit()

    def exit(self) -> NoReturn:
        """Close the checkpointer, so that all saves are durable, and end the program with code 75. Collective.

        It raises `Preempted`, a ``SystemExit``: when Python ends, all ranks finalize MPI together before any of them
        exits, so no launcher takes the first exit for a failure and kills the other ranks.

        Raises
        ------
        Preempted
            Always, unless a save failed.
        CollectiveError
            If a save failed and its failure was not raised yet; the same error on every rank.
        CodeError
            If no stop was agreed on.
        """
        stop = self._agreed_stop()
        if self._agreement.comm.is_root:
            self._ckpt.journal.stopped(stop.step, self._requests.why_stopped(stop))
        self._ckpt.close()
        if self._agreement.comm.is_root:
            self._requests.move_halt_aside(stop.step)
        self._forget_saves()
        self._forget_drains()
        self._is_open = False
        self._agreement.release()
        self._requests.ignore()
        self._messages.log(f"stopped step={stop.step} exit={EXIT_CODE}")
        flush_or_discard()  # or Python would exit with 120, and the job would not be requeued
        raise Preempted(stop.step, stop.reason)

    def close(self) -> None:
        """Stop watching, when the training has ended on all ranks; restore the signal handlers. Collective."""
        if self._is_open:
            self._is_open = False
            self._agreement.close(self._ckpt.poll)
            self._release_signals()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._is_open:  # other ranks may not call it
            self._is_open = False
            self._release_signals()

    # -- advice ------------------------------------------------------------------------------------------

    def _advice_at(self, step: int) -> Advice:
        return self._advice if step == self._step else self.check(step)

    def _advise(self, agreed: Agreed | None) -> Advice:
        if agreed is None:
            return NOTHING
        advice = Advice(agreed.what in {"save", "stop"}, agreed.what == "stop", agreed.step, agreed.reason)
        if agreed.what == "end":
            return advice._replace(is_end=True)
        self._timing.save_begins()
        if advice.stop:
            self._stop = advice
            self._messages.log(f"stopping step={advice.step} reason={advice.reason!r}")
        return advice

    def _take_in(self, saved: SavedStep) -> None:
        """Record what a committed save cost. Independent."""
        self._timing.committed(saved)
        self._ckpt.journal.cost(saved.step, self._timing.last_cost_s)

    def _agreed_stop(self) -> Advice:
        self._check_open()
        if self._stop is None:
            raise CodeError("no stop was agreed on: call this only after check() or should_stop() has advised a stop")
        return self._stop

    def _check_open(self) -> None:
        if not self._is_open:
            raise CodeError("this guard is closed; watch() makes a new one")

    def _release_signals(self) -> None:
        if self._is_halting:
            self._ckpt.journal.listening(halt=False)
        self._forget_saves()
        self._forget_drains()
        self._requests.release()


def catch_signals(signals: Iterable[str | int] = DEFAULT) -> None:
    """Catch signals from now on, until `watch` takes them over. Independent.

    Call it first in a program: then a signal that arrives while the model is built or restored does not kill the job;
    the job stops at its first batch boundary instead.
    """
    signal_flag().catch(signal_numbers(signals), PROGRAM)
