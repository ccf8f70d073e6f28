"""The formats that checkpoints are converted to and from, and which one a file's name denotes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcckpt.errors import OptionError

OWN = "hpcckpt"


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format.

    Attributes
    ----------
    name : str
        As ``--from`` and ``--to`` have it.
    suffixes : tuple of str
        How names of such files end; the first is the usual one.
    is_strict : bool
        Whether programs read it only under a name that ends so.
    is_model : bool
        Whether it cannot be written without a Keras model.
    """

    name: str
    suffixes: tuple[str, ...]
    is_strict: bool = False
    is_model: bool = False


FORMATS = (
    Format("npz", (".npz",)),
    Format("safetensors", (".safetensors",)),
    Format("pt", (".pt", ".pth")),
    Format("tf", (".ckpt",)),
    Format("weights.h5", (".weights.h5",), is_strict=True, is_model=True),
    Format("keras", (".keras",), is_strict=True, is_model=True),
    Format("h5", (".h5", ".hdf5"), is_strict=True, is_model=True),
    Format("saved-model", (), is_model=True),
    Format("hdf5", ()),
)
NAMES = tuple(each.name for each in FORMATS)


def find_format(name: str) -> Format:
    """Return a format by its name.

    Raises
    ------
    OptionError
        If there is none of this name.
    """
    found = next((each for each in FORMATS if each.name == name), None)
    if found is None:
        raise OptionError(f"format: {name!r} – one of {', '.join(sorted(NAMES))}")
    return found


def format_of_name(path: Path) -> Format | None:
    """Return the format that the name of a file says; ``None`` if it says none. Pure."""
    return next((each for each in FORMATS if path.name.endswith(each.suffixes or "/")), None)


def target_format(path: Path, wanted: str | None) -> Format:
    """Return the format to write a file in.

    Raises
    ------
    OptionError
        If neither its name nor `wanted` gives a format, or if other programs could not read the format by this name.
    """
    found = find_format(wanted) if wanted else format_of_name(path)
    if found is None and path.is_dir():
        raise OptionError(f"{path} is a directory; give the name of a file, or pass --to saved-model")
    if found is None:
        raise OptionError(f"cannot tell the format from {path.name!r}; pass --to {', or --to '.join(NAMES)}")
    says = format_of_name(path)
    if found.is_strict and says != found:
        raise OptionError(
            f"{path.name!r}: Keras reads a file of format {found.name} only if its name says so: {found.suffixes[0]}"
        )
    return found
