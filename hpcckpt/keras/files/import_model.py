"""A file of Keras or TensorFlow read into a model by stock code, and what of it really came from the file.

Stock readers skip what does not fit without an error that a program could catch (an optimizer that is not built, a
learning rate that the format has no place for).  So all variables are marked before, and what bears its mark after
was not in the file.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.core.tensors import Kind
from hpcckpt.errors import HpcckptError, StateMismatchError
from hpcckpt.keras.files.match import tensor_leaves
from hpcckpt.keras.files.weights_file import build_model
from hpcckpt.keras.model.layers import RNG_STATE
from hpcckpt.keras.model.state import MODEL, OPTIMIZER
from hpcckpt.restoring.reader import Array
from hpcckpt.state.tree import TensorLeaf


@dataclass(frozen=True, slots=True, eq=False)
class ModelValues:
    """What a file holds of a model.

    Attributes
    ----------
    tensors, kinds : dict
        Values and kinds, by the names that the model has in a checkpoint.
    kept : tuple of str
        Those of them that were not in the file; they are the model's own.
    absent : tuple of str
        The optimizer's tensors, if none of them was in the file; they are left out.
    """

    tensors: Mapping[str, Array]
    kinds: Mapping[str, Kind]
    kept: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def read_keras(path: Path, suffix: str, model: Any, assign: Callable[[Any], None] | None = None) -> ModelValues:
    """Read one of Keras' own files into a model. Independent.

    Parameters
    ----------
    path : pathlib.Path
        The file, whatever its name.
    suffix : str
        The file name extension, by which Keras detects the format: ``.weights.h5``, ``.h5``, ``.keras``.
    model : keras.Model
        A built model.
    assign : callable, optional
        Called with the model after Keras' own reader: it assigns what that one passes over.

    Raises
    ------
    StateMismatchError
        If file and model do not fit.
    """

    def load() -> None:
        _load_weights(path, suffix, model)
        if assign is not None:
            assign(model)

    return observed(model, load)


def not_read_back(path: Path, suffix: str, model: Any, found: Mapping[str, TensorLeaf]) -> set[str]:
    """Return the names of those variables that ``load_weights`` does not fill from a file; all keep their values."""
    own = {name: leaf.read().copy() for name, leaf in found.items()}
    try:
        return _untouched(found, lambda: _load_weights(path, suffix, model))
    finally:
        _assign(found, own, own)


def _load_weights(path: Path, suffix: str, model: Any) -> None:
    """Make Keras read a file under a name with the extension of its format."""
    with tempfile.TemporaryDirectory() as room:
        link = Path(room, f"model{suffix}")
        link.symlink_to(path.absolute())
        model.load_weights(str(link))


def load_keras(path: Path) -> Any:
    """Build the model that a ``.keras`` file holds, with its optimizer. Independent.

    Raises
    ------
    ConfigError
        If that would run code that the file brings along or names, or fails.
    CorruptError
        If the file is damaged.
    """
    with silence(), tempfile.TemporaryDirectory() as room:
        link = Path(room, "model.keras")
        link.symlink_to(path.absolute())
        return build_model(str(link), is_compiled=True)


def observed(model: Any, load: Callable[[], None]) -> ModelValues:
    """Run a reader that fills a model, and return what it filled. Independent.

    Raises
    ------
    StateMismatchError
        If the reader fails, or leaves a weight as it is; names all of these. The model has its own values again then.
    """
    with silence():
        found = tensor_leaves(model)
    own = {name: leaf.read().copy() for name, leaf in found.items()}
    try:
        untouched = _untouched(found, load)
        weights = [name for name in untouched if name.startswith(f"{MODEL}/") and RNG_STATE not in name]
        if weights:
            raise StateMismatchError(f"these weights are not in the file: {', '.join(sorted(weights)[:10])}")
    except BaseException:
        _assign(found, own, own)
        raise
    _assign(found, own, untouched)
    of_optimizer = [name for name in found if not name.startswith(f"{MODEL}/")]
    absent = set(of_optimizer) if set(of_optimizer) <= untouched else set()
    now = tensor_leaves(model)
    tensors = {name: now[name].read() for name in found if name not in absent}
    kinds = {name: found[name].declaration.spec.kind for name in tensors}
    return ModelValues(tensors, kinds, tuple(sorted(untouched - absent)), tuple(sorted(absent)))


def _untouched(found: Mapping[str, TensorLeaf], load: Callable[[], None]) -> set[str]:
    """Return the names of the variables that a reader leaves as they are.

    One that bears its mark by chance (a flag, a small whole number) does not bear another one as well.
    """
    left = {name for name, leaf in found.items() if leaf.declaration.extent.n_elements}
    for number in (0.7265625, 0.2890625):
        marks = {name: _mark(found[name], number) for name in left}
        _assign(found, marks, left)
        _run(load)
        left = {name for name in left if found[name].read().tobytes() == marks[name].tobytes()}
        if not left:
            break
    return left


def _run(load: Callable[[], None]) -> None:
    try:
        with silence():
            load()
    except HpcckptError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise StateMismatchError(f"file and model do not fit: {type(error).__name__}: {text[:500]}") from error


def _mark(leaf: TensorLeaf, number: float) -> Array:
    """Return values that are not trained: a number, or where there are whole numbers only 93, or 37."""
    values = leaf.read()
    is_whole = values.dtype.kind in "iu"
    if values.dtype.kind == "b":
        return np.full_like(values, number > 0.5)
    return np.full_like(values, int(number * 128) if is_whole else number)


def _assign(found: Mapping[str, TensorLeaf], values: Mapping[str, Array], names: Sequence[str] | Any) -> None:
    for name in names:
        found[name].assign(values[name])


def optimizer_variables(model: Any) -> list[Any]:
    """Return the variables of a model's optimizer, in Keras' own order."""
    found = getattr(getattr(model, OPTIMIZER, None), "variables", [])
    return list(found() if callable(found) and not isinstance(found, list) else found)


# -- messages of frameworks that are held back ----------------------------------------------------


_LOGGERS = ("absl", "tensorflow")


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress the output of Keras and TensorFlow while they read or write a legacy format."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
