"""Backends in Python under TMCI's interface: each save is a step of a run directory, with all that the engine promises.

The config names the directory, and may say more: ``path``, ``step`` (by default the next one, and for loading the
newest), ``max_to_keep`` (1); what is left are options of the backend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.errors import OptionError, StateMismatchError
from hpcckpt.keras.model.finalize import finalize
from hpcckpt.keras.model.state import MODEL
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.state.tf_hold import hold
from hpcckpt.state.tree import RootOnly
from hpcckpt.tmci.configs import Config, as_options
from hpcckpt.tmci.variables import Named, weights_of


class _Place(NamedTuple):
    path: str
    step: int | None
    max_to_keep: int | None
    options: dict[str, Any]


def save(model: Any, backend: str, config: Config, *, include_optimizer: bool) -> None:
    """Save a model as the next step of a run directory. Collective.

    Raises
    ------
    OptionError
        If the config names no path, or holds an option that the backend does not have.
    CollectiveError
        If a rank failed; of the failure's own class too.
    """
    place = _place(config)
    state = {MODEL: model} if include_optimizer else _Weights(weights_of(model)).state()
    with _checkpointer(place, backend) as ckpt:
        step = place.step if place.step is not None else _next_step(ckpt)
        ckpt.save(step, state, overwrite=True, level="state" if include_optimizer else "weights").result()


def _next_step(ckpt: Checkpointer) -> int:
    """Return the number after that of the newest step, restorable or not; 0 if there is none. Collective."""
    steps = ckpt.comm.on_root("look for steps", lambda: step_numbers(ckpt.directory))
    return steps[-1] + 1 if steps else 0


def load(model: Any, backend: str, config: Config, *, include_optimizer: bool) -> None:
    """Restore a model from a run directory. Collective.

    Raises
    ------
    StepNotFoundError
        If there is nothing to load.
    StateMismatchError
        If names, shapes or dtypes differ.
    """
    place = _place(config)
    with _checkpointer(place, backend) as ckpt:
        if include_optimizer:
            ckpt.restore({MODEL: model}, place.step)
            return
        weights = _Weights(weights_of(model))
        restored = ckpt.restore(weights.state(), place.step, strict=False)
        if restored.missing:
            raise StateMismatchError(f"{restored.path} has no {', '.join(restored.missing[:10])}")
        weights.assign()
        finalize(model)


class _Weights:
    """The weights of a model, as a state without its optimizer."""

    def __init__(self, named: list[Named]) -> None:
        kept = [(name.removeprefix(f"{MODEL}/"), variable, kind) for name, variable, kind in named]
        self._replicated = {name: variable for name, variable, kind in kept if kind == "replicated"}
        self._of_root = {name: variable for name, variable, kind in kept if kind == "root"}
        arrays = hold(list(self._of_root.values()))
        self._held = {name: RootOnly(array) for name, array in zip(self._of_root, arrays, strict=True)}

    def state(self) -> dict[str, Any]:
        return {MODEL: self._replicated | self._held}

    def assign(self) -> None:
        """Give the variables that count on root what was restored."""
        for name, variable in self._of_root.items():
            variable.assign(self._held[name].value)


def _checkpointer(place: _Place, backend: str) -> Checkpointer:
    return Checkpointer(
        place.path,
        backend=backend,
        max_to_keep=place.max_to_keep,
        async_save=False,
        on_newer="aside",
        backend_options=place.options or None,
    )


def _place(config: Config) -> _Place:
    options = as_options(config)
    if not isinstance(options.get("path"), str):
        raise OptionError("config.path: missing – the run directory, as in config={'path': 'runs/a'}")
    return _Place(options.pop("path"), options.pop("step", None), options.pop("max_to_keep", 1), options)
