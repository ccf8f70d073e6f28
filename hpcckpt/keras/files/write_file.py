"""One file of Keras or TensorFlow, written by Keras itself, whole or absent, with a note that its readers ignore.

Steps::

    1. Keras writes a temporary file beside it, and the note is added
    2. the file is synced and renamed, and its directory synced

The note holds step, metrics and what was best so far.  It is an attribute of an HDF5 file, a member of a ``.keras``
zip, ``assets.extra/hpcckpt.json`` in a SavedModel, and a hidden file beside a TensorFlow checkpoint.
"""

from __future__ import annotations

import os
import shlex
import zipfile
from pathlib import Path
from typing import Any

from hpcckpt.core.command_lines import command_line
from hpcckpt.errors import StepExistsError
from hpcckpt.format import layout
from hpcckpt.format.note import Note, decode, encode
from hpcckpt.keras.files.compile_config import optimizer_of_keras, written_compile_config
from hpcckpt.keras.files.note import note_of_file, put_note
from hpcckpt.keras.files.tf_files import INDEX, atomic_bundle
from hpcckpt.keras.versions import IS_KERAS_3
from hpcckpt.rundir.atomic_files import atomic_directory, atomic_path

_IN_SAVED_MODEL = Path("assets.extra", "hpcckpt.json")
_MAX_NOTE_BYTES = 1 << 24


def write_file(
    path: Path, file_format: str, model: Any, note: Note, *, is_weights_only: bool, options: Any = None
) -> None:
    """Have Keras write a model to a file, which replaces one of this name. Root only.

    Parameters
    ----------
    path : pathlib.Path
        The file, the directory of a SavedModel, or the prefix of a TensorFlow checkpoint.
    file_format : str
        One of `hpcckpt.keras.callbacks.file_formats.FORMATS`.
    model : keras.Model
        A built model.
    note : Note
        Stored with it.
    is_weights_only : bool
        Whether only weights are written.
    options : tf.train.CheckpointOptions or tf.saved_model.SaveOptions, optional
        Passed to Keras 2.15.

    Raises
    ------
    IsADirectoryError
        If a directory has this name; in Keras' words.
    StepExistsError
        If it is one of hpcckpt.
    NoSpaceError, ReadOnlyError, StorageError
        If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_directory(path, file_format)
    if file_format == "tf":
        with atomic_bundle(path, is_overwriting=True) as prefix:
            _checkpoint_of(model).write(str(prefix), options)
            with atomic_path(_note_beside(path), is_overwriting=True) as beside:
                beside.write_text(encode(note), encoding="ascii")
    elif file_format == "savedmodel":
        with atomic_directory(path, is_overwriting=True) as directory:
            _write_saved_model(model, str(directory), options)
            (directory / _IN_SAVED_MODEL).parent.mkdir(exist_ok=True)
            (directory / _IN_SAVED_MODEL).write_text(encode(note), encoding="ascii")
    else:
        with atomic_path(path, is_overwriting=True) as temporary:
            with written_compile_config(model), optimizer_of_keras(model):
                save = model.save_weights if is_weights_only else model.save
                has_options = options is not None and file_format == "h5"
                save(str(temporary), overwrite=True, **({"options": options} if has_options else {}))
            put_note(temporary, note)


def read_note(path: Path, file_format: str) -> Note | None:
    """Return the note of a file, or None if it has none or cannot be read. Independent."""
    try:
        if file_format in {"tf", "savedmodel"}:
            place = _note_beside(path) if file_format == "tf" else path / _IN_SAVED_MODEL
            return decode(place.read_bytes()) if place.stat().st_size <= _MAX_NOTE_BYTES else None
        return note_of_file(path)
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile):  # it may be any file
        return None


def refuse_directory(path: Path, file_format: str) -> None:
    """Raise if there is a directory that the file would replace. Root only.

    Raises
    ------
    StepExistsError
        If it is a checkpoint, or a directory of checkpoints, of hpcckpt.
    IsADirectoryError
        If it is another directory; in Keras' words.
    """
    is_link = path.is_symlink() and layout.parse_step(os.path.basename(os.path.realpath(path))) is not None
    names = [] if is_link or not path.is_dir() else os.listdir(path)
    if is_link or any(layout.parse_step(name) is not None for name in names):
        run = f"{path}.run"
        raise StepExistsError(
            f"{path} holds checkpoints of hpcckpt, which an earlier version saved under this name; they are not "
            f"replaced. Rename it: {shlex.join(['mv', str(path), run])}; "
            f"'{command_line('convert', run, 'NEW_NAME')}' makes a file of it"
        )
    is_replaceable = file_format == "savedmodel" and (not names or "saved_model.pb" in names)
    if path.is_dir() and file_format != "tf" and not is_replaceable:
        raise IsADirectoryError(
            "Please specify a non-directory filepath for ModelCheckpoint. Filepath used is an existing directory: "
            f"{path}"
        )


def visible_file(path: Path, file_format: str) -> Path:
    """Return the file or directory without which readers find nothing under this name. Pure."""
    return path.with_name(path.name + INDEX) if file_format == "tf" else path


def _write_saved_model(model: Any, path: str, options: Any) -> None:
    if IS_KERAS_3:
        model.export(path, verbose=False)
    else:
        model.save(path, save_format="tf", **({} if options is None else {"options": options}))


def _checkpoint_of(model: Any) -> Any:
    import tensorflow as tf

    return tf.train.Checkpoint(root=model)  # as Keras 2.15's save_weights


def _note_beside(prefix: Path) -> Path:
    return prefix.with_name(f".{prefix.name}.hpcckpt.json")
