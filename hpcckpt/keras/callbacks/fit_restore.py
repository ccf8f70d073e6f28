"""How a ``fit`` starts: from its newest backup, from a step of another run, or without a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.results import Restored
from hpcckpt.errors import StateMismatchError, StepNotFoundError
from hpcckpt.format import layout
from hpcckpt.keras.callbacks.exactness import COMPILED_AGAIN
from hpcckpt.keras.callbacks.training_state import Training, is_of_training
from hpcckpt.keras.data.data_source import BATCH_SIZE, SAMPLES, ReadPosition
from hpcckpt.keras.data.iterator_state import NO_STATE
from hpcckpt.keras.data.pipeline_state import Data, data_of, differences
from hpcckpt.keras.data.position import FitPosition
from hpcckpt.rundir.discovery import inspect_step, newest_restorable
from hpcckpt.state.tree import flatten

_EXACT = {"saved", "replayed", "own"}


@dataclass(frozen=True, slots=True)
class FitStart:
    """Where a ``fit`` starts.

    Attributes
    ----------
    restored : Restored or None
        The restored checkpoint.
    position : FitPosition
        Epoch, batch and step.
    place : ReadPosition or None
        Where reading continues.
    level, iterator : str
        What is restored: see :mod:`hpcckpt.keras.callbacks.reproducibility`; and ``exact``, ``skip`` or ``none``.
    is_forked : bool
        Whether it was restored from another run.
    warnings : tuple of str
        What is not restored.
    lost : tuple of str
        Those of the warnings that make this run differ from the interrupted one in any bit.
    """

    restored: Restored | None = None
    position: FitPosition = field(default_factory=FitPosition)
    place: ReadPosition | None = None
    level: str = ""
    iterator: str = "none"
    is_forked: bool = False
    warnings: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def restore(ckpt: Checkpointer, training: Training, fork_from: Path | None) -> tuple[Restored | None, bool]:
    """Restore the newest valid backup, else a step of another run; return also whether it was another run. Collective.

    A state that could not be restored is refused now, not at a later restart.

    Raises
    ------
    StepNotFoundError
        If all backups are damaged: the run would silently start again.
    StateMismatchError
        If model and backup do not fit.
    """

    def restore_target() -> dict[str, Any]:
        made = training.restore_target()
        flatten(made)
        return made

    state = ckpt.comm.agree("fit: read state", restore_target)
    if ckpt.has_steps():
        try:
            return ckpt.restore(state), False
        except StateMismatchError as error:
            raise StateMismatchError(f"{error}{_cause_stored_in(ckpt)}") from error
    if fork_from is None:
        return None, False
    return _from_another_run(ckpt.comm, fork_from, state), True


def _cause_stored_in(ckpt: Checkpointer) -> str:
    """Return what the newest step says of a model that was compiled again, which a new process has not done yet."""
    found = newest_restorable(ckpt.directory)
    user = found.manifest.objects.get("user", {}) if found is not None and found.manifest is not None else {}
    reasons = user.get("exactness", {}).get("reasons", [])
    return "".join(f"; {reason}" for reason in reasons if reason.startswith(COMPILED_AGAIN))


def _from_another_run(comm: Communicator, path: Path, state: dict[str, Any]) -> Restored:
    """Restore a step of another run, or the newest of that run. Collective.

    Of a step that holds a model only, as `ModelCheckpoint` writes it, the model is restored; the rest starts from its
    initial values.
    """

    def find() -> tuple[Path, int | None, bool]:
        real = path.resolve()
        step = layout.parse_step(real.name)
        if not real.is_dir():
            raise StepNotFoundError(f"fork_from: {path} is not there")
        directory = real if step is None else real.parent
        found = newest_restorable(directory) if step is None else inspect_step(directory, step)
        manifest = None if found is None else found.manifest
        return directory, step, manifest is not None and not any(is_of_training(t.name) for t in manifest.tensors)

    directory, step, is_model_only = comm.on_root("look for the run to fork from", find)
    with Checkpointer(directory, comm) as other:
        if not is_model_only:
            return other.restore(state, step)
        restored = other.restore({"model": state["model"]}, step)
    warning = f"{restored.path} holds a model only: callbacks, random streams and position in the data are not restored"
    return replace(restored, warnings=(*restored.warnings, warning))


def fit_position(
    restored: Restored | None, training: Training, comm: Communicator, steps: int | None, epochs: int | None
) -> FitPosition:
    """Return where a restored ``fit`` starts: root's, for ranks may have data of different lengths. Collective."""
    if restored is None:
        return FitPosition()
    return comm.on_root("fit: find the position", lambda: _position(restored, training, comm.size, steps, epochs))


def fit_start(restored: Restored | None, training: Training, comm: Communicator, position: FitPosition) -> FitStart:
    """Return how a restored ``fit`` starts at its position, and set what `training` needs. Independent."""
    if restored is None:
        return FitStart()
    lost = training.restored(restored, comm.size, comm.rank)
    if position.batch:
        training.keep()
    is_same = restored.n_ranks == comm.size
    reading = restored.objects.get("iterator", {})
    other_data = _other_data(restored, training, comm) if is_same else ""
    warnings = restored.warnings
    if other_data and training.data_source is not None:
        training.data_source.lost = other_data
        warnings = (*warnings, f"{other_data}: the position in it is found by counting batches")
    place = ReadPosition(
        position.epoch,
        position.batch,
        training.place_state if is_same and not other_data else NO_STATE,
        int(reading.get("seen", 0)),
        is_read=training.data is None,
        order=training.order if is_same and not other_data else NO_STATE,
    )
    is_exact = training.data is not None or (is_same and not other_data and reading.get("method") in _EXACT)
    iterator = "exact" if is_exact else "skip" if training.data_source is not None else "none"
    level = restored.level if is_same else "weights"
    if other_data and level == "exact":
        level = "state"
    return FitStart(restored, position, place, level, iterator, warnings=warnings, lost=tuple(lost))


def _other_data(restored: Restored, training: Training, comm: Communicator) -> str:
    """Return how the data differs from that of the checkpoint, whose position does not fit it then. Independent.

    A position that was saved has what each rank's data was like; of others rank 0 has stored what its data was like.
    """
    if training.data_source is None or training.data is not None:
        return ""
    before = data_of(training.place_state)
    if not before and comm.is_root:
        before = _root_data(restored)
    different = differences(before, training.data_source.data)
    return f"the data differs from that of the checkpoint ({different})" if different else ""


def _root_data(restored: Restored) -> Data:
    """Return what rank 0's data was like; nothing if that was not saved. Pure."""
    found: Data = restored.objects.get("iterator", {}).get("data", {})
    return found


def _sizes(restored: Restored, training: Training, n_ranks: int, steps: int | None) -> tuple[int, int]:
    """Return two numbers whose ratio is that of a batch then to one now, as parts of an epoch. Independent."""
    before, now = _root_data(restored), training.data_source.data if training.data_source is not None else {}
    then, is_same = int(restored.objects.get("steps") or 0), restored.n_ranks == n_ranks
    if BATCH_SIZE in before and BATCH_SIZE in now:
        sizes = before[BATCH_SIZE], now[BATCH_SIZE]
        # of arrays each rank may have a part, or all of them
        return sizes if is_same else (sizes[0] * now[SAMPLES], sizes[1] * before[SAMPLES])
    if is_same or not then or not steps:
        return restored.n_ranks, n_ranks
    return steps, then


def _position(
    restored: Restored, training: Training, n_ranks: int, steps: int | None, epochs: int | None
) -> FitPosition:
    known = {key: int(restored.objects.get(key, 0)) for key in ("epoch", "batch", "step")}
    position = FitPosition(**known).scaled(*_sizes(restored, training, n_ranks, steps)).within(steps)
    if training.data is not None:
        position = FitPosition(training.data.epoch, training.data.batch, position.step)
    if restored.objects.get("stop") and epochs is not None:  # a callback had ended the training
        return FitPosition(max(epochs, position.epoch), 0, position.step)
    return position
