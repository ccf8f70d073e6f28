"""A file of another format made a checkpoint: recognise, read, choose, save a step as any run does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcckpt.checkpointer import Checkpointer
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import Kind
from hpcckpt.errors import ForeignFormatError, OptionError, StateMismatchError
from hpcckpt.format.note import Note, decode
from hpcckpt.keras.files.note import note_of_file
from hpcckpt.restoring.reader import Array
from hpcckpt.rundir.discovery import PathLike
from hpcckpt.state.tree import PerRank, RootOnly, Sharded
from hpcckpt.tools.convert.contents import Contents, chosen, with_note
from hpcckpt.tools.convert.detect import bundle_prefix, source_format
from hpcckpt.tools.convert.formats import OWN, find_format
from hpcckpt.tools.convert.read_hdf5 import check_hdf5, check_keras, optimizer_values, read_hdf5
from hpcckpt.tools.convert.read_npz import read_npz
from hpcckpt.tools.convert.read_safetensors import read_safetensors
from hpcckpt.tools.convert.result import Converted, LeftOut, count_parts

_STEP_NAMES = ("optimizer/iteration", "optimizer/iterations", "optimizer/iter")


def import_checkpoint(
    source: PathLike,
    directory: PathLike,
    step: int | None = None,
    *,
    fmt: str | None = None,
    model: Any = None,
    only: Iterable[str] | None = None,
    optimizer: bool = True,
    overwrite: bool = False,
    backend: str = "rankfile",
    progress: Progress | None = None,
) -> Converted:
    """Save what a file of another format holds as a step of a run directory. Independent.

    No code that the file contains is run: values that only unpickling could read are refused.

    Parameters
    ----------
    source : path_like
        A file, the prefix of a TensorFlow checkpoint, or a directory of such checkpoints (its latest is taken).
    directory : path_like
        The run directory; created if it does not exist.
    step : int, optional
        The step to save; by default the one that the file names, else the optimizer's count of iterations, else 0.
    fmt : str, optional
        The format of the file, see `hpcckpt.export_checkpoint`; by default it is detected from its content.
    model : keras.Model or str, optional
        For Keras' formats and ``tf``: a model that fits the file, or what to build it from. The step then has the names
        of this model, so that it can be restored from the step. Without a model the step has the names of the file.
    only : iterable of str, optional
        Names or patterns (``model/*``) of tensors.
    optimizer : bool
        Whether to import the optimizer.
    overwrite : bool
        Whether to replace a step of this number.
    backend : str
        Storage backend.
    progress : callable, optional
        Called with the number of bytes of each array that was read.

    Returns
    -------
    Converted
        What was saved and what was left out.

    Raises
    ------
    ForeignFormatError
        If the format of the file is not known, or reading the file would run code.
    CorruptError
        If it is damaged.
    StepNotFoundError
        If nothing is there.
    StateMismatchError
        If file and model do not fit.
    StepExistsError, LockedError
        If the run directory has this step, or is in use.
    ConfigError
        If a library that the format needs is not installed.
    """
    path = Path(source)
    file_format = _format_of(path, fmt)
    patterns = [only] if isinstance(only, str) else only
    contents = chosen(_read(path, file_format, model, progress), patterns, with_optimizer=optimizer)
    if step is None:
        step, remarks = _step_of(contents)
        contents = replace(contents, remarks=(*contents.remarks, *remarks))
    saved = _save(contents, Path(directory), step, overwrite=overwrite, backend=backend)
    return _converted(path, file_format, contents, saved, step)


def _converted(source: Path, file_format: str, contents: Contents, saved: Path, step: int) -> Converted:
    """Return the result of an import that is done. Pure."""
    return Converted(
        source=source,
        source_format=file_format,
        path=saved,
        format=OWN,
        step=step,
        **count_parts(contents.tensors),
        nbytes=sum(array.nbytes for array in contents.tensors.values()),
        left_out=contents.left_out,
        remarks=contents.remarks,
    )


# -- read ----------------------------------------------------------------------------------------


def _format_of(path: Path, fmt: str | None) -> str:
    """Return the name of a file's format; refuse what is none to import. Independent."""
    found = find_format(fmt).name if fmt else source_format(path)
    if found == OWN:
        raise OptionError(f"{path} is an hpcckpt checkpoint already; 'hpcckpt reshard' rewrites one")
    if path.is_dir() and found not in {"tf", "saved-model"}:
        raise OptionError(f"{path} is a directory; a checkpoint of format {found} is a file")
    return found


def _read(path: Path, file_format: str, model: Any, progress: Progress | None) -> Contents:
    if model is not None and file_format in {"npz", "safetensors", "pt"}:
        raise OptionError(f"{file_format} has its own names: leave out --model")
    return _READERS[file_format](path, model, progress)


def _read_torch(path: Path, _model: Any, progress: Progress | None) -> Contents:
    from hpcckpt.tools.convert.read_torch import read_torch

    return read_torch(path, progress)


def _read_hdf5(path: Path, model: Any, progress: Progress | None) -> Contents:
    if model is None:
        return read_hdf5(path, progress)
    check_hdf5(path)
    values = optimizer_values(path)
    return _through_model(path, ".h5", model, lambda filled: _assign_optimizer(filled, values))


def _read_weights(path: Path, model: Any, progress: Progress | None) -> Contents:
    if model is None:
        return read_hdf5(path, progress)
    check_hdf5(path)
    return _through_model(path, ".weights.h5", model)


def _read_keras(path: Path, model: Any, _progress: Progress | None) -> Contents:
    from hpcckpt.keras.files.import_model import load_keras

    check_keras(path)
    if model is not None:
        return _through_model(path, ".keras", model)
    return _through_model(path, ".keras", load_keras(path), is_its_own=True)


def _through_model(
    path: Path, suffix: str, model: Any, assign: Callable[[Any], None] | None = None, *, is_its_own: bool = False
) -> Contents:
    """Return the contents of one of Keras' own files by the names that a model has.

    One that was built from the file itself has the learning rate from there, though ``load_weights`` passes over it.
    """
    from hpcckpt.keras.files.export_model import as_model
    from hpcckpt.keras.files.import_model import read_keras

    built = as_model(model)
    values = read_keras(path, suffix, built, assign)
    kept_names = [name for name in values.kept if not (is_its_own and name == "optimizer/learning_rate")]
    return _noted(values, kept_names, note_of_file(path), built)


def _noted(values: Any, kept: Sequence[str], note: Note | None, model: Any) -> Contents:
    """Return a model's values as contents, with its architecture, and step, metrics and objects from a note."""
    from hpcckpt.keras.files.describe import describe

    left = [LeftOut(values.absent, "not in the file; the model has a new one")] if values.absent else []
    remarks = [f"not in the file, so as the model has them: {', '.join(kept)}"] if kept else []
    contents = Contents(values.tensors, values.kinds, left_out=tuple(left), remarks=tuple(remarks))
    contents = with_note(contents, None if note is None else replace(note, kinds={}, dtypes={}))
    return replace(contents, objects={**describe(model), **contents.objects})


def _assign_optimizer(model: Any, values: list[Array]) -> None:
    """Give a model's optimizer the variables of an ``.h5`` file, which ``load_weights`` passes over."""
    from hpcckpt.keras.files.import_model import optimizer_variables

    variables = optimizer_variables(model)
    if not variables or not values:
        return
    if [tuple(variable.shape) for variable in variables] != [value.shape for value in values]:
        raise StateMismatchError(
            "the optimizers of file and model differ: leave it out (--no-optimizer), or compile the same one"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _read_tf(path: Path, model: Any, progress: Progress | None) -> Contents:
    from hpcckpt.keras.files.tf_checkpoint import SAVE_COUNTER, read_bundle, read_into_model

    prefix = bundle_prefix(path)
    bundle = read_bundle(prefix)
    note = decode(bundle.note) if bundle.note else None
    if model is not None:
        from hpcckpt.keras.files.export_model import as_model

        built = as_model(model)
        values = read_into_model(prefix, built)
        return _noted(values, values.kept, note, built)
    if progress:
        progress(sum(array.nbytes for array in bundle.tensors.values()))
    left = [
        LeftOut(names, why)
        for names, why in (
            (bundle.texts, "text, and no tensor"),
            (bundle.counts, "what Keras' metrics and TensorFlow itself count"),
        )
        if names
    ]
    is_ours = bundle.note is not None and SAVE_COUNTER not in (note.dtypes if note is not None else ())
    tensors = {name: array for name, array in bundle.tensors.items() if not (is_ours and name == SAVE_COUNTER)}
    return with_note(Contents(tensors, left_out=tuple(left)), note)


def _refuse_saved_model(path: Path, _model: Any, _progress: Progress | None) -> Contents:
    raise ForeignFormatError(
        f"a SavedModel is a program, and is not imported; its weights are a TensorFlow checkpoint: give "
        f"{path / 'variables' / 'variables'}"
    )


def _read_plain(read: Callable[[Path, Progress | None], Contents]) -> Callable[[Path, Any, Progress | None], Contents]:
    return lambda path, _model, progress: read(path, progress)


_READERS: Mapping[str, Callable[[Path, Any, Progress | None], Contents]] = {
    "npz": _read_plain(read_npz),
    "safetensors": _read_plain(read_safetensors),
    "pt": _read_torch,
    "tf": _read_tf,
    "weights.h5": _read_weights,
    "keras": _read_keras,
    "h5": _read_hdf5,
    "saved-model": _refuse_saved_model,
}


# -- save ----------------------------------------------------------------------------------------


def _step_of(contents: Contents) -> tuple[int, tuple[str, ...]]:
    """Return the step to save, and what to say of it. Pure."""
    if contents.step is not None:
        return contents.step, ()
    for name in _STEP_NAMES:
        value = contents.tensors.get(name)
        if value is not None and value.size == 1 and value.dtype.kind in "iu" and int(value.flat[0]) >= 0:
            return int(value.flat[0]), (f"the step is the optimizer's count of iterations, {name}",)
    return 0, ("the file does not say which step it is of: it is saved as step 0 (--step)",)


def _save(contents: Contents, directory: Path, step: int, *, overwrite: bool, backend: str) -> Path:
    state: dict[str, Any] = dict(contents.state_objects)
    state |= {name: _wrapped(array, contents.kinds.get(name, "replicated")) for name, array in contents.tensors.items()}
    options: dict[str, Any] = {"max_to_keep": None, "async_save": False, "recycle": False}
    with Checkpointer(directory, SerialCommunicator(), backend, **options) as checkpointer:
        pending = checkpointer.save(
            step, state, metrics=contents.metrics, objects=contents.objects, overwrite=overwrite
        )
        return pending.result().path


def _wrapped(array: Array, kind: Kind) -> Any:
    """Return an array as a value of a state, of the kind that it was."""
    if kind == "per-rank":
        return PerRank(array)
    if kind == "root":
        return RootOnly(array)
    return Sharded(array, array.shape, (0,) * array.ndim) if kind == "sharded" else array
