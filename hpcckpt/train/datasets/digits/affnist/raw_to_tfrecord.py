"""affNIST as TFRecords, generated: ``python -m hpcckpt.train.datasets.digits.affnist.raw_to_tfrecord DIRECTORY``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.train.datasets.digits.affnist.parser import N_IMAGES, TITLES, Originals, at_hand, parse
from hpcckpt.train.datasets.sharing import ranks
from hpcckpt.train.datasets.tfrecords import command
from hpcckpt.train.datasets.tfrecords.converting import N_SHARDS, Recipe, convert_once
from hpcckpt.train.datasets.tfrecords.index import Index, read_index

NAME = "affnist"
_PROGRAM = "python -m hpcckpt.train.datasets.digits.affnist.raw_to_tfrecord"


def recipe(n_images: int, variant: int, originals: Originals) -> Recipe:
    """Return how images are made with such arguments of `parse`."""
    others = [
        f"--{name.replace('_', '-')} {value}"
        for name, value, default in (("n_images", n_images, N_IMAGES), ("variant", variant, 0))
        if value != default
    ]
    source = {"generated": True, "n_images": n_images, "variant": variant, "originals": originals}
    return Recipe(NAME, lambda: parse(n_images, variant, originals), " ".join([_PROGRAM, *others]), source)


def convert(
    directory: str | os.PathLike[str],
    n_shards: int = N_SHARDS,
    *,
    n_images: int = N_IMAGES,
    variant: int = 0,
    originals: Originals | None = None,
    comm: Any = None,
) -> Path:
    """Make a directory of TFRecords, unless it is there and whole; rank 0 does, the others wait. Collective.

    Rank 0 writes on standard error that the images are generated, and from what.

    Parameters
    ----------
    directory : path_like
        Where to; it must not exist, be empty, or hold the same images already.
    n_shards : int
        How many files to train with, and as many to validate with.
    n_images, variant, originals : int, int, str
        Which images; see `parse`.
    comm : Communicator or mpi4py communicator, optional
        The ranks; ``None`` is all that the launcher started.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    DatasetNotFoundError
        If the originals are not there.
    OptionError
        If the directory holds something else, or there cannot be such images.
    DatasetDamagedError
        If what it holds is not whole.
    """
    with ranks(comm) as group:
        found = group.on_root("find digits", at_hand) if originals is None else originals
        made = recipe(n_images, variant, found)
        path = convert_once(made, directory, n_shards, group)
        group.on_root("tell what was generated", lambda: write_wrapped(origin(path, read_index(path, _PROGRAM))))
    return path


def origin(directory: Path, index: Index) -> str:
    """Return a line that says what a directory holds: generated images, and not those of affNIST's authors. Pure."""
    n_images = sum(shard.n_records for shard in index.train)
    what = TITLES.get(index.source.get("originals", ""), "other digits")
    return (
        f"hpcckpt: affnist: the {n_images} training images in {directory} are generated from {what}; "
        "they are not the files of affNIST's authors"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Generate affNIST, and return the exit code. Collective."""
    parser = command.arguments("affNIST, generated from MNIST,")
    parser.add_argument("--n-images", type=int, default=N_IMAGES, metavar="N", help="default: %(default)s")
    parser.add_argument("--variant", type=int, default=0, metavar="N", help="other random maps (default: %(default)s)")
    parser.add_argument("--originals", choices=tuple(TITLES), help="default: mnist where it is at hand, else digits")
    parsed = parser.parse_args(argv)
    options = {"n_images": parsed.n_images, "variant": parsed.variant, "originals": parsed.originals}
    return command.run(lambda directory, shards: convert(directory, shards, **options), parsed)


if __name__ == "__main__":
    sys.exit(main())
