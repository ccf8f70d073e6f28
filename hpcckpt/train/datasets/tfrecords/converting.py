"""From what a parser returns to a directory of TFRecords, once.

Steps::

    1. (root) check if the directory already holds the complete data set; if so, stop
    2. (root) parse
    3. (root) write all shards, then the index, into a temporary directory beside it; fsync them
    4. (root) rename it into place; fsync its parent directory
    5. all ranks receive the result
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcckpt import native
from hpcckpt.core import files
from hpcckpt.errors import OptionError, from_os_error
from hpcckpt.format import layout
from hpcckpt.rundir.atomic_files import fsync_file
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.errors import DatasetNotFoundError
from hpcckpt.train.datasets.images import Images, Raw, checked, mixed_order
from hpcckpt.train.datasets.sharing import ranks
from hpcckpt.train.datasets.tfrecords.index import FILE, Index, Shard, check_files, crc_of, read_index

N_SHARDS = 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a data set is made, and what to call it.

    Attributes
    ----------
    name : str
        Name of the data set; stored in the index.
    parse : callable
        Returns the raw data.
    command : str
        The command that converts it, without the directory.
    source : mapping
        JSON values that describe how the data was made: a directory with other values is another data set.
    """

    name: str
    parse: Callable[[], Raw]
    command: str
    source: Mapping[str, Any] = field(default_factory=dict)

    def remedy(self, directory: Path) -> str:
        """Return the command that makes a directory."""
        return f"{self.command} {directory}"


def convert_once(recipe: Recipe, directory: str | os.PathLike[str], n_shards: int = N_SHARDS, comm: Any = None) -> Path:
    """Make a directory of TFRecords, unless it exists and is complete. Collective.

    Rank 0 makes it; the other ranks wait.

    Parameters
    ----------
    recipe : Recipe
        What to convert.
    directory : path_like
        The directory: one that does not exist, or is empty, or has this data set.
    n_shards : int
        Number of files for each part.
    comm : Communicator or mpi4py communicator, optional
        The ranks; ``None`` is those of `sharing`, else all ranks that the launcher started.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    OptionError
        If the directory has other content.
    DatasetDamagedError
        If the data set in it is incomplete or damaged.
    """
    with ranks(comm) as group:
        group.on_root(f"convert {recipe.name}", lambda: make_once(recipe, Path(directory), n_shards))
    return Path(directory)


def make_once(recipe: Recipe, directory: Path, n_shards: int = N_SHARDS) -> Index:
    """Return the index of a directory of TFRecords, which is made first if it is not there. Root only."""
    if not is_whole(n_shards, 1):
        raise OptionError(f"n_shards: {n_shards!r} – a positive number of files")
    if is_taken(directory):
        return _present(recipe, directory)
    raw = checked(recipe.parse(), recipe.name)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with becoming(directory) as temporary:
            _write(recipe, raw, temporary, n_shards)
    except OSError as error:
        if not is_taken(directory):
            raise from_os_error(error, f"convert {recipe.name} to {directory}") from error
    return _present(recipe, directory)


def _present(recipe: Recipe, directory: Path) -> Index:
    """Return the index of the directory if it holds this data set completely."""
    remedy = recipe.remedy(directory)
    try:
        index = read_index(directory, remedy)
    except DatasetNotFoundError:
        raise OptionError(f"{directory} holds other things than TFRecords; give another directory") from None
    if index.name != recipe.name or index.source != recipe.source:
        made = f"{index.name!r} made with {dict(index.source)}" if index.source else repr(index.name)
        wanted = f"{recipe.name!r} made with {dict(recipe.source)}" if recipe.source else repr(recipe.name)
        raise OptionError(f"{directory} holds {made}, not {wanted}; give another directory")
    check_files(directory, index, remedy, is_thorough=True)
    return index


def is_taken(directory: Path) -> bool:
    """Return True if the path exists and is not an empty directory."""
    return directory.exists() and not (directory.is_dir() and next(directory.iterdir(), None) is None)


class becoming:  # noqa: N801 - read as a sentence
    """Yields a temporary directory that durably replaces an absent or empty one at the end of the block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._temporary = directory.with_name(f".tmp-{layout.new_nonce()}.{directory.name}")

    def __enter__(self) -> Path:
        self._temporary.mkdir()
        return self._temporary

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                native.fsync_dir(self._temporary)
                files.rename(self._temporary, self._directory)  # fails if another process was first
                native.fsync_dir(self._directory.parent)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)


# -- records -------------------------------------------------------------------------------------


def _write(recipe: Recipe, raw: Raw, directory: Path, n_shards: int) -> None:
    """Write all shards, then the index that says what they must be."""
    parts = {"train": raw.train} | ({} if raw.valid is None else {"valid": raw.valid})
    shards = {part: tuple(_write_part(images, part, directory, n_shards)) for part, images in parts.items()}
    height, width, channels = raw.train.pixels.shape[1:]
    index = Index(recipe.name, (height, width, channels), raw.white, raw.n_classes, source=recipe.source, **shards)
    path = directory / FILE
    path.write_text(index.to_json(), encoding="utf-8")
    fsync_file(path)


def _write_part(images: Images, part: str, directory: Path, n_shards: int) -> Iterator[Shard]:
    order = mixed_order(len(images))
    n_shards = min(n_shards, len(images))
    bounds = [number * len(images) // n_shards for number in range(n_shards + 1)]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        path = directory / f"{part}-{number:05d}-of-{n_shards:05d}.tfrecord"
        _write_shard(path, images.take(order[begin:end]))
        yield Shard(path.name, end - begin, path.stat().st_size, crc_of(path))


def _write_shard(path: Path, images: Images) -> None:
    import tensorflow as tf

    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for pixels, label in zip(images.pixels, images.labels, strict=True):
                image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels.tobytes()]))
                number = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)]))
                features = tf.train.Features(feature={"image": image, "label": number})
                writer.write(tf.train.Example(features=features).SerializeToString())
    except tf.errors.OpError as error:  # TensorFlow has its own errors for files
        raise OSError(None, error.message, str(path)) from error
    fsync_file(path)
