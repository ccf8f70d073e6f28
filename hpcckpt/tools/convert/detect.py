"""Detect the format of a file or directory by its content; by its name only where the content is ambiguous."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hpcckpt.errors import CorruptError, ForeignFormatError, OptionError, StepNotFoundError
from hpcckpt.format import layout
from hpcckpt.keras.files.tf_files import DATA, INDEX, STATE, latest
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.tools.convert.formats import OWN, format_of_name

_HDF5 = b"\x89HDF\r\n\x1a\n"


def source_format(path: Path) -> str:
    """Return the format of what is there: ``hpcckpt``, or the name of a foreign one. Independent.

    Raises
    ------
    StepNotFoundError
        If nothing is there.
    OptionError
        If it may be several things; says which option decides.
    ForeignFormatError
        If it is none that is known.
    """
    if path.is_dir():
        return _directory_format(path)
    if path.is_file() and not _is_of_bundle(path):
        return _file_format(path)
    if bundle_prefix(path).with_name(bundle_prefix(path).name + INDEX).is_file():
        return "tf"
    raise StepNotFoundError(f"{path} does not exist")


def bundle_prefix(path: Path) -> Path:
    """Return the prefix of a TensorFlow checkpoint, given itself, one of its two files, or their directory."""
    if path.is_dir():
        found = latest(path)
        if found is None:
            raise StepNotFoundError(f"{path / STATE} names no checkpoint that is there; give the prefix of one")
        return found
    for suffix in (INDEX, DATA):
        if path.name.endswith(suffix):
            return path.with_name(path.name.removesuffix(suffix))
    return path


def _is_of_bundle(path: Path) -> bool:
    prefix = bundle_prefix(path)
    return prefix != path and prefix.with_name(prefix.name + INDEX).is_file()


def _directory_format(path: Path) -> str:
    is_own = (path / layout.MANIFEST).exists() or layout.parse_step(path.name) is not None or bool(step_numbers(path))
    signs = {
        OWN: is_own,
        "saved-model": (path / "saved_model.pb").is_file(),
        "tf": (path / STATE).is_file(),
    }
    found = [name for name, is_there in signs.items() if is_there]
    if len(found) == 1:
        return found[0]
    if found:
        raise OptionError(f"{path} may be {' or '.join(found)}; pass --from {found[0]}, or --from {found[1]}")
    raise StepNotFoundError(f"{path} contains no checkpoint of hpcckpt or TensorFlow, and no SavedModel")


def _file_format(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(_HDF5):
        return _hdf5_format(path)
    if head.startswith(b"PK\3\4"):
        return _zip_format(path)
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "safetensors"
    if head.startswith(b"\x80"):  # a bare pickle, as PyTorch wrote before 1.6; only its own reader may look at it
        return "pt"
    named = format_of_name(path)
    if named is not None:
        raise CorruptError(f"{path} is not {named.name}, though its name says so: it is damaged, or something else")
    raise ForeignFormatError(f"{path} is of no format that is known; pass --from")


def _hdf5_format(path: Path) -> str:
    from hpcckpt.tools.convert.read_hdf5 import layout_of

    found = layout_of(path)
    if found is None:
        raise ForeignFormatError(
            f"{path} is an HDF5 file, but not one of Keras'; if it is part of an hpcckpt checkpoint, give the step"
        )
    return "weights.h5" if found == "vars" else "h5"


def _zip_format(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise CorruptError(f"{path} is damaged: {error}") from error
    if "model.weights.h5" in names:
        return "keras"
    if any(name.endswith("data.pkl") and name.count("/") == 1 for name in names):
        return "pt"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    raise ForeignFormatError(f"{path} is a zip archive, but neither npz, nor keras, nor pt; pass --from")
