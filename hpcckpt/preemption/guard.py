"""The guard of a training loop: it says at each batch boundary whether to save, and whether to stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn

from hpcckpt import layout
from hpcckpt.checkpointer import Checkpointer
from hpcckpt.errors import CodeError, CollectiveError
from hpcckpt.preemption.advice import EXIT_CODE, NOTHING, Advice, Preempted
from hpcckpt.preemption.agreement import Agreed, Agreement
from hpcckpt.preemption.asking import Requests
from hpcckpt.preemption.learning import Learned
from hpcckpt.preemption.options import GuardOptions, read_options
from hpcckpt.preemption.signals import DEFAULT, PROGRAM, signal_numbers, the_flag
from hpcckpt.preemption.voice import Voice, what_is_watched
from hpcckpt.preemption.walltime import seconds_left
from hpcckpt.run import SavedStep
from hpcckpt.streams import flush_or_discard


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
            every_n_minutes=every_n_minutes,
            mtbf=mtbf,
            max_overhead=max_overhead,
            patience_s=patience_s,
        ),
    )
    return Guard(ckpt, comm.bcast(options), is_talking=bool(verbose) and comm.is_root)


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

    def __init__(self, ckpt: Checkpointer, options: GuardOptions, *, is_talking: bool) -> None:
        left_s = seconds_left(options.job_end)
        self._ckpt = ckpt
        self._voice = Voice(is_talking=is_talking)
        self._learned = Learned(options, left_s)
        self._requests = Requests(ckpt.comm.rank, ckpt.directory, options, self._learned, self._voice)
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
        self._forget_drains = ckpt.on_drained(self._learned.drained)
        self._voice.say(what_is_watched(options, self._learned, left_s, self._requests.halt_path))
        for warning in options.warnings:
            self._voice.warn(warning)

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
            If `step` is less than before, or not a whole number.
        """
        self._check_open()
        step = layout.as_step(step)
        if self._stop is not None:
            return self._stop
        if step < self._step:
            raise CodeError(
                f"step {step} comes behind step {self._step}: count steps over all epochs, or say go_back({step})"
            )
        self._ckpt.poll()
        self._learned.step_ended(is_saving=self._ckpt.is_saving)
        self._step = step
        self._advice = self._advise(self._agreement.boundary(step, self._requests.wish(step), self._ckpt.poll))
        self._learned.step_begins(is_saving=self._ckpt.is_saving)
        return self._advice

    def should_stop(self, step: int) -> bool:
        """Say whether to save and stop behind a step; for loops without ``every_n_minutes``. See `check`."""
        return self._advice_at(step).stop

    def should_save(self, step: int) -> bool:
        """Say whether to save behind a step, because it is time to or because the job stops. See `check`."""
        return self._advice_at(step).save

    def go_back(self, step: int) -> None:
        """Say that the program has gone back to an older step, as all ranks do. Independent."""
        self._step = layout.as_step(step)
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
        self._requests.ask(reason)

    def time_left(self) -> float | None:
        """Return the seconds until the job ends; ``None`` if nobody knows. Independent."""
        return self._requests.time_left()

    @property
    def interval_s(self) -> float | None:
        """Seconds from one advised save to the next; ``None`` without ``every_n_minutes``. Root's count."""
        return self._learned.interval_s

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
            self._voice.warn(f"{error}; step {stop.step} is saved all the same")
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
        if self._agreement.comm.is_root:
            self._ckpt.journal.stopped(stop.step, self._requests.why_stopped(stop))
        self._ckpt.close()
        if self._agreement.comm.is_root:
            self._requests.take_halt_away(stop.step)
        self._forget_saves()
        self._forget_drains()
        self._is_open = False
        self._agreement.release()
        self._requests.ignore()
        self._voice.say(f"stopped step={stop.step} exit={EXIT_CODE}")
        flush_or_discard()  # or Python would exit with 120, and the job would not be requeued
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
        self._learned.save_begins()
        if advice.stop:
            self._stop = advice
            self._voice.say(f"stopping step={advice.step} reason={advice.reason!r}")
        return advice

    def _take_in(self, saved: SavedStep) -> None:
        """Learn from a save that is committed. Independent."""
        self._learned.committed(saved)
        self._ckpt.journal.cost(saved.step, self._learned.last_cost_s)

    def _agreed_stop(self) -> Advice:
        self._check_open()
        if self._stop is None:
            raise CodeError("no stop was agreed on: call check() or should_stop() first, and this if it says so")
        return self._stop

    def _check_open(self) -> None:
        if not self._is_open:
            raise CodeError("this guard is closed; watch() makes a new one")

    def _give_back(self) -> None:
        if self._is_halting:
            self._ckpt.journal.listening(halt=False)
        self._forget_saves()
        self._forget_drains()
        self._requests.give_back()


def catch_signals(signals: Iterable[str | int] = DEFAULT) -> None:
    """Catch signals from now on, before there is anything to save; `watch` takes them over. Independent.

    Called first in a program, it keeps a signal that comes while the model is built or restored from ending the job
    with nothing said; the job stops at its first boundary then.
    """
    the_flag().catch(signal_numbers(signals), PROGRAM)
