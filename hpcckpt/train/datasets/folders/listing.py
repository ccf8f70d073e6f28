"""Which images are in folders: listed by one rank, without opening any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.errors import Problem, list_problems
from hpcckpt.train.datasets.errors import DatasetDamagedError, DatasetNotFoundError

ENDINGS = (".jpeg", ".jpg", ".png")
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Listing:
    """Folders of images.

    Attributes
    ----------
    directory : str
        What they are in.
    classes : tuple of str
        Their names, sorted; labels are the positions in it.
    names : tuple of tuple of str
        The file names in each, sorted.
    """

    directory: str
    classes: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return sum(map(len, self.names))

    @property
    def paths(self) -> list[bytes]:
        """The files below the directory, class after class, as bytes of the file system."""
        pairs = zip(self.classes, self.names, strict=True)
        return [os.fsencode(os.path.join(folder, name)) for folder, names in pairs for name in names]

    @property
    def labels(self) -> list[int]:
        """The label of each."""
        return [label for label, names in enumerate(self.names) for _ in names]


def list_folders(directory: Path) -> Listing:
    """Return the images in the folders of a directory. Independent.

    Raises
    ------
    DatasetNotFoundError
        If it is not there, or has no folders.
    DatasetDamagedError
        If a folder has no images; naming it.
    """
    classes = _names_in(directory, is_folder=True)
    if not classes:
        raise DatasetNotFoundError(f"{directory} has no folders: make one for each class, and put its images there")
    names = [[name for name in _names_in(directory / each, is_folder=False) if _is_image(name)] for each in classes]
    empty = [each for each, found in zip(classes, names, strict=True) if not found]
    if empty:
        problems = [Problem(str(directory / each), f"has no images ({', '.join(ENDINGS)})") for each in empty]
        raise DatasetDamagedError(f"{list_problems(problems, _MAX_NAMED)}: remove the folder, or put images there")
    return Listing(str(directory), tuple(classes), tuple(map(tuple, names)))


def check_same_classes(train: Listing, valid: Listing) -> None:
    """Raise `DatasetDamagedError` if images for validation have other classes."""
    if valid.classes != train.classes:
        other = sorted(set(train.classes) ^ set(valid.classes))[:_MAX_NAMED]
        raise DatasetDamagedError(
            f"{train.directory} and {valid.directory} do not have the same folders ({', '.join(other)}): "
            "give both a folder for each class"
        )


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _names_in(directory: Path, *, is_folder: bool) -> Sequence[str]:
    """Return the folders, or the files, in a directory, sorted by their bytes; hidden ones are ignored."""
    try:
        with os.scandir(directory) as entries:
            found = [entry.name for entry in entries if entry.is_dir() is is_folder and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(f"{directory} is not there: give a directory with a folder for each class") from None
    return sorted(found, key=os.fsencode)
