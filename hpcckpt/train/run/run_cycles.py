"""The story of a run: its cycles one after another, each from where it was interrupted."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras.callbacks import History

from hpcckpt.core.std_streams import write_message, write_wrapped
from hpcckpt.preemption.halt import HaltWatch
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.train.callbacks.backup_callback import BackupCallback
from hpcckpt.train.callbacks.metric_allreduce import MetricMeans, ValidatedRows
from hpcckpt.train.callbacks.progress import MonitorCheck, progress
from hpcckpt.train.callbacks.stop_together import StopTogether, may_stop_within_epochs
from hpcckpt.train.callbacks.tensorboard import boards_of, called_on
from hpcckpt.train.config.cycles import CheckpointSettings, Cycle
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError
from hpcckpt.train.datasets.errors import DatasetDamagedError
from hpcckpt.train.loop.distribution import Team
from hpcckpt.train.loop.train_loop import TrainLoop
from hpcckpt.train.names.allow_list import Catalogue
from hpcckpt.train.run import lms_callback, log_callback, submodel_weights, submodels, weights
from hpcckpt.train.run.build_cycle import Built, build, compile_for, together
from hpcckpt.train.run.log_callback import Recording
from hpcckpt.train.run.run_directory import TrainingDirectory
from hpcckpt.train.run.run_state import best_by, on_scratch

__all__ = ["TrainingRun", "train"]


@dataclass(slots=True)
class TrainingRun:
    """What all cycles of a run share.

    Attributes
    ----------
    cycles : sequence of Cycle
        All of them.
    document : list of dict
        The effective configuration.
    catalogue : Catalogue
        What names may mean.
    team : Team
        The ranks.
    directory : TrainingDirectory
        Where everything goes.
    verbose : int
        Whether root writes lines.
    model : keras.Model or None
        The one that was trained last.
    """

    cycles: Sequence[Cycle]
    document: list[dict[str, Any]]
    catalogue: Catalogue
    team: Team
    directory: TrainingDirectory
    verbose: int = 1
    model: Any = None

    def print_line(self, line: str) -> None:
        """Write a line, once over all ranks. Independent."""
        if self.verbose and self.team.is_root:
            write_wrapped(f"hpcckpt: {line}")

    def log(self, event: str, **facts: Any) -> None:
        """Write into the log, once over all ranks. Independent."""
        if self.team.is_root:
            self.directory.log(event, **facts)


def train(run: TrainingRun, n_complete: int) -> list[History]:
    """Train the cycles that are not complete; return the histories of all. Collective."""
    for cycle in run.cycles[n_complete:]:
        run.model = None
        gc.collect()  # a model refers to itself, and the next one wants the memory
        run.model = train_cycle(run, cycle)
    if run.team.is_root:
        HaltWatch([run.directory.path], every_s=1.0).move_aside(sys.maxsize)  # or it would stop a job that trains more
    return log_callback.read(run.directory, run.team.comm, len(run.cycles))


def train_cycle(run: TrainingRun, cycle: Cycle) -> Any:
    """Train one cycle: from the weights of the one before, or from where it was interrupted. Collective.

    Returns
    -------
    keras.Model
        The model.
    """
    built = build(cycle, run.catalogue, run.team)
    submodel_weights.check(built, run.cycles, run.directory, run.team.comm)
    if not has_begun(run, cycle):
        take_weights(run, built)
    compile_for(built, run.catalogue, run.team)
    run.print_line(f"{title(run, cycle)} {submodels.summary(built.model, built.frozen)} ranks={run.team.size}")
    backup = fit(run, built)
    tell_of_swaps(run, built)
    keep(run, built, backup)
    return built.model


# -- what a cycle begins with --------------------------------------------------------------------------


def has_begun(run: TrainingRun, cycle: Cycle) -> bool:
    """Return True if a cycle has a checkpoint to resume from. Collective."""
    path = run.directory.cycle(cycle.index, cycle.checkpoint.directory)
    return run.team.comm.on_root("look for checkpoints", lambda: bool(step_numbers(path) or on_scratch(cycle, path)))


def take_weights(run: TrainingRun, built: Built) -> None:
    """Give a model the weights of the cycle before, and submodels those from elsewhere. Collective."""
    cycle = built.cycle
    if cycle.index > 0:
        before = run.cycles[cycle.index - 1]
        path = run.directory.final(before.index, before.checkpoint.directory)
        is_other = run.document[cycle.index]["model"] != run.document[before.index]["model"]
        team = run.team
        filled = together(
            team.comm,
            f"weights of cycle {before.index + 1}",
            lambda: weights.fill(built.model, path, team.rank, team.size, is_partial=is_other),
        )
        left = f", {len(filled.problems)} do not fit" if filled.problems else ""
        run.print_line(f"{title(run, cycle)} {filled.n_taken} tensors of cycle {before.index + 1}{left}")
        run.log("weights", cycle=cycle.index + 1, taken=filled.n_taken, left=list(filled.problems))
    for line in submodel_weights.load(built, run.directory, run.team.comm):
        run.print_line(f"{title(run, cycle)} {line}")


# -- the training ------------------------------------------------------------------------------------


def fit(run: TrainingRun, built: Built) -> BackupCallback:
    """Train, from the newest checkpoint of this cycle if there is one; return what has backed it up. Collective."""
    cycle, team, loop = built.cycle, run.team, built.loop
    path = run.directory.cycle(cycle.index, cycle.checkpoint.directory)
    options = backup_options(cycle.checkpoint, run.directory.path) | {"state": loop.state(), "verbose": run.verbose}
    backup: BackupCallback = team.backup(str(path), **options)
    own = called_on(team.rank, loop.callbacks)
    shows = _showing(run, built, backup) if team.is_root else []
    boards = boards_of(own) if team.is_root else []
    backup.listeners = [each.on_commit for each in (*shows, *boards) if hasattr(each, "on_commit")]
    means = [MetricMeans(team.comm, ValidatedRows(built.model))] if team.size > 1 else []
    within = may_stop_within_epochs(loop.callbacks)
    stops = [StopTogether(team.comm, within_epochs=within)] if team.size > 1 else []
    swaps = [built.swaps] if built.swaps is not None else []
    try:
        loop.fit(built.train, built.valid, [*means, *own, *stops, *shows, *swaps, backup], loop.num_train_steps)
    except BaseException as error:
        if team.size == 1:
            backup.close()  # on several ranks the others may not come
        report_damage(error, built, backup, team.size)
        raise
    finally:
        for each in (*shows, *boards):
            getattr(each, "close", lambda: None)()
    _check_end(built, backup)
    return backup


def report_damage(error: BaseException, built: Built, backup: BackupCallback, n_ranks: int) -> None:
    """Name the image that a training failed of, if it did: TensorFlow does not. Independent.

    Raises
    ------
    DatasetDamagedError
        If there is one. Of several ranks this one writes it, and its own error ends the job.
    """
    from hpcckpt.train.datasets.streaming.verifying import damage_of

    text = damage_of(error, [(built.train, backup.batch), (built.valid, 0)])
    if text and n_ranks == 1:
        raise DatasetDamagedError(text) from error
    if text:
        write_message(f"hpcckpt: error: {text}")


def _check_end(built: Built, backup: BackupCallback) -> None:
    """Raise if the data ended before the last epoch: such a cycle is not complete. Pure."""
    loop, model = built.loop, built.model
    n_wanted = loop.num_epochs * (loop.num_train_steps or 0)
    is_short = backup.epoch < loop.num_epochs or backup.step < n_wanted
    if not is_short or model.stop_training or type(loop).fit is not TrainLoop.fit:
        return
    text = f"the data ended in epoch {max(backup.epoch, 1)} of {loop.num_epochs}, after {backup.step} batches"
    raise TrainConfigError.of(
        [ConfigProblem(built.cycle.datasets.where, text, "let it repeat itself, or train for less")]
    )


def _showing(run: TrainingRun, built: Built, backup: BackupCallback) -> list[Any]:
    """Return the callbacks that write down and show what becomes of the cycle. Root only."""
    found: list[Any] = [Recording(run.directory, built.cycle.index + 1, backup)]
    checkpoint = built.cycle.checkpoint
    if checkpoint.keep_best is not None:
        found.append(MonitorCheck(best_by(checkpoint.monitor).metric, lambda text: _warn(run, built.cycle, text)))
    if run.verbose:
        shown = progress(title(run, built.cycle), backup, built.n_train)
        backup.logs_steps = not shown.shows_steps
        found.append(shown)
    return found


def _warn(run: TrainingRun, cycle: Cycle, text: str) -> None:
    """Say what is wrong and ends nothing, and write it down. Root only."""
    run.print_line(f"{title(run, cycle)} warning: {text}")
    run.log("warning", cycle=cycle.index + 1, text=text)


def tell_of_swaps(run: TrainingRun, built: Built) -> None:
    """Tell what Large Model Support did, if it was there. Collective."""
    if built.swaps is None:
        return
    report = built.swaps.report()
    every = run.team.comm.gather(lms_callback.facts(report))
    run.log("lms", cycle=built.cycle.index + 1, ranks=every)
    run.print_line(f"{title(run, built.cycle)} {lms_callback.line(report)}")


def backup_options(checkpoint: CheckpointSettings, run: Path) -> dict[str, Any]:
    """Return what a cycle's key ``checkpoint`` means for the callback that backs it up. Independent."""
    guard: dict[str, Any] = {"halt_directories": [run]}
    best = best_by(checkpoint.monitor, checkpoint.keep_best) if checkpoint.keep_best is not None else None
    is_main = threading.current_thread() is threading.main_thread()
    return {
        "save_freq": "epoch",
        "delete_checkpoint": False,
        "save_before_preemption": guard if is_main else guard | {"signals": ()},  # Python catches signals there only
        "every_n_batches": checkpoint.every_n_batches,
        "every_n_minutes": checkpoint.every_n_minutes,
        "max_to_keep": checkpoint.max_to_keep,
        "keep_best": best,
        "async_save": checkpoint.async_save,
        "backend": checkpoint.backend,
        "backend_options": checkpoint.backend_options or None,
        "scratch": checkpoint.scratch,
        "scratch_bandwidth": checkpoint.scratch_bandwidth,
        "batch_norm": checkpoint.batch_norm,
    }


# -- what is left of it ----------------------------------------------------------------------------------


def keep(run: TrainingRun, built: Built, backup: BackupCallback) -> None:
    """Save submodels, then the last weights: with them the cycle is complete. Collective.

    They are those that ``fit`` has left; a callback may have changed them after the last checkpoint (the best weights
    of an EarlyStopping, the averages of an optimizer).
    """
    cycle, checkpoint = built.cycle, built.cycle.checkpoint
    storage = weights.Storage(checkpoint.backend, checkpoint.backend_options or None, checkpoint.batch_norm)
    for line in submodel_weights.save(built, run.directory, run.team.comm, backup.step, storage):
        run.print_line(f"{title(run, cycle)} {line}")
    about = {
        "number": cycle.index + 1,
        "epochs": backup.epoch,
        "step": backup.step,
        "num_epochs": built.loop.num_epochs,
    }
    path = run.directory.final(cycle.index, checkpoint.directory)
    weights.save(built.model, path, run.team.comm, backup.step, storage=storage, objects={"cycle": about})
    run.log("complete", cycle=cycle.index + 1, epochs=backup.epoch, step=backup.step)
    run.print_line(f"{title(run, cycle)} complete epochs={backup.epoch} step={backup.step} weights={Path(path)}")


def title(run: TrainingRun, cycle: Cycle) -> str:
    """Return how lines about a cycle begin. Pure."""
    return f"cycle={cycle.index + 1}/{len(run.cycles)}"
