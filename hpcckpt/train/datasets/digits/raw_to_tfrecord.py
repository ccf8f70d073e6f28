"""scikit-learn's digits as TFRecords: ``python -m hpcckpt.train.datasets.digits.raw_to_tfrecord DIRECTORY``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hpcckpt.train.datasets.digits.parser import parse
from hpcckpt.train.datasets.tfrecords import command
from hpcckpt.train.datasets.tfrecords.converting import N_SHARDS, Recipe, convert_once

RECIPE = Recipe("digits", parse, "python -m hpcckpt.train.datasets.digits.raw_to_tfrecord")


def convert(directory: str | os.PathLike[str], n_shards: int = N_SHARDS, *, comm: Any = None) -> Path:
    """Make a directory of TFRecords, unless it is there and whole; rank 0 does, the others wait. Collective.

    Parameters
    ----------
    directory : path_like
        Where to; it must not exist, be empty, or hold the digits already.
    n_shards : int
        How many files.
    comm : Communicator or mpi4py communicator, optional
        The ranks; ``None`` is all that the launcher started.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    PackageMissingError
        If scikit-learn is not installed.
    OptionError
        If the directory holds something else.
    DatasetDamagedError
        If what it holds is not whole.
    """
    return convert_once(RECIPE, directory, n_shards, comm)


if __name__ == "__main__":
    sys.exit(command.main("scikit-learn's digits", convert))
