"""The guard of a training loop: it says at each batch boundary whether to save, and whether to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, NoReturn

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.errors import CodeError, CollectiveError, OptionError, Problem, list_problems
from hpcckpt.interval import IntervalPlanner
from hpcckpt.preemption.agreement import Agreed, Agreement, Wish
from hpcckpt.preemption.clock import duration_s, duration_text
from hpcckpt.preemption.halt import HaltWatch
from hpcckpt.preemption.signals import DEFAULT, PROGRAM, signal_names, signal_numbers, the_flag
from hpcckpt.preemption.walltime import JobEnd, TimeNeeded, find_job_end, seconds_left
from hpcckpt.run import SavedStep

EXIT_CODE = 75
"""EX_TEMPFAIL: the job has saved and wants to go on; put it into the queue again."""


class Preempted(SystemExit):
    """The job has saved, and ends: the program exits with code 75, after Python has ended and MPI is finalized.

    Attributes
    ----------
    step : int
        The step that was saved.
    reason : str
        Why the job ends.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(EXIT_CODE)
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return f"stopped behind step {self.step}: {self.reason}"


class Advice(NamedTuple):
    """What to do at a batch boundary, the same on all ranks.

    Attributes
    ----------
    save, stop : bool
        Whether to save now; whether to stop, which means to save first.
    step : int
        The step that was agreed on.
    reason : str
        Why.
    is_end : bool
        All ranks have finished (`Guard.finished` only).
    """

    save: bool = False
    stop: bool = False
    step: int = -1
    reason: str = ""
    is_end: bool = False


NOTHING = Advice()


@dataclass(frozen=True, slots=True)
class _Options:
    """What is decided once, on root."""

    signals: tuple[int, ...]
    job_end: JobEnd | None
    warnings: tuple[str, ...]
    halt_every_s: float
    period_s: float | Literal["auto"] | None
    mtbf_s: float
    max_overhead: float
    reserve_s: float | None
    patience_s: float


def watch(
    ckpt: Checkpointer,
    *,
    signals: Iterable[str | int] = DEFAULT,
    walltime: float | str | timedelta | Literal[False] | None = None,
    job_end: float | str | datetime | None = None,
    reserve: float | str | timedelta | None = None,
    halt_every_s: float = 10.0,
    every_n_minutes: float | Literal["auto"] | None = None,
    mtbf: float | str | timedelta = "24h",
    max_overhead: float = 0.03,
    patience_s: float = 1.0,
    verbose: int = 1,
) -> Guard:
    """Watch out for what ends this job, and for the time to save. Collective.

    Parameters
    ----------
    ckpt : Checkpointer
        What saves; its run directory is where the file ``HALT`` is looked for.
    signals : iterable of str or int
        Signals that ask the job to stop; ``()`` for none.
    walltime : optional
        How long the job may take, from its start: ``"1:30:00"``, ``"90m"``, seconds; ``False`` not to stop for its end.
    job_end : optional
        When it ends: seconds since 1970, or ISO 8601. Without either, what the environment says.
    reserve : optional
        How long before the end to stop; by default learned from the saves and the steps.
    halt_every_s : float
        How often root looks for the file ``HALT``; 0 never.
    every_n_minutes : float or "auto", optional
        Advise a save so often; ``"auto"`` from what saves cost and `mtbf` (Young, Daly).
    mtbf : optional
        Mean time between failures of the whole job, for ``"auto"``.
    max_overhead : float
        The part of the time that ``"auto"`` may spend on saves.
    patience_s : float
        How long ranks wait for one another, beside the time of a batch, before they go on to a later boundary.
    verbose : int
        0 is silent; 1 writes a line on root about what is watched, and why the job stops.

    Raises
    ------
    OptionError
        Naming every option that is wrong, or ``HPCCKPT_JOB_END``.
    CodeError
        If signals are to be caught outside of the main thread.
    """

    def read() -> _Options:
        found = find_job_end(walltime, job_end) if ckpt.comm.is_root and walltime is not False else None
        options = _Options(
            signals=signal_numbers(signals),
            job_end=found.end if found else None,
            warnings=found.warnings if found else (),
            halt_every_s=float(halt_every_s),
            period_s=_period(every_n_minutes),
            mtbf_s=duration_s(mtbf),
            max_overhead=float(max_overhead),
            reserve_s=None if reserve is None else duration_s(reserve),
            patience_s=float(patience_s),
        )
        return _checked(options)

    options = ckpt.comm.bcast(ckpt.comm.agree("preemption: options", read))
    return Guard(ckpt, options, is_talking=bool(verbose) and ckpt.comm.is_root)


def _period(every_n_minutes: float | str | None) -> float | Literal["auto"] | None:
    if every_n_minutes is None:
        return None
    if every_n_minutes == "auto":
        return "auto"
    if isinstance(every_n_minutes, str) or not every_n_minutes > 0:
        raise OptionError(f"every_n_minutes: {every_n_minutes!r} – a positive number, 'auto', or None")
    return 60.0 * every_n_minutes


def _checked(options: _Options) -> _Options:
    rules = [
        ("halt_every_s", options.halt_every_s >= 0, "must not be negative"),
        ("max_overhead", 0 < options.max_overhead < 1, "must be between 0 and 1"),
        ("patience_s", options.patience_s > 0, "must be positive"),
    ]
    problems = [Problem(name, text) for name, is_met, text in rules if not is_met]
    if problems:
        raise OptionError(list_problems(problems))
    return options


class Guard:
    """Says at each batch boundary whether to save and whether to stop, the same on all ranks; made by `watch`.

    At each boundary the program calls `check` once with the step that has just ended, and does what it advises.
    Nothing is waited for at a boundary at which nothing is advised. Steps count on over epochs; where a program goes
    back to an older one it says so with `go_back`.

    Parameters
    ----------
    ckpt : Checkpointer
        What saves.
    options : object
        As agreed.
    is_talking : bool
        Whether this rank writes lines.
    """

    def __init__(self, ckpt: Checkpointer, options: _Options, *, is_talking: bool) -> None:
        self._ckpt = ckpt
        self._options = options
        self._is_talking = is_talking
        self._flag = the_flag()
        ckpt.comm.agree("preemption: catch signals", lambda: self._flag.catch(options.signals, self))
        self._agreement = Agreement(ckpt.comm.duplicate(), options.patience_s, ckpt.options.peer_timeout_s)
        self._halt = HaltWatch(ckpt.directory, options.halt_every_s) if options.halt_every_s else None
        left_s = seconds_left(options.job_end)
        self._needed = TimeNeeded(left_s or 0.0, options.reserve_s)
        self._planner = IntervalPlanner(options.mtbf_s, options.max_overhead)
        self._asked = ""
        self._step = -1
        self._advice = NOTHING
        self._stop: Advice | None = None
        self._left_at: float | None = None
        self._was_saving = False
        self._period_began = time.monotonic()
        self._is_open = True
        self._forget_saves = ckpt.on_saved(self._take_in)
        self._forget_drains = ckpt.on_drained(self._take_in_drained)
        self._say_what_is_watched(left_s)

    # -- at each boundary ------------------------------------------------------------------------------

    def check(self, step: int) -> Advice:
        """Say what to do behind a step. Collective where it advises something, else Independent.

        It may be called again with the same step where no step ends: between batches of a validation, so that a stop
        need not wait for its end.

        Parameters
        ----------
        step : int
            Steps done since the training began, over all epochs.

        Raises
        ------
        CodeError
            If `step` is less than before.
        """
        self._check_open()
        if self._stop is not None:
            return self._stop
        if step < self._step:
            raise CodeError(
                f"step {step} comes behind step {self._step}: count steps over all epochs, or say go_back({step})"
            )
        self._ckpt.poll()
        self._observe_step()
        self._step = step
        self._advice = self._advise(self._agreement.boundary(step, self._wish(step), self._ckpt.poll))
        self._left_at, self._was_saving = time.monotonic(), self._ckpt.is_saving
        return self._advice

    def should_stop(self, step: int) -> bool:
        """Say whether to save and stop behind a step; for loops without ``every_n_minutes``. See `check`."""
        return self._advice_at(step).stop

    def should_save(self, step: int) -> bool:
        """Say whether to save behind a step, because it is time to or because the job stops. See `check`."""
        return self._advice_at(step).save

    def go_back(self, step: int) -> None:
        """Say that the program has gone back to an older step, as all ranks do. Independent."""
        self._step = step
        self._agreement.go_back()

    def finished(self) -> Advice:
        """Wait, on a rank without further batches, for what the others agree on. Collective.

        Only needed where ranks may differ in the number of their batches. What is advised is done here too, with
        ``advice.step`` as the step, until ``advice.is_end``.
        """
        self._check_open()
        return self._advise(self._agreement.finished(self._ckpt.poll))

    def ask_to_stop(self, reason: str) -> None:
        """Have the job stop as a signal would; one rank is enough. Independent."""
        self._asked = reason

    def time_left(self) -> float | None:
        """Return the seconds until the job ends; ``None`` if nobody knows. Independent."""
        return seconds_left(self._options.job_end)

    @property
    def interval_s(self) -> float | None:
        """Seconds from one advised save to the next; ``None`` without ``every_n_minutes``. Root's count."""
        period = self._options.period_s
        return self._planner.period_s if period == "auto" else period

    # -- the end ---------------------------------------------------------------------------------------

    def save_and_exit(
        self,
        state: Any,
        *,
        metrics: Mapping[str, float] | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Save the step that was agreed on, unless it stands there already, and `exit`. Collective.

        A save that failed before is only told of, so that this one is made.

        Raises
        ------
        Preempted
            When the step is durable.
        CollectiveError
            If it cannot be saved; alike on every rank.
        CodeError
            If no stop was agreed on.
        """
        stop = self._agreed_stop()
        try:
            self._ckpt.wait()
        except CollectiveError as error:
            self._say(f"hpcckpt: warning: {error}; step {stop.step} is saved all the same")
        if self._ckpt.last_step != stop.step:
            self._ckpt.save(stop.step, state, metrics=metrics, objects=objects).result()
        self.exit()

    def exit(self) -> NoReturn:
        """Close the checkpointer, so that all that was saved is durable, and end the program with code 75. Collective.

        It raises `Preempted`, a ``SystemExit``: MPI is finalized by all ranks together when Python ends, before any of
        them exits, so that no launcher takes the first for a failure of which the others must be killed.

        Raises
        ------
        Preempted
            Always, unless a save failed.
        CollectiveError
            If a save failed whose failure was not raised yet; alike on every rank.
        CodeError
            If no stop was agreed on.
        """
        stop = self._agreed_stop()
        self._ckpt.journal.stopped(stop.step, stop.reason)
        self._ckpt.close()
        if self._halt is not None and self._agreement.comm.is_root:
            self._take_halt_away(self._halt, stop.step)
        self._forget_saves()
        self._forget_drains()
        self._is_open = False
        self._agreement.release()
        if self._options.signals:
            self._flag.ignore()
        self._say(f"hpcckpt: stopped step={stop.step} exit={EXIT_CODE}")
        raise Preempted(stop.step, stop.reason)

    def close(self) -> None:
        """Stop watching, when the training has ended on all ranks; signals are given back. Collective."""
        if self._is_open:
            self._is_open = False
            self._agreement.close(self._ckpt.poll)
            self._give_back()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._is_open:  # the others may not come
            self._is_open = False
            self._give_back()

    # -- what stands behind it -------------------------------------------------------------------------

    def _advice_at(self, step: int) -> Advice:
        return self._advice if step == self._step else self.check(step)

    def _advise(self, agreed: Agreed | None) -> Advice:
        if agreed is None:
            return NOTHING
        advice = Advice(agreed.what in {"save", "stop"}, agreed.what == "stop", agreed.step, agreed.reason)
        if agreed.what == "end":
            return advice._replace(is_end=True)
        self._period_began = time.monotonic()
        if advice.stop:
            self._stop = advice
            self._say(f"hpcckpt: stopping step={advice.step} reason={advice.reason!r}")
        return advice

    def _wish(self, step: int) -> Wish | None:
        """Return what this rank wants now. Independent."""
        rank = self._ckpt.comm.rank
        if self._flag.caught is not None and self._options.signals:
            return Wish("stop", f"{self._flag.caught.name} on rank {rank}")
        if self._asked:
            return Wish("stop", self._asked)
        return self._wish_of_root(step) if rank == 0 else None

    def _wish_of_root(self, step: int) -> Wish | None:
        left_s = self.time_left()
        if left_s is not None and left_s <= self._needed.seconds():
            return Wish("stop", f"the job ends in {duration_text(max(0.0, left_s))}")
        if self._halt is not None:
            complaint = self._halt.complaint
            reason = self._halt.reason(step)
            if self._halt.complaint not in {"", complaint}:
                self._say(f"hpcckpt: warning: {self._halt.complaint}")
            if reason:
                return Wish("stop", reason)
        interval_s = self.interval_s
        if interval_s is not None and time.monotonic() - self._period_began >= interval_s:
            return Wish("save", "it is time")
        return None

    def _observe_step(self) -> None:
        """Take in how long it is since the last boundary. Independent."""
        if self._left_at is not None:
            seconds = time.monotonic() - self._left_at
            self._needed.observe_step(seconds)
            self._planner.observe_step(seconds, is_saving=self._was_saving or self._ckpt.is_saving)

    def _take_in(self, saved: SavedStep) -> None:
        """Learn from a save that is committed. Independent."""
        self._planner.observe_save(saved.stall_seconds, saved.seconds)
        self._ckpt.journal.cost(saved.step, self._planner.last_cost_s)
        self._period_began = max(self._period_began, time.monotonic() - saved.seconds)

    def _take_in_drained(self, saved: SavedStep) -> None:
        """Learn how long a step takes to the run directory, where the last one has to come too. Independent."""
        self._needed.observe_save(saved.seconds)

    def _agreed_stop(self) -> Advice:
        self._check_open()
        if self._stop is None:
            raise CodeError("no stop was agreed on: call check() or should_stop() first, and this if it says so")
        return self._stop

    def _check_open(self) -> None:
        if not self._is_open:
            raise CodeError("this guard is closed; watch() makes a new one")

    def _give_back(self) -> None:
        self._forget_saves()
        self._forget_drains()
        self._flag.release(self)

    def _take_halt_away(self, halt: HaltWatch, step: int) -> None:
        try:
            halt.take_away(step)
        except OSError as error:
            self._say(f"hpcckpt: warning: {halt.path} could not be removed ({error}): the next job will stop at once")

    def _say(self, line: str) -> None:
        if self._is_talking:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _say_what_is_watched(self, left_s: float | None) -> None:
        options = self._options
        names = ",".join(signal_names(options.signals)) or "none"
        end = "unknown" if options.job_end is None else str(options.job_end).replace(" ", "")
        words = [f"signals={names}", f"end={end}"]
        if left_s is not None:
            words += [f"left={duration_text(left_s)}", f"reserve={self._needed.seconds():.0f}s"]
        words.append(f"halt={self._halt.path}" if self._halt is not None else "halt=none")
        if self.interval_s is not None:
            every = "auto" if options.period_s == "auto" else duration_text(self.interval_s)
            words.append(f"every={every}")
        self._say(f"hpcckpt: watching {' '.join(words)}")
        for warning in options.warnings:
            self._say(f"hpcckpt: warning: {warning}")


def catch_signals(signals: Iterable[str | int] = DEFAULT) -> None:
    """Catch signals from now on, before there is anything to save; `watch` takes them over. Independent.

    Called first in a program, it keeps a signal that comes while the model is built or restored from ending the job
    with nothing said; the job stops at its first boundary then.
    """
    the_flag().catch(signal_numbers(signals), PROGRAM)
