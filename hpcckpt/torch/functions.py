"""`save` and `restore`: a training by its parts, in one call; `save` and `load` of a state dict as one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from hpcckpt.checkpointer import Checkpointer, PendingSave
from hpcckpt.core.results import Restored
from hpcckpt.errors import OptionError
from hpcckpt.state.tree import Parts, is_json

Where = str | os.PathLike[str] | Checkpointer


@overload
def save(where: Mapping[Any, Any], step: str | os.PathLike[str], /) -> None: ...


@overload
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
) -> PendingSave: ...


def save(
    where: Where | Mapping[Any, Any],
    step: int | str | os.PathLike[str],
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    metrics: Mapping[str, float] | None = None,
    overwrite: bool = False,
    **objects: Any,
) -> PendingSave | None:
    """Save a step of a training (Collective), or a state dict to a file (Independent).

    ``save(state_dict, path)`` replaces ``torch.save``. The file is written completely or not at all, and an existing
    file is replaced at the end. Its format is safetensors; values that are not tensors are JSON in its metadata, and
    nothing is pickled. With several ranks call it on one of them.

    Parameters
    ----------
    where : path_like, Checkpointer, or mapping
        With a directory the step is committed when this returns, and no other step is deleted. With a `Checkpointer`
        its options apply: whether it saves in the background, how many steps are kept, which ranks save. With a
        mapping, such as ``model.state_dict()`` or a dict of these, `step` is the file.
    step : int or path_like
        Number of the step; with a mapping the path of the file.
    model, optimizer, scheduler : object, optional
        Parts of the training; or lists or dicts of such parts.
    metrics : mapping of str to float, optional
        Stored with the step.
    overwrite : bool
        Replace an intact step that has this number, atomically.
    **objects
        More parts, each under its own name: anything with ``state_dict`` and ``load_state_dict``, tensors, arrays,
        dicts of them. JSON values (``epoch=3``) come back as ``Restored.objects``.

    Returns
    -------
    PendingSave or None
        Its ``result()`` returns the committed step; ``None`` if a file was written.

    Raises
    ------
    OptionError
        If there is nothing to save, the arguments fit neither form, or a file's header would be too long for readers.
    StateError
        If a state dict has values that a file cannot hold; names all of them.
    CollectiveError
        As `Checkpointer.save` does.
    """
    if isinstance(where, Mapping):
        from hpcckpt.torch.state_file import save_file

        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "metrics": metrics, **objects}
        save_file(where, _file(step, [name for name, value in given.items() if value is not None]))
        return None
    if not isinstance(where, Checkpointer | str | os.PathLike):
        raise OptionError(
            f"cannot save a {type(where).__name__}: pass a state dict and a file, "
            "save(model.state_dict(), 'model.safetensors'), or a directory and a step, save('runs/a', 1, model=model)"
        )
    state = _parts(model, optimizer, scheduler, objects)
    values = {name: value for name, value in objects.items() if is_json(value)}
    with _open(where) as ckpt:
        return ckpt.save(cast(int, step), state, metrics=metrics, objects=values, overwrite=overwrite)


def load(path: str | os.PathLike[str], map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Return the state dict that a file holds. Independent.

    Parameters
    ----------
    path : path_like
        A file of ``save(state_dict, path)``, any other safetensors file, or a ``.pt`` file of ``torch.save``.
    map_location : torch.device, str, dict or callable, optional
        Device of the tensors; the CPU by default. As in ``torch.load`` it may be a dict from the devices in a ``.pt``
        file to the wanted devices, or a function of a storage and such a device. In any other file all devices are
        ``"cpu"``. Tensors go to the CPU if the dict does not have their device, or the function returns ``None``.
    weights_only : bool
        Must be true: a file that could run code is refused.

    Returns
    -------
    dict
        Tensors by name, nested as they were saved, in newly allocated memory.

    Raises
    ------
    StepNotFoundError
        If there is no such file.
    OptionError
        If `path` is something else, such as a run directory; names the call that reads it.
    ForeignFormatError
        If reading it would run code, or its dtypes are not known.
    CorruptError
        If it is damaged.
    """
    from hpcckpt.torch.state_file import load_file

    if not weights_only:
        raise OptionError("weights_only=False could run code that is in the file: hpcckpt.torch.load never does that")
    return load_file(Path(path), map_location)


def _file(path: Any, others: Sequence[str]) -> Path:
    """Return the path that a state dict is saved to."""
    if not isinstance(path, str | os.PathLike):
        raise OptionError(
            f"a state dict is saved to a file, save(model.state_dict(), 'model.safetensors'), not to {path!r}; "
            "for steps pass a directory first, save('runs/a', 1, model=model)"
        )
    if others:
        raise OptionError(f"{', '.join(others)}: a file holds one dict: put them into it")
    return Path(path)


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
    """Restore a training in place; a new optimizer gets its state too. Collective.

    Parts of the step that are not given here are ignored: for inference use ``restore(where, model=model)``.

    Parameters
    ----------
    where : path_like or Checkpointer
        As given to `save`.
    model, optimizer, scheduler : object, optional
        What to restore, each under the name it was saved by.
    step : int, optional
        The step; by default the newest intact one.
    strict : bool
        Refuse if names, shapes or dtypes differ; otherwise restore what fits, and warn.
    must_exist : bool
        Whether to raise an error if no step was ever saved. Otherwise ``None`` is returned: the run begins here.
    **objects
        More parts, as given to `save`. What cannot be restored in place, JSON values, NumPy scalars and read-only
        arrays, comes back as ``Restored.objects``; what is ``None`` is not asked for.

    Returns
    -------
    Restored or None
        The step, its metrics, and as ``objects`` the JSON values that were given to `save`, and what of the `objects`
        could not be restored in place.

    Raises
    ------
    StepNotFoundError
        If there is nothing to restore, unless ``must_exist=False``.
    NoRestorableStepError
        If there are steps, and none of them can be restored.
    CorruptError
        If the requested step is damaged.
    StateMismatchError
        If the parts and the step differ; they are unchanged then.
    """
    state = _parts(model, optimizer, scheduler, objects)
    asked = [name for name, value in objects.items() if value is not None and _is_plain(value)]
    for name in asked:
        state.pop(name, None)
    given = dict(state)
    values: dict[str, dict[str, Any]] = {name: {} for name in asked}
    with _open(where) as ckpt:
        if not must_exist and step is None and not ckpt.has_steps():
            return None
        restored = ckpt.restore(Parts(state, values), step, strict=strict)
    found = {name: _like(objects[name], parts) for name, parts in values.items() if parts}
    found |= {name: state[name] for name, part in given.items() if state[name] is not part}  # such as a read-only array
    return replace(restored, objects={**restored.objects, **found})


def _like(given: Any, parts: dict[str, Any]) -> Any:
    """Return a value whose parts were found: by itself (""), as a list if one was given, or as a dict. Pure."""
    if isinstance(given, list) and parts.keys() == {str(number) for number in range(len(parts))}:
        return [parts[str(number)] for number in range(len(parts))]
    return parts.get("", parts)


def _is_plain(value: Any) -> bool:
    return is_json(value) or isinstance(value, np.generic)


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
