"""A checkpoint written in another format: choose, write under a temporary name, rename.

Nothing is there before it is whole, and what is left out is said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcckpt.core.results import Progress
from hpcckpt.errors import ConfigError, OptionError
from hpcckpt.format.manifest import Manifest
from hpcckpt.format.note import ARCHITECTURE, encode, note_of
from hpcckpt.keras.files.note import put_note
from hpcckpt.keras.files.tf_files import atomic_bundle
from hpcckpt.restoring.reader import Array, StepReader, rank_name
from hpcckpt.restoring.segments import StoredArray, held_step, read_array, stored_arrays
from hpcckpt.rundir.atomic_files import atomic_directory, atomic_path, check_free
from hpcckpt.rundir.discovery import PathLike
from hpcckpt.state.tree import TensorLeaf
from hpcckpt.tools.convert import write_hdf5, write_npz, write_safetensors, write_torch
from hpcckpt.tools.convert.formats import OWN, Format, find_format, target_format
from hpcckpt.tools.convert.result import Converted, LeftOut, choose, count_parts, is_of_optimizer

NEEDS_MODEL = (
    "the format lays weights out by the parts of a Keras model, and this checkpoint does not hold its architecture: "
    "give the model (--model model.json from model.to_json(), --model model.keras, or --model package.module:function "
    "that builds it, compiled if the optimizer is wanted), or write npz or safetensors, which need none"
)


@dataclass(frozen=True, slots=True, eq=False)
class ExportJob:
    """What is to be written.

    Attributes
    ----------
    reader : StepReader
        The checkpoint.
    names : list of str
        The tensors that were asked for.
    out : pathlib.Path
        Where they go.
    model : object
        The Keras model, where one is needed or given.
    """

    reader: StepReader
    names: Sequence[str]
    out: Path
    format: Format
    model: Any
    with_optimizer: bool
    is_overwriting: bool
    progress: Progress | None

    @property
    def wanted(self) -> list[StoredArray]:
        """The arrays that were asked for."""
        return stored_arrays(self.reader, self.names)


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What became of a job: the tensors that are in the file, what is not, and why."""

    names: Sequence[str]
    left_out: Sequence[LeftOut] = ()
    remarks: Sequence[str] = ()


def export_checkpoint(
    source: PathLike,
    out: PathLike,
    to: str | None = None,
    *,
    model: Any = None,
    only: Iterable[str] | None = None,
    optimizer: bool = True,
    overwrite: bool = False,
    threads: int = 2,
    progress: Progress | None = None,
) -> Converted:
    """Write a checkpoint in another format. Independent.

    Every byte that is read is verified. `out` is written completely or not at all.

    Parameters
    ----------
    source : path_like
        A step directory, or a run directory, of which the newest restorable step is taken.
    out : path_like
        What to write: a file, the prefix of a TensorFlow checkpoint, or the directory of a SavedModel.
    to : str, optional
        The format, one of ``npz``, ``safetensors``, ``pt``, ``tf``, ``weights.h5``, ``keras``, ``h5``,
        ``saved-model`` and ``hdf5``; by default the one that the name of `out` implies. ``.h5`` is Keras' file if there
        is a model, else plain HDF5.
    model : keras.Model or str, optional
        For Keras' formats and ``tf``: the model, or ``model.json``, ``model.keras`` or ``module:function`` to build it
        from; by default the architecture that the checkpoint holds. A model is filled with the checkpoint.
    only : iterable of str, optional
        Names or patterns (``model/*``) of tensors.
    optimizer : bool
        Whether to write the optimizer.
    overwrite : bool
        Whether to replace `out` if it exists.
    threads : int
        Native threads that read.
    progress : callable, optional
        Called with the number of bytes of each array that was written.

    Returns
    -------
    Converted
        What was written and what was left out.

    Raises
    ------
    OptionError
        If the format is not known or cannot hold what was asked for, or `out` may not be written.
    ConfigError
        If a model is needed but neither given nor stored, or a library that the format needs is not installed.
    StateMismatchError
        If the model does not fit the checkpoint.
    StepNotFoundError, CorruptError
        If there is no checkpoint, or it is damaged.
    ForeignFormatError
        If Keras cannot write such a model.
    """
    path = Path(out)
    file_format = target_format(path, to)
    with held_step(Path(source), threads) as reader:
        patterns = [only] if isinstance(only, str) else only
        names, left_out = choose(reader.specs, patterns, with_optimizer=optimizer)
        check_free(path, is_overwriting=overwrite, is_for_directory=file_format.name == "saved-model")
        _refuse_other_directory(path)
        used = _model_for(file_format, model, reader, is_asked_for=to is not None)
        if used is None and file_format.name == "h5":
            file_format = find_format("hdf5")
        job = ExportJob(reader, names, path, file_format, used, optimizer, overwrite, progress)
        done = _WRITERS[file_format.name](job)
        stored = [each.name for each in job.wanted]
        values = values_left_out(reader.manifest, file_format.name, stored)
        left_out += [each for each in values if each.reason == WITHOUT_ROOM or not patterns]
        return _converted(job, left_out, done)


def _converted(job: ExportJob, left_out: Sequence[LeftOut], done: ExportOutcome) -> Converted:
    """Return the result of an export that is done. Pure."""
    return Converted(
        source=job.reader.path,
        source_format=OWN,
        path=job.out,
        format=job.format.name,
        step=job.reader.manifest.step,
        **count_parts(done.names, are_of_model=job.format.is_model),
        nbytes=sum(each.nbytes for each in stored_arrays(job.reader, done.names)),
        left_out=(*left_out, *done.left_out),
        remarks=tuple(done.remarks),
    )


def _model_for(file_format: Format, model: Any, reader: StepReader, *, is_asked_for: bool) -> Any:
    """Return the model that a format needs, or that makes more of it; ``None`` if it does without.

    Without a model a name that ends in ``.h5`` means plain HDF5, unless Keras' ``h5`` was asked for.
    """
    if not (file_format.is_model or file_format.name == "tf"):
        if model is not None:
            raise ConfigError(f"{file_format.name} needs no model: leave out --model")
        return None
    from hpcckpt.keras.files.architecture import build_architecture, find_architecture

    if model is not None:
        from hpcckpt.keras.files.export_model import as_model

        return as_model(model)
    architecture = find_architecture(reader.manifest.objects)
    if architecture is not None:
        return build_architecture(architecture)
    if file_format.is_model and (is_asked_for or file_format.name != "h5"):
        raise ConfigError(NEEDS_MODEL)
    return None


# -- formats that need no model --------------------------------------------------------------------


VALUES = "values, not tensors ('hpcckpt info' shows them)"
WITHOUT_ROOM = "values whose names have no place beside others in the file ('hpcckpt info' shows them)"
"""Why values are left out."""


def values_left_out(manifest: Manifest, format_name: str, tensors: Collection[str]) -> list[LeftOut]:
    """Return the values that are not tensors and that readers of a format do not see beside these. Pure."""
    of_state, of_user = (manifest.objects.get(place, {}) for place in ("state", "user"))
    names: list[str] = []
    without_room: list[str] = []
    if format_name == "hdf5":
        without_room = write_hdf5.place_values(manifest, tensors)[1]
    elif format_name == "pt":
        names, without_room = list(of_user), write_torch.place_values(of_state, tensors)[1]
    else:
        names = [*of_state, *of_user]
    names = [name for name in names if name.rpartition("/")[2] != ARCHITECTURE]
    found = ((names, VALUES), (without_room, WITHOUT_ROOM))
    return [LeftOut(tuple(each), why) for each, why in found if each]


def _write_npz(job: ExportJob) -> ExportOutcome:
    wanted = job.wanted
    with atomic_path(job.out, is_overwriting=job.is_overwriting) as temporary:
        write_npz.write_npz(temporary, job.reader, wanted, job.progress)
    return ExportOutcome(job.names, remarks=_widened(job))


def _widened(job: ExportJob) -> list[str]:
    names = [source.name for source in job.wanted if write_npz.is_widened(source)]
    return [f"as float32, because .{job.format.name} has no narrower type for them: {_some(names)}"] if names else []


def _write_hdf5(job: ExportJob) -> ExportOutcome:
    with atomic_path(job.out, is_overwriting=job.is_overwriting) as temporary:
        write_hdf5.write_hdf5(temporary, job.reader, job.wanted, job.progress)
    return ExportOutcome(job.names, remarks=_widened(job))


def _write_safetensors(job: ExportJob) -> ExportOutcome:
    with atomic_path(job.out, is_overwriting=job.is_overwriting) as temporary:
        write_safetensors.write_safetensors(temporary, job.reader, job.wanted, job.progress)
    return ExportOutcome(job.names)


def _write_torch(job: ExportJob) -> ExportOutcome:
    objects = job.reader.manifest.objects.get("state", {})
    kept = {name: value for name, value in objects.items() if job.with_optimizer or not is_of_optimizer(name)}
    with atomic_path(job.out, is_overwriting=job.is_overwriting) as temporary:
        write_torch.write_torch(temporary, job.reader, job.wanted, kept, job.progress)
    return ExportOutcome(job.names)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# -- Keras and TensorFlow --------------------------------------------------------------------------


def _write_keras(job: ExportJob) -> ExportOutcome:
    from hpcckpt.keras.files.export_model import write_model

    is_directory = job.format.name == "saved-model"
    atomic = atomic_directory if is_directory else atomic_path
    with atomic(job.out, is_overwriting=job.is_overwriting) as temporary:
        used, lost = write_model(
            temporary, job.format.name, job.model, job.reader, job.names, with_optimizer=job.with_optimizer
        )
        if not is_directory:
            put_note(temporary, note_of(job.reader.manifest, stored_arrays(job.reader, used)))
    if job.progress:
        job.progress(sum(each.nbytes for each in stored_arrays(job.reader, used)))
    has_optimizer = is_directory and any(is_of_optimizer(name) for name in used)
    left_out = [LeftOut(tuple(lost), "Keras keeps no such thing in this format")] if lost else []
    left_out += _unused(job, [*used, *lost])
    return ExportOutcome(used, left_out, [_NEW_OPTIMIZER] if has_optimizer else [])


_NEW_OPTIMIZER = "the optimizer is in the SavedModel's variables, but keras.models.load_model makes a new optimizer"


def _unused(job: ExportJob, used: Sequence[str]) -> list[LeftOut]:
    """Say what a file of one model and one process has no place for."""
    specs, n_ranks = job.reader.specs, job.reader.manifest.n_ranks
    rest = [name for name in job.names if name not in set(used)]
    optimizer = tuple(name for name in rest if is_of_optimizer(name))
    other = tuple(name for name in rest if not is_of_optimizer(name))
    shared = tuple(name for name in used if specs[name].kind == "per-rank") if n_ranks > 1 else ()
    why = (
        "the model is not compiled"
        if getattr(job.model, "optimizer", None) is None
        else "the format has no place for it"
    )
    found = [
        (optimizer, why),
        (other, "not part of the model"),
        (shared, f"of ranks 1 to {n_ranks - 1}: the file is of one process"),
    ]
    return [LeftOut(names, reason) for names, reason in found if names]


def _refuse_other_directory(path: Path) -> None:
    """Raise if a directory is in the way that is no SavedModel: replacing it would remove all that is in it."""
    if path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").is_file():
        raise OptionError(f"{path} is a directory with other things in it, and is left alone; choose another name")


def _write_tf(job: ExportJob) -> ExportOutcome:
    from hpcckpt.keras.files import tf_checkpoint

    wanted = job.wanted
    tf_checkpoint.refuse_unknown({each.name: each.spec.dtype for each in wanted})
    arrays = {each.name: _array(job, each) for each in wanted}
    counters = [each for each in wanted if each.name == tf_checkpoint.SAVE_COUNTER]  # or it passes for TensorFlow's
    note = encode(note_of(job.reader.manifest, wanted, counters))
    with atomic_bundle(job.out, is_overwriting=job.is_overwriting) as temporary:
        if job.model is None:
            tf_checkpoint.write_bundle(temporary, arrays, note)
            return ExportOutcome(job.names, remarks=[_NO_OBJECTS])
        with _filled(job) as leaves:
            variables = {_own_name(job, name): leaf.source for name, leaf in leaves.items()}
            unreached = tf_checkpoint.write_bundle(temporary, arrays, note, variables, job.model)
    remarks = [f"in the file, but not where tf.train.Checkpoint looks: {_some(unreached)}"] if unreached else []
    return ExportOutcome(job.names, remarks=remarks)


_NO_OBJECTS = (
    "by names only: tf.train.load_checkpoint reads it; for tf.train.Checkpoint(model=…, optimizer=…) and load_weights "
    "to find their variables too, give the model (--model)"
)


def _filled(job: ExportJob) -> AbstractContextManager[dict[str, TensorLeaf]]:
    from hpcckpt.keras.files.export_model import filled

    return filled(job.model, job.reader, job.names, with_optimizer=job.with_optimizer)


def _own_name(job: ExportJob, name: str) -> str:
    return rank_name(name, 0) if job.reader.specs[name].kind == "per-rank" else name


def _array(job: ExportJob, source: StoredArray) -> Array:
    array = read_array(job.reader, source)
    if job.progress:
        job.progress(source.nbytes)
    return array


_WRITERS: dict[str, Callable[[ExportJob], ExportOutcome]] = {
    "npz": _write_npz,
    "safetensors": _write_safetensors,
    "pt": _write_torch,
    "tf": _write_tf,
    "weights.h5": _write_keras,
    "keras": _write_keras,
    "h5": _write_keras,
    "saved-model": _write_keras,
    "hdf5": _write_hdf5,
}
