"""The two files of a TensorFlow checkpoint put in place, and the file ``checkpoint`` that names the latest.

Steps::

    1. write both under a temporary prefix in the same directory, fsync them
    2. rename the data, then the index, without which TensorFlow sees no checkpoint; fsync the directory
    3. replace ``checkpoint``, atomically, so that ``tf.train.latest_checkpoint`` finds this one
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcckpt import native
from hpcckpt.core import files
from hpcckpt.errors import HpcckptError, from_os_error
from hpcckpt.format import layout
from hpcckpt.rundir.atomic_files import atomic_path, check_free, fsync_file

INDEX, DATA = ".index", ".data-00000-of-00001"
STATE = "checkpoint"
_ENTRY = re.compile(rb'^(all_)?model_checkpoint_paths?: "((?:[^"\\]|\\.)*)"$', re.MULTILINE)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ESCAPED = {ord("\\"): "\\\\", ord('"'): '\\"'}
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
"""Escape sequences: the character after a backslash -> its meaning; others mean themselves."""


@contextmanager
def atomic_bundle(prefix: Path, *, is_overwriting: bool = False) -> Iterator[Path]:
    """Give a temporary prefix to write to; at the end of the block the two files have their names, durably.

    If it is killed while it overwrites, data and index may be of different saves; TensorFlow's checksums tell.

    Raises
    ------
    OptionError
        If the files exist and may not be overwritten, or their directory does not exist.
    NoSpaceError, ReadOnlyError, StorageError
        If they cannot be written.
    """
    for suffix in (INDEX, DATA):
        check_free(_with(prefix, suffix), is_overwriting=is_overwriting)
    temporary = prefix.with_name(f".tmp-{layout.new_nonce()}.{prefix.name}")
    try:
        yield temporary
        for suffix in (DATA, INDEX):
            fsync_file(_with(temporary, suffix), _with(prefix, suffix))  # step 1
        for suffix in (DATA, INDEX):
            _with(temporary, suffix).replace(_with(prefix, suffix))  # step 2
        native.fsync_dir(str(prefix.parent))
        with atomic_path(prefix.with_name(STATE), is_overwriting=True) as state:  # step 3
            state.write_text(state_text(prefix), encoding="ascii")
    except HpcckptError:
        raise
    except OSError as error:
        raise from_os_error(error, f"write {prefix}") from error
    finally:
        for suffix in (DATA, INDEX):
            files.unlink(_with(temporary, suffix))


def state_text(newest: Path) -> str:
    """Return what the file ``checkpoint`` says when a checkpoint was added to those of its directory."""
    known = [name for name in listed(newest.parent) if name != newest.name]
    kept = [name for name in known if _with(newest.parent / name, INDEX).exists()]
    lines = [f"model_checkpoint_path: {_quoted(newest.name)}"]
    lines += [f"all_model_checkpoint_paths: {_quoted(name)}" for name in [*kept, newest.name]]
    times = [_with(newest.parent / name, INDEX).stat().st_mtime for name in [*kept, newest.name]]
    lines += [
        f"all_model_checkpoint_timestamps: {time!r}" for time in times
    ]  # without them CheckpointManager sees none
    return "\n".join(lines) + "\n"


def listed(directory: Path) -> list[str]:
    """Return the checkpoints that the file ``checkpoint`` of a directory lists, oldest first."""
    return [name for is_all, name in _entries(directory) if is_all]


def latest(directory: Path) -> Path | None:
    """Return the prefix of the newest checkpoint by the file ``checkpoint``, if it is there."""
    names = [name for is_all, name in _entries(directory) if not is_all]
    prefix = directory / names[0] if names else None
    return prefix if prefix is not None and _with(prefix, INDEX).exists() else None


def _entries(directory: Path) -> list[tuple[str, str]]:
    try:
        text = (directory / STATE).read_bytes()
    except OSError:
        return []
    entries = ((match[1] or b"", _ESCAPE.sub(_unescaped, match[2])) for match in _ENTRY.finditer(text))
    return [(os.fsdecode(key), os.fsdecode(value)) for key, value in entries]


def _quoted(text: str) -> str:
    """Return a name as protobuf writes text: bytes that are no plain ASCII as three octal digits."""
    plain = (_ESCAPED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in os.fsencode(text))
    return f'"{"".join(plain)}"'


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, letter = match.groups()
    if octal or hexadecimal:
        return bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
    return _LETTERS.get(letter, letter)


def _with(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)
