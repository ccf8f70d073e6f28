"""The library that plugins written for TMCI link to, for build systems that ask as TMCI's do: TensorFlow's own."""

from __future__ import annotations

from pathlib import Path

from hpcckpt.native import tfinfo

__all__ = ["get_library", "get_library_dir"]


def get_library() -> str:
    """Return the file name of TensorFlow's library, as for ``ld -l:NAME``.

    It provides what a plugin takes from TMCI's library: `tensorflow::Tensor`. A plugin that is linked to it, with an
    rpath to `get_library_dir` as CMake sets it, can be loaded before or after TensorFlow is imported.

    Raises
    ------
    ConfigError
        If TensorFlow is not installed; the message has the remedy.
    """
    return _path().name


def get_library_dir() -> str:
    """Return the directory of TensorFlow's library.

    Raises
    ------
    ConfigError
        If TensorFlow is not installed; the message has the remedy.
    """
    return str(_path().parent)


def _path() -> Path:
    """Return the first library that ``python -m hpcckpt.native.tfinfo`` names, in the first directory that has it."""
    info = tfinfo.resolve()
    name = info.libraries.values[0]
    file = name.removeprefix(":") if name.startswith(":") else f"lib{name}.so"
    paths = [Path(directory) / file for directory in info.library_dirs.values]
    return next((path for path in paths if path.is_file()), paths[0])
