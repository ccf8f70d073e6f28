"""A model from a checkpoint: built as the checkpoint says, or filled as far as it fits. No MPI is needed."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt.core.command_lines import command_line
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import ConfigError, ForeignFormatError, OptionError, Problem, StateMismatchError, list_problems
from hpcckpt.format.manifest import Manifest
from hpcckpt.keras.files.architecture import build_architecture, find_architecture
from hpcckpt.keras.files.import_model import silence
from hpcckpt.keras.files.match import MISMATCH, MISSING, UNEXPECTED, MatchResult, compare, weights_below, weights_of
from hpcckpt.keras.files.model_config import read_config
from hpcckpt.keras.files.safe_config import know_own, refuse_code
from hpcckpt.keras.files.weights_file import assign
from hpcckpt.keras.model.layer_state import LayerStateLeaf
from hpcckpt.keras.model.layers import is_layer
from hpcckpt.restoring.reader import StepReader, select
from hpcckpt.restoring.segments import held_step
from hpcckpt.rundir.discovery import PathLike, find_step

__all__ = ["LoadedWeights", "load_model", "load_weights", "signature"]

_log = logging.getLogger("hpcckpt")
_THREADS = 2
_FILES_OF_KERAS = (".keras", ".h5", ".hdf5")
_SAVED_MODEL = "saved_model.pb"


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """What `load_weights` did.

    Attributes
    ----------
    path : pathlib.Path
        The step that was read.
    step : int
        Its number.
    loaded : tuple of str
        Tensors of the checkpoint that are in the model now.
    missing : tuple of str
        Tensors of the model that the checkpoint has not; they are as they were.
    unexpected : tuple of str
        Tensors of the checkpoint that the model has not.
    mismatched : tuple of str
        Tensors of another shape or dtype; those of the model are as they were.
    """

    path: Path
    step: int
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()


def load_model(
    path: PathLike,
    step: int | str | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,  # noqa: A002 - as Keras calls it
    safe_mode: bool = True,
    callbacks: Iterable[Any] = (),
) -> Any:
    """Build the model of a checkpoint, with its weights, and its optimizer as it was. Independent.

    `ModelCheckpoint` and `BackupAndRestore` store what is needed; programs that save by a `Checkpointer` pass
    ``objects=hpcckpt.keras.describe(model)``. A model that is made of Keras' own layers needs no code of yours.

    Parameters
    ----------
    path : path_like
        A run directory, a step of it, or the name that `ModelCheckpoint` gave a step (``training/cp-0003.ckpt``). One
        of Keras' own files, ``.keras`` or ``.h5``, or a SavedModel, is read by ``keras.models.load_model``.
    step : int or str, optional
        The step: a number, ``"latest"`` (the default) or ``"best"``. Keras' own files have none.
    custom_objects : mapping of str to object, optional
        Classes and functions of yours that the model needs, by their names.
    compile : bool
        Whether to compile it as it was, and to restore its optimizer.
    safe_mode : bool
        Refuse a model that contains code (Lambda layers) or names code. Turn it off only for a checkpoint that you
        trust.
    callbacks : iterable of keras.callbacks.Callback
        Callbacks that are given the model. With `hpcckpt.lms.LMS` among them the next training of the model swaps.

    Returns
    -------
    keras.Model
        The model.

    Raises
    ------
    ConfigError
        If the checkpoint does not describe how to build the model, or building it needs code; names the class.
    StateMismatchError
        If architecture and tensors of the checkpoint do not fit each other.
    StepNotFoundError, CorruptError
        If there is no such step, or it is damaged.
    OptionError
        If `step` is given for one of Keras' own files.
    """
    load = _load_file_of_keras if _is_of_keras(path) else _load_checkpoint
    model = load(path, step, custom_objects, is_compiled=compile, is_trusted=not safe_mode)
    for callback in callbacks:
        callback.set_model(model)
    return model


def load_weights(
    model: Any,
    path: PathLike,
    step: int | str | None = None,
    *,
    names: str | Iterable[str] | None = None,
    strict: bool = True,
    optimizer: bool = True,
) -> LoadedWeights:
    """Load all or some weights of a checkpoint into a built model. Independent.

    Parameters
    ----------
    model : keras.Model
        A built model. It may be a part of the model that was saved.
    path : path_like
        A run directory, a step of it, or the name that `ModelCheckpoint` gave one.
    step : int or str, optional
        The step: a number, ``"latest"`` (the default) or ``"best"``.
    names : str or iterable of str, optional
        Names or patterns of the tensors to load, as ``hpcckpt tensors`` shows them: ``"model/conv*"``. All others of
        the model stay as they are.
    strict : bool
        Refuse if names, shapes or dtypes differ, and change nothing; otherwise load what fits.
    optimizer : bool
        Whether to load the optimizer too, if model and checkpoint have one. With ``strict=False`` an optimizer that
        does not fit is left out as a whole.

    Returns
    -------
    LoadedWeights
        What was loaded, and what was not.

    Raises
    ------
    StateMismatchError
        If model and checkpoint do not fit; names every difference. The model is unchanged.
    OptionError
        If a name or pattern matches nothing.
    StepNotFoundError, CorruptError
        If there is no such step, or it is damaged.
    """
    if not is_layer(model):
        raise OptionError(f"a {type(model).__name__} is not a Keras model; write load_weights(model, path)")
    patterns = [names] if isinstance(names, str) else names
    with held_step(_step_path(path, step), _THREADS) as reader:
        chosen = select(reader.specs, patterns)
        options: dict[str, bool] = {"with_optimizer": optimizer, "is_partial": patterns is not None}
        fit = _checked(model, reader, chosen, **options) if strict else _what_fits(model, reader, chosen, **options)
        with silence():
            assign(model, fit.leaves, reader)
        return LoadedWeights(
            reader.path,
            reader.manifest.step,
            tuple(fit.leaves),
            fit.names(MISSING),
            fit.names(UNEXPECTED),
            fit.names(MISMATCH),
        )


def signature(model: Any) -> str:
    """Return the structural signature of a model. Independent.

    Models whose weights have equal names, shapes and dtypes have equal signatures. Values and the optimizer do not
    matter.
    """
    own = {name: leaf for name, leaf in weights_of(model).items() if not isinstance(leaf, LayerStateLeaf)}
    return _digest({name: leaf.declaration.spec for name, leaf in own.items()})


def _digest(specs: Mapping[str, TensorSpec]) -> str:
    lines = sorted(f"{name} {spec.dtype} {list(spec.shape)}\n" for name, spec in specs.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


# -- the step --------------------------------------------------------------------------------------


def _load_checkpoint(
    path: PathLike,
    step: int | str | None,
    custom_objects: Mapping[str, Any] | None,
    *,
    is_compiled: bool,
    is_trusted: bool,
) -> Any:
    with held_step(_step_path(path, step), _THREADS) as reader:
        model = _build(reader, custom_objects, is_compiled=is_compiled, is_trusted=is_trusted)
        fit = _checked(model, reader, list(reader.specs), with_optimizer=is_compiled)
        with silence():
            assign(model, fit.leaves, reader)
    if is_compiled:
        _warn_of_lost_optimizer(model, reader)
    return model


def _step_path(path: PathLike, step: int | str | None) -> Path:
    where = Path(path)
    if where.is_symlink():  # the name that a user gave to a step
        where = Path(os.path.realpath(where))
    if where.is_file():
        raise ForeignFormatError(
            f"{where} is a file, not a checkpoint of hpcckpt: make it one with "
            f"'{command_line('convert', where, 'RUN')}', or read it by Keras' own "
            "model.load_weights or keras.models.load_model"
        )
    return find_step(where, step).path


# -- Keras' own files ------------------------------------------------------------------------------


def _is_of_keras(path: PathLike) -> bool:
    """Return True for a file that Keras wrote, by its name, and for a SavedModel."""
    where = Path(path)
    return (where.is_file() and where.name.endswith(_FILES_OF_KERAS)) or (where / _SAVED_MODEL).is_file()


def _load_file_of_keras(
    path: PathLike,
    step: int | str | None,
    custom_objects: Mapping[str, Any] | None,
    *,
    is_compiled: bool,
    is_trusted: bool,
) -> Any:
    from keras import models
    from keras.src.saving import serialization_lib

    if step is not None:
        raise OptionError(f"step: {step!r}, but {os.fspath(path)} is a Keras file, which has no steps")
    if Path(path).is_file():
        config = read_config(Path(path))
        know_own(config)
        if not is_trusted:
            refuse_code(config, custom_objects)
    with serialization_lib.SafeModeScope(not is_trusted):  # Keras 2.15 does so for .keras only
        return models.load_model(os.fspath(path), custom_objects, is_compiled, safe_mode=not is_trusted)


# -- build -----------------------------------------------------------------------------------------


def _build(reader: StepReader, custom_objects: Mapping[str, Any] | None, *, is_compiled: bool, is_trusted: bool) -> Any:
    architecture = find_architecture(reader.manifest.objects)
    if architecture is None:
        raise ConfigError(f"{reader.path} does not say how its model is built{_class_needed(reader.manifest)}")
    try:
        return build_architecture(architecture, custom_objects, is_compiled=is_compiled, is_trusted=is_trusted)
    except ConfigError as error:
        raise ConfigError(f"{reader.path}: {error}{_class_needed(reader.manifest)}") from error


def _warn_of_lost_optimizer(model: Any, reader: StepReader) -> None:
    """Say so if the checkpoint has an optimizer, and the model that it describes has none. Independent."""
    has_optimizer = any(name.startswith("optimizer/") for name in reader.specs)
    if has_optimizer and getattr(model, "optimizer", None) is None:
        _log.warning(
            "hpcckpt: %s has no record of how its model was compiled (a custom loss or metric?): call model.compile, "
            "then hpcckpt.keras.load_weights for the optimizer",
            reader.path,
        )


def _class_needed(manifest: Manifest) -> str:
    """Say which class the model is of, if the checkpoint knows, and what to do."""
    about = manifest.objects.get("user", {}).get("model")
    if not isinstance(about, Mapping) or not isinstance(about.get("class"), str):
        return (
            ": it was saved with weights only; build the model and have it filled, "
            "hpcckpt.keras.load_weights(model, path), or save it with objects=hpcckpt.keras.describe(model)"
        )
    name, why = about["class"], about.get("problem")
    is_of_keras = str(about.get("module")).partition(".")[0] in {"keras", "tf_keras"}
    if is_of_keras:  # then the class of a layer, loss or metric is missing
        return (
            f"{f' ({why})' if why else ''}; pass the program's classes in custom_objects={{NAME: CLASS}}, or build the "
            "model and have it filled, hpcckpt.keras.load_weights(model, path)"
        )
    return (
        f": it is a {name} of {about.get('module')}{f' ({why})' if why else ''}; build one and have it filled, "
        f"hpcckpt.keras.load_weights({name}(...), path), or pass custom_objects={{{name!r}: {name}}}"
    )


# -- match -----------------------------------------------------------------------------------------


def _checked(model: Any, reader: StepReader, names: Sequence[str], **options: bool) -> MatchResult:
    """Return how model and checkpoint fit, if they do."""
    fit = compare(model, reader.specs, names, **options)
    if not fit.problems:
        return fit
    stored = {
        name.removeprefix(f"{fit.prefix}/"): reader.specs[name] for name in weights_below(fit.prefix, reader.specs)
    }
    raise StateMismatchError(
        f"step {reader.manifest.step} of {reader.path.parent} does not fit this model (signature {_digest(stored)} in "
        f"the checkpoint, {signature(model)} here): {_diff(fit.problems)}; build the same model, choose with "
        "names='model/dense*', leave the optimizer out with optimizer=False, or take what fits with strict=False"
    )


def _diff(problems: Sequence[Problem]) -> str:
    counts = {kind: sum(problem.kind == kind for problem in problems) for kind in (MISSING, UNEXPECTED, MISMATCH)}
    total = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{total}: {list_problems(list(problems), 10)}"


def _what_fits(
    model: Any, reader: StepReader, names: Sequence[str], *, with_optimizer: bool, is_partial: bool
) -> MatchResult:
    """Return how model and checkpoint fit, without an optimizer that does not fit as a whole."""
    weights = compare(model, reader.specs, names, is_partial=is_partial)
    fit = compare(model, reader.specs, names, with_optimizer=with_optimizer, is_partial=is_partial)
    if len(fit.problems) > len(weights.problems):
        fit = MatchResult(fit.prefix, weights.leaves, fit.problems)
    if not fit.leaves:
        raise StateMismatchError(
            f"step {reader.manifest.step} of {reader.path.parent} has nothing that fits: {_diff(fit.problems)}"
        )
    return fit
