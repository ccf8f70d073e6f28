"""Synthetic images as TFRecords: ``python -m hpcckpt.train.datasets.synthetic.raw_to_tfrecord DIRECTORY``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt.train.datasets.synthetic.parser import parse
from hpcckpt.train.datasets.tfrecords import command
from hpcckpt.train.datasets.tfrecords.converting import N_SHARDS, Recipe, convert_once

DEFAULTS = {"n_images": 2000, "size": 32, "channels": 3, "n_classes": 10, "variant": 0}


def recipe(**made_with: int) -> Recipe:
    """Return how images are made with such arguments of `parse`."""
    program = "python -m hpcckpt.train.datasets.synthetic.raw_to_tfrecord"
    others = [f"--{name.replace('_', '-')} {value}" for name, value in made_with.items() if value != DEFAULTS[name]]
    return Recipe("synthetic", lambda: parse(**made_with), " ".join([program, *others]), DEFAULTS | made_with)


def convert(
    directory: str | os.PathLike[str],
    n_shards: int = N_SHARDS,
    *,
    n_images: int = 2000,
    size: int = 32,
    channels: int = 3,
    n_classes: int = 10,
    variant: int = 0,
    comm: Any = None,
) -> Path:
    """Make a directory of TFRecords, unless it is there and whole; rank 0 does, the others wait. Collective.

    Parameters
    ----------
    directory : path_like
        Where to; it must not exist, be empty, or hold the same images already.
    n_shards : int
        How many files.
    n_images, size, channels, n_classes, variant : int
        Which images; see `parse`.
    comm : Communicator or mpi4py communicator, optional
        The ranks; ``None`` is all that the launcher started.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    OptionError
        If the directory holds something else, or there cannot be such images.
    DatasetDamagedError
        If what it holds is not whole.
    """
    made_with = {"n_images": n_images, "size": size, "channels": channels, "n_classes": n_classes, "variant": variant}
    return convert_once(recipe(**made_with), directory, n_shards, comm)


def main(argv: Sequence[str] | None = None) -> int:
    """Convert synthetic images, and return the exit code. Collective."""
    parser = command.arguments("synthetic images")
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help="default: %(default)s")
    parsed = parser.parse_args(argv)
    made_with = {name: getattr(parsed, name) for name in DEFAULTS}
    return command.run(lambda directory, shards: convert(directory, shards, **made_with), parsed)


if __name__ == "__main__":
    sys.exit(main())
