"""How a ``fit`` begins: restored from its own newest backup, or from a step of another run, or from nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcckpt import layout
from hpcckpt.checkpointer import Checkpointer
from hpcckpt.collective.communicator import Communicator
from hpcckpt.discovery import inspect_step, newest_restorable
from hpcckpt.errors import StateMismatchError, StepNotFoundError
from hpcckpt.keras.exactness import COMPILED_AGAIN
from hpcckpt.keras.feeds import BATCH_SIZE, Place
from hpcckpt.keras.iterators import NO_STATE
from hpcckpt.keras.pipelines import Data, data_of, differences
from hpcckpt.keras.position import Position
from hpcckpt.keras.training import Training, is_of_training
from hpcckpt.run import Restored
from hpcckpt.snapshot import flatten

_EXACT = {"saved", "replayed", "own"}


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a ``fit`` begins.

    Attributes
    ----------
    restored : Restored or None
        What it was restored from.
    position : Position
        Epoch, batch and step.
    place : Place or None
        Where it reads on.
    level, iterator : str
        What comes back: see :mod:`hpcckpt.keras.levels`; and ``exact``, ``skip`` or ``none``.
    is_forked : bool
        Whether it was restored from another run.
    warnings : tuple of str
        What does not come back.
    lost : tuple of str
        What of that keeps this run from being the one that was interrupted, to the bit.
    """

    restored: Restored | None = None
    position: Position = field(default_factory=Position)
    place: Place | None = None
    level: str = ""
    iterator: str = "none"
    is_forked: bool = False
    warnings: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def restore(ckpt: Checkpointer, training: Training, fork_from: Path | None) -> tuple[Restored | None, bool]:
    """Restore the newest good backup, or without one a step of another run; say also which. Collective.

    A state that could not be restored is refused now, not when the run comes back from a kill.

    Raises
    ------
    StepNotFoundError
        If all backups are damaged: the run would silently begin anew.
    StateMismatchError
        If model and backup do not fit.
    """

    def room() -> dict[str, Any]:
        made = training.room()
        flatten(made)
        return made

    state = ckpt.comm.agree("fit: read state", room)
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

    Of a step that holds a model only, as `ModelCheckpoint` writes it, the model is taken; the rest begins anew.
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
    anew = f"{restored.path} holds a model only: callbacks, random streams and the place in the data begin anew"
    return replace(restored, warnings=(*restored.warnings, anew))


def beginning(
    restored: Restored | None, training: Training, comm: Communicator, steps: int | None, epochs: int | None
) -> Beginning:
    """Return where a ``fit`` begins that was restored, and give `training` what it needs. Independent."""
    if restored is None:
        return Beginning()
    lost = training.restored(restored, comm.size, comm.rank)
    position = _position(restored, training, comm.size, steps, epochs)
    is_same = restored.n_ranks == comm.size
    reading = restored.objects.get("iterator", {})
    other_data = _other_data(restored, training, comm) if is_same else ""
    warnings = restored.warnings
    if other_data and training.feed is not None:
        training.feed.lost = other_data
        warnings = (*warnings, f"{other_data}: the position in it is found by counting batches")
    place = Place(
        position.epoch,
        position.batch,
        training.place_state if is_same and not other_data else NO_STATE,
        int(reading.get("seen", 0)),
        is_read=training.data is None,
    )
    is_exact = training.data is not None or (is_same and not other_data and reading.get("method") in _EXACT)
    iterator = "exact" if is_exact else "skip" if training.feed is not None else "none"
    level = restored.level if is_same else "weights"
    if other_data and level == "exact":
        level = "state"
    return Beginning(restored, position, place, level, iterator, warnings=warnings, lost=tuple(lost))


def _other_data(restored: Restored, training: Training, comm: Communicator) -> str:
    """Return how the data differs from that of the checkpoint, whose position does not fit it then. Independent.

    A position that was saved has what each rank's data was like; of others rank 0 has stored what its data was like.
    """
    if training.feed is None or training.data is not None:
        return ""
    before = data_of(training.place_state)
    if not before and comm.is_root:
        before = _root_data(restored)
    different = differences(before, training.feed.data)
    return f"the data differs from that of the checkpoint ({different})" if different else ""


def _root_data(restored: Restored) -> Data:
    """Return what rank 0's data was like; nothing if that was not saved. Pure."""
    found: Data = restored.objects.get("iterator", {}).get("data", {})
    return found


def _position(restored: Restored, training: Training, n_ranks: int, steps: int | None, epochs: int | None) -> Position:
    known = {key: int(restored.objects.get(key, 0)) for key in ("epoch", "batch", "step")}
    position = Position(**known).scaled(restored.n_ranks, n_ranks)
    before, now = _root_data(restored), training.feed.data if training.feed is not None else {}
    if BATCH_SIZE in before and BATCH_SIZE in now:
        position = position.scaled(before[BATCH_SIZE], now[BATCH_SIZE])
    position = position.within(steps)
    if training.data is not None:
        position = Position(training.data.epoch, training.data.batch, position.step)
    if restored.objects.get("stop") and epochs is not None:  # a callback had ended the training
        return Position(max(epochs, position.epoch), 0, position.step)
    return position
