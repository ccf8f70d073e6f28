"""Folders of images as shards: ``python -m hpcckpt.train.datasets.folders.raw_to_tfrecord DIRECTORY --data FOLDERS``.

The files are stored as they are, encoded, in an order without rhyme; `shards.from_tfrecord` reads them.  One image is in
memory at a time.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt.errors import OptionError, from_os_error
from hpcckpt.rundir.atomic_files import fsync_file
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.errors import DatasetDamagedError
from hpcckpt.train.datasets.folders.listing import Listing, check_same_classes, list_folders
from hpcckpt.train.datasets.images import mixed_order
from hpcckpt.train.datasets.shards.index import CLASSES, read_shards
from hpcckpt.train.datasets.sharing import ranks
from hpcckpt.train.datasets.tfrecords import command
from hpcckpt.train.datasets.tfrecords.converting import N_SHARDS, becoming, is_taken


def convert(
    directory: str | os.PathLike[str],
    n_shards: int = N_SHARDS,
    *,
    source: str | os.PathLike[str],
    valid_source: str | os.PathLike[str] | None = None,
    comm: Any = None,
) -> Path:
    """Make shards of folders of images, unless they are there; rank 0 does, the others wait. Collective.

    Parameters
    ----------
    directory : path_like
        Where to; it must not exist, be empty, or hold such shards of the same number of images.
    n_shards : int
        How many files to train with, and as many to validate with.
    source, valid_source : path_like
        The folders with images to train with, and to validate with if there are such; see `from_raw`.
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
    DatasetNotFoundError, DatasetDamagedError
        If there are no such folders, or what the directory holds is not whole.
    """
    place = Path(directory)
    sources = {"train": Path(source)} | ({} if valid_source is None else {"valid": Path(valid_source)})
    with ranks(comm) as group:
        group.on_root(f"convert {os.fspath(source)}", lambda: _make_once(place, n_shards, sources))
    return place


def _make_once(directory: Path, n_shards: int, sources: dict[str, Path]) -> None:
    if not is_whole(n_shards, 1):
        raise OptionError(f"n_shards: {n_shards!r} – a positive number of files")
    parts = {part: list_folders(source) for part, source in sources.items()}
    if "valid" in parts:
        check_same_classes(parts["train"], parts["valid"])
    if not is_taken(directory):
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with becoming(directory) as temporary:
                _write(parts, temporary, n_shards)
        except OSError as error:
            if not is_taken(directory):
                raise from_os_error(error, f"convert to {directory}") from error
    _check(directory, parts)


def _check(directory: Path, parts: dict[str, Listing]) -> None:
    """Raise if a directory does not hold as many records as there are images."""
    for part, listing in parts.items():
        (shards,) = read_shards(directory, [f"{part}-*.tfrecord"])
        n_records = sum(len(shard.offsets) for shard in shards)
        if n_records != len(listing):
            raise DatasetDamagedError(
                f"{directory} has {n_records} records {part}-*, and {listing.directory} has {len(listing)} images: "
                "give another directory, or remove this one to have it made again"
            )


def _write(parts: dict[str, Listing], directory: Path, n_shards: int) -> None:
    for part, listing in parts.items():
        _write_part(listing, part, directory, n_shards)
        read_shards(directory, [f"{part}-*.tfrecord"])  # writes the index
    path = directory / CLASSES
    path.write_text("".join(f"{name}\n" for name in parts["train"].classes), encoding="utf-8")
    fsync_file(path)


def _write_part(listing: Listing, part: str, directory: Path, n_shards: int) -> None:
    import tensorflow as tf

    paths, labels, order = listing.paths, listing.labels, mixed_order(len(listing))
    n_shards = min(n_shards, len(listing))
    bounds = [number * len(listing) // n_shards for number in range(n_shards + 1)]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        path = directory / f"{part}-{number:05d}-of-{n_shards:05d}.tfrecord"
        try:
            with tf.io.TFRecordWriter(str(path)) as writer:
                for place in order[begin:end]:
                    image = Path(listing.directory, os.fsdecode(paths[place])).read_bytes()
                    writer.write(_record(image, labels[place], tf.train))
        except tf.errors.OpError as error:  # TensorFlow has its own errors for files
            raise OSError(None, error.message, str(path)) from error
        fsync_file(path)


def _record(image: bytes, label: int, train: Any) -> bytes:
    feature = {
        "image": train.Feature(bytes_list=train.BytesList(value=[image])),
        "label": train.Feature(int64_list=train.Int64List(value=[label])),
    }
    made = train.Features(feature=feature)
    record: bytes = train.Example(features=made).SerializeToString()
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Convert folders of images, and return the exit code. Collective."""
    parser = command.arguments("folders of images")
    parser.add_argument("--data", metavar="FOLDERS", required=True, help="a directory with a folder for each class")
    parser.add_argument("--valid-data", metavar="FOLDERS", help="the same, to validate with")
    parsed = parser.parse_args(argv)
    return command.run(
        lambda directory, n: convert(directory, n, source=parsed.data, valid_source=parsed.valid_data), parsed
    )


if __name__ == "__main__":
    sys.exit(main())
