"""Models from checkpoints, ready to be trained with Horovod."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpcckpt.errors import CodeError, StateMismatchError
from hpcckpt.horovod.ranks import communicator
from hpcckpt.horovod.replicas import check_equal
from hpcckpt.keras.model.optimizers import build, optimizer_leaves
from hpcckpt.rundir.discovery import find_step


def load_model(
    path: str | os.PathLike[str],
    step: int | str | None = None,
    *,
    process_set: Any = None,
    loading: dict[str, Any] | None = None,
    **wrapping: Any,
) -> Any:
    """Build the model of a checkpoint on all ranks, its optimizer wrapped in ``hvd.DistributedOptimizer``. Collective.

    The wrapper is a new optimizer, made from the configuration of the restored one, without its variables. So all
    variables of the restored optimizer are copied into it: iterations, slots and learning rate. At the end all ranks
    are compared.

    Parameters
    ----------
    path : path_like
        A run directory, or the directory of a step.
    step : int or str, optional
        The step: a number, ``"latest"`` (the default) or ``"best"``; the first rank selects it for all.
    process_set : hvd.ProcessSet, optional
        The ranks that train this model together; by default all of Horovod's.
    loading : mapping, optional
        Further arguments of `hpcckpt.keras.load_model`.
    **wrapping
        Further arguments of ``hvd.DistributedOptimizer``: ``compression``, ``op``, ``backward_passes_per_step``, …

    Returns
    -------
    keras.Model
        Compiled as it was when it was saved.

    Raises
    ------
    ReplicaMismatchError
        If ranks read different values; on all ranks, naming the first tensor that differs.
    CodeError
        If the model was not compiled when it was saved, or Horovod is not initialized.
    """
    from hpcckpt.keras import load_model as load

    ranks = communicator(process_set)
    try:
        where = ranks.on_root("load model: find step", lambda: _find(path, step))
        found = ranks.agree("load model", lambda: load(where, **(loading or {})))
        ranks.agree("load model: wrap", lambda: wrap_optimizer(found, process_set=process_set, **wrapping))
        check_equal({"model": found}, comm=ranks)
    finally:
        ranks.free()
    return found


def _find(path: str | os.PathLike[str], step: int | str | None) -> Path:
    """Return the directory of a step; a file stays what it is, to be refused by who reads it."""
    where = Path(os.path.realpath(path))  # ModelCheckpoint gives steps names by links
    return where if where.is_file() else find_step(where, step).path


def wrap_optimizer(model: Any, *, process_set: Any = None, **wrapping: Any) -> None:
    """Replace a compiled model's optimizer by Horovod's, with all of its state. Independent.

    Raises
    ------
    CodeError
        If the model is not compiled.
    """
    old = getattr(model, "optimizer", None)
    if old is None:
        raise CodeError("the model was not compiled when it was saved: compile it with hvd.DistributedOptimizer(…)")
    if process_set is not None:
        wrapping["process_set"] = process_set
    build(old, model)
    new = wrapped(old, wrapping)
    model.optimizer = new
    build(new, model)
    copy_state(old, new, model)


def wrapped(optimizer: Any, options: dict[str, Any]) -> Any:
    """Return Horovod's optimizer around one of Keras; within the loss scaling of mixed precision, if there is some."""
    import horovod.tensorflow.keras as hvd

    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None:
        return hvd.DistributedOptimizer(optimizer, **options)
    import keras

    config = {key: value for key, value in optimizer.get_config().items() if key in {"dynamic", "dynamic_growth_steps"}}
    scale = float(optimizer.loss_scale)
    return keras.mixed_precision.LossScaleOptimizer(wrapped(inner, options), initial_scale=scale, **config)


def copy_state(old: Any, new: Any, model: Any) -> None:
    """Give one optimizer the variables of another of the same kind. Independent.

    Raises
    ------
    StateMismatchError
        If they do not have the same variables.
    """
    from hpcckpt.keras.model.layers import named_weights

    weights = named_weights(model)
    name = "optimizer"
    before = {leaf.declaration.spec.name: leaf for leaf in optimizer_leaves(old, name, weights)}
    after = {leaf.declaration.spec.name: leaf for leaf in optimizer_leaves(new, name, weights)}
    if before.keys() != after.keys():
        differing = ", ".join(sorted(before.keys() ^ after.keys())[:5])
        raise StateMismatchError(f"{type(new).__name__} has not the variables of {type(old).__name__}: {differing}")
    for each, leaf in after.items():
        leaf.assign(before[each].read())
