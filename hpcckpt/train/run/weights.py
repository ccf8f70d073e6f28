"""Weights without an optimizer, of a model or a part of one: saved as a checkpoint, and put into another model.

Random states of layers are left out: a training that continues with weights does not continue with the same random
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import StateMismatchError, list_problems
from hpcckpt.keras.files.describe import describe
from hpcckpt.keras.files.match import MatchResult, compare
from hpcckpt.keras.model import batch_norm as statistics
from hpcckpt.keras.model.batch_norm import Policy
from hpcckpt.keras.model.layer_state import finish, layer_state_leaves
from hpcckpt.keras.model.layers import named_weights
from hpcckpt.keras.model.state import MODEL
from hpcckpt.restoring.reader import StepReader
from hpcckpt.restoring.segments import held_step
from hpcckpt.rundir.discovery import find_step
from hpcckpt.state.tree import PerRank, RootOnly

__all__ = ["Filled", "Storage", "fill", "save"]


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights are stored.

    Attributes
    ----------
    backend, backend_options : str, mapping
        As for `Checkpointer`.
    batch_norm : str
        Whose statistics are saved: ``rank0``, ``mean``, ``per-rank``.
    """

    backend: str = "rankfile"
    backend_options: Mapping[str, Any] | None = None
    batch_norm: Policy = "rank0"


@dataclass(frozen=True, slots=True)
class Filled:
    """Result of `fill`: how many tensors the model took, and descriptions of mismatches."""

    n_taken: int
    problems: tuple[str, ...] = ()


def save(
    model: Any,
    directory: Path,
    comm: Communicator,
    step: int,
    *,
    storage: Storage,
    metrics: Mapping[str, float] | None = None,
    objects: Mapping[str, Any] | None = None,
) -> None:
    """Save the weights of a model or layer as the one checkpoint of a directory, durably. Collective.

    Raises
    ------
    CollectiveError
        If they cannot be saved; the same error on every rank.
    """
    options: dict[str, Any] = {"backend": storage.backend, "backend_options": storage.backend_options}
    described = {**describe(model), **(objects or {})}
    with Checkpointer(directory, comm, max_to_keep=1, async_save=False, on_newer="aside", **options) as ckpt:
        state = _state(model, ckpt.comm, storage.batch_norm)
        ckpt.save(step, state, metrics=metrics, objects=described, level="weights", overwrite=True).result()


def _state(model: Any, comm: Communicator, policy: Policy) -> dict[str, Any]:
    """Return the weights by path, as arrays that say how ranks share them. Collective."""
    statistics.choose(model, policy)
    statistics.average(model, comm)
    weights = [weight for weight in named_weights(model) if not statistics.is_random(weight)]
    state: dict[str, Any] = {}
    for leaf in (*statistics.weight_leaves(model, "", weights), *layer_state_leaves(model, "")):
        spec, value = leaf.declaration.spec, np.asarray(leaf.read())
        state[spec.name] = {"root": RootOnly, "per-rank": PerRank}.get(spec.kind, np.asarray)(value)
    statistics.forget_means(model)
    return {MODEL: state}


def fill(model: Any, path: Path, rank: int, size: int, *, is_partial: bool = False) -> Filled:
    """Put the weights of a checkpoint into a built model, all or with `is_partial` what fits. Independent.

    Statistics that each rank has for itself are this rank's own if as many ranks saved them, else rank 0's.

    Raises
    ------
    StateMismatchError
        If something does not fit, without `is_partial`; the model is as it was.
    StepNotFoundError, CorruptError
        If there is no such checkpoint, or it is damaged.
    """
    with held_step(find_step(path).path) as reader:
        fit = compare(model, reader.specs, list(reader.specs))
        if fit.problems and not is_partial:
            raise StateMismatchError(
                f"the weights in {reader.path} do not fit the model: {list_problems(list(fit.problems), 10)}"
            )
        own = rank if reader.manifest.n_ranks == size else 0
        _assign(fit, reader, own)
        finish(model, fit.leaves.values())
        return Filled(len(fit.leaves), tuple(map(str, fit.problems)))


def _assign(fit: MatchResult, reader: StepReader, rank: int) -> None:
    for name, leaf in fit.leaves.items():
        is_own = reader.specs[name].kind == "per-rank"
        leaf.assign(reader.load_rank(name, rank) if is_own else reader.load(name))
