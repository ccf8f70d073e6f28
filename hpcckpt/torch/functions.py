"""`save` and `restore`: a training by its parts, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpcckpt.checkpointer import Checkpointer, PendingSave
from hpcckpt.errors import OptionError
from hpcckpt.run import Restored
from hpcckpt.snapshot import Parts, is_json

Where = str | os.PathLike[str] | Checkpointer


def save(
    where: Where,
    step: int,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    metrics: Mapping[str, float] | None = None,
    overwrite: bool = False,
    **objects: Any,
) -> PendingSave:
    """Save a step of a training. Collective.

    Parameters
    ----------
    where : path_like or Checkpointer
        With a directory the step is committed when this returns, and no other step is deleted. With a `Checkpointer`
        its options count: in the background, how many steps are kept, by which ranks.
    step : int
        Number of the step.
    model, optimizer, scheduler : object, optional
        Parts of the training; or a list or dict of such.
    metrics : mapping of str to float, optional
        Stored with the step.
    overwrite : bool
        Replace a good step of this number, atomically.
    **objects
        More parts, each under its own name: anything with ``state_dict`` and ``load_state_dict``, tensors, arrays,
        dicts of them. JSON values (``epoch=3``) come back as ``Restored.objects``.

    Returns
    -------
    PendingSave
        Whose ``result()`` is the committed step.

    Raises
    ------
    OptionError
        If there is nothing to save.
    CollectiveError
        As `Checkpointer.save` does.
    """
    state = _parts(model, optimizer, scheduler, objects)
    values = {name: value for name, value in objects.items() if is_json(value)}
    with _open(where) as ckpt:
        return ckpt.save(step, state, metrics=metrics, objects=values, overwrite=overwrite)


def restore(
    where: Where,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    step: int | None = None,
    strict: bool = True,
    must_exist: bool = True,
    **objects: Any,
) -> Restored | None:
    """Restore a training, in place; an optimizer that was built just now gets its state. Collective.

    Parts that the step has and that are not given here are left alone: ``restore(where, model=model)`` is what
    inference wants.

    Parameters
    ----------
    where : path_like or Checkpointer
        As given to `save`.
    model, optimizer, scheduler : object, optional
        What to restore, each under the name it was saved by.
    step : int, optional
        The step; by default the newest that is whole.
    strict : bool
        Refuse if names, shapes or dtypes differ; else restore what fits and warn.
    must_exist : bool
        Raise if no step was ever saved; else return ``None`` then, for the run begins here.
    **objects
        More parts, as given to `save`. JSON values are ignored.

    Returns
    -------
    Restored or None
        The step, its metrics, and as ``objects`` the JSON values that were given to `save`.

    Raises
    ------
    StepNotFoundError
        If there is nothing to restore; with ``must_exist=False`` only if all that there is is damaged.
    CorruptError
        If the step asked for is damaged.
    StateMismatchError
        If the parts and the step differ; they are unchanged then.
    """
    state = _parts(model, optimizer, scheduler, objects)
    with _open(where) as ckpt:
        if not must_exist and step is None and not ckpt.has_steps():
            return None
        return ckpt.restore(Parts(state), step, strict=strict)


def _parts(model: Any, optimizer: Any, scheduler: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    parts = {name: part for name, part in others.items() if not is_json(part)}
    state = {**{name: part for name, part in named.items() if part is not None}, **parts}
    if not state:
        raise OptionError("nothing to save or restore: give a model, an optimizer, a scheduler, or parts by name")
    return state


@contextmanager
def _open(where: Where) -> Iterator[Checkpointer]:
    """Yield a checkpointer; one that was made for this call is closed, and so its save is waited for."""
    if isinstance(where, Checkpointer):
        yield where
        return
    with Checkpointer(where, max_to_keep=None, async_save=False) as own:
        yield own
