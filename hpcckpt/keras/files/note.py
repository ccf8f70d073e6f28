"""The note in Keras' own files, which Keras passes over: an attribute of an HDF5 file, a member of a ``.keras`` zip."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from hpcckpt.errors import ConfigError
from hpcckpt.format.note import KEY, Note, decode, encode

MEMBER = "hpcckpt.json"
MAX_ATTRIBUTE_BYTES = 60_000  # HDF5 keeps attributes in an object's header, which holds 64 KiB
MAX_MEMBER_BYTES = 1 << 28


def put_note(path: Path, note: Note) -> None:
    """Put a note into a file that Keras wrote."""
    if _is_zip(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(MEMBER, encode(note))
        return
    h5py = import_h5py()
    with h5py.File(path, "r+") as file:
        file.attrs[KEY] = encode(note, MAX_ATTRIBUTE_BYTES)


def note_of_file(path: Path) -> Note | None:
    """Return the note of a file of Keras', or ``None`` if it has none."""
    if _is_zip(path):
        with zipfile.ZipFile(path) as archive:
            if MEMBER not in archive.namelist() or archive.getinfo(MEMBER).file_size > MAX_MEMBER_BYTES:
                return None
            return decode(archive.read(MEMBER))
    h5py = import_h5py()
    with h5py.File(path, "r") as file:
        found = file.attrs.get(KEY)
    return decode(found) if isinstance(found, str | bytes) else None


def import_h5py() -> Any:
    """Return h5py.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(f"h5py reads and writes HDF5 files: pip install h5py ({error})") from error
    return h5py


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"
