"""One ``fit`` that is backed up, from its first batch to its last: the implementation of `BackupAndRestore`."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hpcckpt.core.options import Level
from hpcckpt.core.results import SavedStep
from hpcckpt.errors import CollectiveError
from hpcckpt.keras.callbacks import metric_state, reproducibility
from hpcckpt.keras.callbacks.async_saves import Saves
from hpcckpt.keras.callbacks.callback_state import named
from hpcckpt.keras.callbacks.fit_hooks import RunningFit, other_callbacks
from hpcckpt.keras.callbacks.fit_restore import FitStart, fit_position, fit_start, restore
from hpcckpt.keras.callbacks.training_state import FailedState, Training
from hpcckpt.keras.data.data_source import DataSource, Mode, ReadPlan
from hpcckpt.keras.data.iterator_state import NO_STATE
from hpcckpt.keras.data.position import DataPosition, FitPosition, begin_at, forget
from hpcckpt.keras.data.skip_progress import Skipping, mark_bar
from hpcckpt.keras.files.describe import describe
from hpcckpt.keras.log_lines import learning_rate_lines, level_lines, position_line, resume_line
from hpcckpt.keras.model import batch_norm as statistics
from hpcckpt.keras.model.batch_norm import Policy
from hpcckpt.keras.model.optimizers import learning_rate_of
from hpcckpt.preemption import Advice, Guard, watch

_MUCH_NBYTES = 64 << 10
"""A position in the data that is smaller is not worth a line."""


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """When a ``fit`` is saved.

    Attributes
    ----------
    epochs : bool
        After each epoch.
    batches : int or None
        After every N batches, counted over epochs and restarts.
    minutes : float or "auto" or None
        After this many minutes.
    preemption : bool or mapping
        When the scheduler announces a preemption; the run then also ends. A mapping has options for
        `hpcckpt.preemption.watch`.
    """

    epochs: bool = True
    batches: int | None = None
    minutes: float | Literal["auto"] | None = None
    preemption: bool | Mapping[str, Any] = False


@dataclass(frozen=True, slots=True)
class SaveContent:
    """What is saved of a ``fit``, and how its position in the data is restored.

    Attributes
    ----------
    data : DataPosition or None
        A pipeline that knows its position.
    iterator : str
        How the position of any other pipeline is restored.
    statistics : str
        Whose statistics of BatchNorm count.
    more : mapping
        More state of the user to save.
    fork_from : Path or None
        Another run, or a step of it, to start from.
    """

    data: DataPosition | None = None
    iterator: Mode = "auto"
    statistics: Policy = "rank0"
    more: MutableMapping[str, Any] = field(default_factory=dict)
    fork_from: Path | None = None


class FitBackup:
    """A running ``fit``.

    Parameters
    ----------
    owner : BackupAndRestore
        The callback.
    fit : RunningFit
        The ``fit``.
    saves : Saves
        Where it is saved.
    schedule, content : SaveSchedule, SaveContent
        The user's options.

    Attributes
    ----------
    start : FitStart
        Where it began.
    at : FitPosition
        Where it is.
    level, reasons : str, list of str
        The reproducibility level of a resume, and why it is not higher.
    """

    def __init__(self, owner: Any, fit: RunningFit, saves: Saves, schedule: SaveSchedule, content: SaveContent) -> None:
        self.model = owner.model
        self.params: Mapping[str, Any] = owner.params or {}
        self.is_talking = bool(owner.verbose)
        self.fit, self.saves, self.schedule, self.content = fit, saves, schedule, content
        self.start = FitStart()
        self.at = FitPosition()
        self.level: Level = "state"
        self.reasons: list[str] = []
        self.epochs: dict[int, int] = {}
        self._position_nbytes: dict[int, int] = {}
        self._is_position_reported = False
        self._training = Training(
            self.model, named(other_callbacks(fit, owner)), fit.data_source, content.data, content.more
        )
        self._exactness = self._training.exactness
        self._guard: Guard | None = None
        self._architecture: dict[str, Any] = {}
        self._saved_step: int | None = None
        self._n_ranks = 1
        self._is_due = self._has_begun = self._is_announced = self._is_within_epoch = False
        self._has_arrived = fit.data_source is None

    # -- the beginning ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Restore, after every ``on_train_begin``, and set where Keras begins. Collective."""
        ckpt = self.saves.begin()
        self._n_ranks = ckpt.comm.size
        ckpt.comm.agree("fit: build the model", self._build)
        statistics.choose(self.model, self.content.statistics)
        compiled_rate = learning_rate_of(getattr(self.model, "optimizer", None))
        restored, is_forked = restore(ckpt, self._training, self.content.fork_from)
        epochs = None if is_forked else self.params.get("epochs")  # that the other was stopped does not end this
        position = fit_position(restored, self._training, ckpt.comm, self._steps, epochs)
        start = ckpt.comm.agree("fit: give back", lambda: fit_start(restored, self._training, ckpt.comm, position))
        self.start, self.at = replace(start, is_forked=is_forked), start.position
        ckpt.comm.agree("fit: compile", self._compile)
        if restored is not None:
            self._saved_step = None if is_forked else restored.step
            self._count_batches(restored.objects.get("train_counter"))
            at = self.at
            start = self.start
            line = resume_line(restored, at.epoch, at.batch, ckpt.comm.size, start.iterator, start.level)
            logged = set(restored.logged)  # the core has done so
            rate = learning_rate_of(getattr(self.model, "optimizer", None))
            rates = learning_rate_lines(compiled_rate, rate)
            self._print_lines(line, *rates, *_warnings(text for text in start.warnings if text not in logged))
        self._read_on(Skipping(is_shown=self.is_talking and ckpt.comm.is_root))
        self._guard = self._watch()

    def _build(self) -> None:
        """Create the weights of a model that has none yet, and describe it. Independent."""
        self._exactness.build(self.fit.data_source.element_spec if self.fit.data_source is not None else None)
        self._architecture = describe(self.model)

    def _compile(self) -> None:
        """Compile the training step, and give its variables what was restored. Independent."""
        is_over = self.at.epoch >= self.params.get("epochs", self.at.epoch + 1)
        data_source = self.fit.data_source
        self._exactness.begin(data_source.element_spec if data_source is not None and not is_over else None)
        if self.start.restored is None or is_over:
            return
        self._lose(*self.start.lost, *self._training.set_captured())
        if self._exactness.reasons():  # a step saved by an older version may claim otherwise
            self._limit_level()

    def _lose(self, *texts: str) -> None:
        """Remember what was not restored: this run differs from the one that was interrupted. Independent."""
        if not texts:
            return
        self._exactness.lost += texts
        self.start = replace(self.start, warnings=(*self.start.warnings, *texts))
        self._limit_level()

    def _limit_level(self) -> None:
        if self.start.level == "exact":
            self.start = replace(self.start, level="state")

    def _read_on(self, skipping: Skipping) -> None:
        """Have Keras begin at the right epoch and batch, and read on at the right place."""
        place, data_source = self.start.place, self.fit.data_source
        is_over = self.at.epoch >= self.params.get("epochs", self.at.epoch + 1)
        if data_source is not None:
            mode = "own" if self.content.data is not None else self.content.iterator
            if place is not None and mode == "skip":
                place = replace(place, state=NO_STATE)
            plan = ReadPlan(None if is_over else place, self.fit.initial_epoch, mode, self._arrived, skipping)
            data_source.watch(plan)
            if place is not None and not is_over:
                begin_at(self.model, replace(self.at, epoch=data_source.first_epoch(plan)))
        if place is not None and (data_source is None or is_over):
            begin_at(self.model, self.at)
        if not self.at.batch:
            self._set_random()  # after what was drawn to get there

    def _arrived(self, iterator: Any) -> None:
        """Go on, now that the first iterator is at its place."""
        self._has_arrived = True
        if self.at.batch:
            metric_state.build(self.model, iterator)
        self._resume_within_epoch()
        if self.at.batch or not self._has_begun:  # Keras 3 calls this only after on_epoch_begin, which may draw
            self._set_random()

    def _set_random(self) -> None:
        self._log_lost(self._training.set_random())

    def _log_lost(self, lost: list[str]) -> None:
        """Remember what was not restored after the first lines were written, and report it once. Independent."""
        new = [text for text in lost if text not in self._exactness.lost]
        self._lose(*new)
        self._print_lines(*_warnings(new))

    def _announce(self) -> None:
        """Say what a resume of this run can promise; the first batch has shown what data this is. Collective."""
        data_source, comm = self.fit.data_source, self.saves.checkpointer.comm
        if data_source is not None:
            comm.agree("fit: check the data", data_source.confirm)
        n_ranks = comm.size
        of_run = reproducibility.reasons_against_exact(self.model, data_source, self.content.statistics, n_ranks)
        own = [*of_run, *self._exactness.reasons()]
        self.reasons = comm.distinct(own)
        self.level = reproducibility.level_of(self.reasons)
        self._print_level()
        self._print_lines(*_warnings(data_source.warnings if data_source is not None else ()))

    def begin_epoch(self, epoch: int) -> None:
        """Count from here; restore what the start of an epoch has reset. Collective."""
        mark_bar(None)
        is_within = not self._has_begun and self.start.restored is not None and epoch == self.at.epoch
        self.at = self.at if is_within else FitPosition(epoch, 0, self.at.step)
        self._is_within_epoch = is_within and self.at.batch > 0
        if self.fit.data_source is not None:
            self.fit.data_source.begin_epoch(is_resumed=self._is_within_epoch)
        if self._is_within_epoch:
            self.saves.checkpointer.comm.agree("fit: give back within the epoch", self._training.set_within_epoch)
        self._has_begun = True
        self._resume_within_epoch()
        forget(self.model)

    def _resume_within_epoch(self) -> None:
        """Restore what each epoch resets, once the epoch has begun and its data is there. Independent."""
        if self._is_within_epoch and self._has_arrived:
            self._is_within_epoch = False
            self._log_lost(self._training.set_metrics())
            self._set_random()

    # -- batches and epochs ----------------------------------------------------------------------

    def end_batch(self, batch: int) -> None:
        """Count, and save if it is time, after every ``on_train_batch_end``. Collective."""
        mark_bar(self.fit.callbacks)
        n_new = batch + 1 - self.at.batch
        before, self.at = self.at.step, FitPosition(self.at.epoch, batch + 1, self.at.step + n_new)
        if self.content.data is not None:
            self.content.data.advance(n_new)
        self.saves.poll()
        if not self._is_announced:
            self._is_announced = True
            self._announce()
        if self.fit.data_source is not None and self.at.batch == self._steps:
            self.fit.data_source.read_to_end()
        is_due = (
            self.schedule.batches is not None
            and self.at.step // self.schedule.batches > before // self.schedule.batches
        )
        advice = self._ask_guard()
        if advice.stop and self.at.batch != self._steps:  # else it stops after the validation
            self._stop()
        self._is_due = self._is_due or is_due or advice.save
        if self._is_due and self.at.batch != self._steps:  # after the last batch the epoch has not ended yet
            self.save()

    def end_epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Save, after every ``on_epoch_end``. Collective."""
        mark_bar(None)
        self.at = FitPosition(epoch + 1, 0, self.at.step)
        advice = self._ask_guard()
        if self.schedule.epochs or self._is_due or advice.save:
            self.save(logs)
        if advice.stop:
            self._stop(logs)

    def save(self, logs: Mapping[str, float] | None = None) -> None:
        """Begin to save this step; at the end of an epoch maybe in place of one saved within it. Collective."""
        self._is_due = False
        statistics.average(self.model, self.saves.checkpointer.comm)
        is_between_epochs = self.at.batch == 0
        state = self._state(is_between_epochs=is_between_epochs)
        self._look_again()
        self.epochs[self.at.step] = self.at.epoch
        self._position_nbytes[self.at.step] = self._training.position_nbytes
        self.saves.save(
            self.at.step,
            state,
            metrics=logs or {},
            objects=self._objects(is_between_epochs=is_between_epochs),
            level=self._level_now(),
            overwrite=self.at.step == self._saved_step,
        )
        statistics.forget_means(self.model)
        self._saved_step = self.at.step

    def _state(self, *, is_between_epochs: bool) -> dict[str, Any]:
        """Return the state; if it cannot be taken, one whose save fails on all ranks. Independent."""
        try:
            return self._training.state(is_between_epochs=is_between_epochs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks are on their way to the save
            return {"training": FailedState(error)}

    def _look_again(self) -> None:
        """Add and log the reasons that have come up since the first batch. Independent."""
        new = [reason for reason in self._exactness.reasons() if reason not in self.reasons]
        if new and self._is_announced:
            self.reasons += new
            self.level = reproducibility.level_of(self.reasons)
            self._print_level()

    def _print_level(self) -> None:
        method = self.fit.data_source.method if self.fit.data_source is not None else "none"
        self._print_lines(*level_lines(self.level, self.reasons, method, reproducibility.remedy(self.reasons)))

    def _level_now(self) -> Level:
        """Return the level of a state that was just taken: that the place cannot be saved may turn out late. Pure."""
        data_source = self.fit.data_source
        return "state" if data_source is not None and data_source.method == "skipped" else self.level

    def _objects(self, *, is_between_epochs: bool) -> dict[str, Any]:
        data_source, steps = self.fit.data_source, self._steps
        return {
            "epoch": self.at.epoch,
            "batch": self.at.batch,
            "step": self.at.step,
            "steps": None if steps is None else int(steps),
            "train_counter": self._count_batches(None),
            "stop": is_between_epochs and bool(getattr(self.model, "stop_training", False)),
            "iterator": _iterator_of(data_source) if data_source is not None else {},
            "exactness": {"level": self._level_now(), "reasons": self.reasons},
            **self._architecture,
        }

    # -- the end ---------------------------------------------------------------------------------

    def _stop(self, logs: Mapping[str, float] | None = None) -> None:
        """Save, and end the program. Collective."""
        assert self._guard is not None
        if not self._is_saved():
            self.save(logs)
        self.saves.finish()
        self._guard.exit()

    def remarks(self, saved: SavedStep) -> list[str]:
        """Return the lines about what went wrong with a committed step, and once about what makes it large."""
        lines = _warnings(saved.warnings)
        position = self._position_nbytes.pop(saved.step, 0) * self._n_ranks
        if not self._is_position_reported and position > max(saved.nbytes // 2, _MUCH_NBYTES):
            self._is_position_reported = True
            lines.append(position_line(saved.nbytes, min(position, saved.nbytes)))
        return lines

    def _is_saved(self) -> bool:
        """Return True if this step is durable; a save that failed earlier is only logged. Collective."""
        try:
            self.saves.finish()
        except CollectiveError as error:
            self._print_lines(*_warnings([f"{error}; step {self.at.step} is saved all the same"]))
            return False
        return self._saved_step == self.at.step

    def end(self) -> None:
        """Finish saves in flight, and release everything. Collective."""
        mark_bar(None)
        forget(self.model)
        self.leave()
        self.saves.close()

    def leave(self) -> None:
        """Watch no more for what ends the job, and drop the data. Collective."""
        self._training.keep_no_more()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()
        if self.fit.data_source is not None:
            self.fit.data_source.release()

    # -- small things ----------------------------------------------------------------------------

    @property
    def _steps(self) -> int | None:
        """Batches of an epoch, if that is known."""
        data_source = self.fit.data_source
        steps: int | None = data_source.steps if data_source is not None else self.params.get("steps")
        return steps

    def _watch(self) -> Guard | None:
        """Watch out for what ends the job, and for the time to save, as far as that was asked for. Collective."""
        wanted = self.schedule.preemption
        if not wanted and self.schedule.minutes is None:
            return None
        options: dict[str, Any] = {"every_n_minutes": self.schedule.minutes, "verbose": int(self.is_talking)}
        if not wanted:
            options |= {"signals": (), "walltime": False, "halt_every_s": 0.0, "verbose": 0}
        elif isinstance(wanted, Mapping):
            options |= wanted
        return watch(self.saves.checkpointer, **options)

    def _ask_guard(self) -> Advice:
        """Return what to do at this boundary. Collective where that is something."""
        return self._guard.check(self.at.step) if self._guard is not None else Advice()

    def _count_batches(self, value: int | None) -> int | None:
        """Return Keras 2.15's count of batches, TensorBoard's x axis; set it first if `value` is given."""
        counter = getattr(self.model, "_train_counter", None)
        if counter is None:
            return None
        if value is not None:
            counter.assign(value)
        return int(counter.numpy())

    def _print_lines(self, *lines: str) -> None:
        if self.is_talking:
            self.saves.print_lines(*lines)


def _iterator_of(data_source: DataSource) -> dict[str, Any]:
    """Return what is known of the position in the data. Independent."""
    return {
        "method": data_source.method,
        "seen": data_source.n_seen,
        "reason": data_source.reason,
        "data": data_source.data,
    }


def _warnings(texts: Any) -> list[str]:
    return [f"hpcckpt: warning: {text}" for text in texts]
