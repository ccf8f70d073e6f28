"""Libraries of TensorFlow ops, compiled for the TensorFlow that is installed, and loaded when first used.

They are built where hpcckpt is installed beside TensorFlow, or else when they are first needed
(`hpcckpt.native.build`). They are in this package, or, where that cannot be written, in
``$XDG_CACHE_HOME/hpcckpt/tf_ops``; ``HPCCKPT_TF_OPS_DIR`` names another directory for both. A library's name contains
what it was made for, so that no other is ever loaded. ``python -m hpcckpt.native.tf_ops`` prints which one is loaded.

There are two: the ops that hold variables and call plugins (here), and those of LMS (`hpcckpt.native.lms_ops`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

from hpcckpt.core import private_dirs
from hpcckpt.errors import BackendError, ConfigError

PACKAGE = Path(__file__).parent
INSTALLED = PACKAGE / "installed"
"""For libraries that are built when the package is installed; never later."""
REMEDY = "run: python -m hpcckpt.native.build"


class Library(NamedTuple):
    """One of the libraries: the name of its files and of its module in Python, and what it is compiled from."""

    module: str
    words: str
    """What messages call it."""
    folder: str
    headers: tuple[str, ...] = ()
    """What it takes from elsewhere in the package."""

    @property
    def sources(self) -> Path:
        """The directory of its sources."""
        return PACKAGE / self.folder

    def source_files(self) -> list[Path]:
        """Return what it is compiled from."""
        return [*sorted(self.sources.iterdir()), *(PACKAGE / header for header in self.headers)]

    def check(self, path: Path) -> list[str]:
        """Return the command that loads a file in a separate process."""
        return [sys.executable, "-m", f"hpcckpt.native.{self.module.removeprefix('_')}", str(path)]


OPS = Library("_tf_ops", "the TensorFlow ops", "tf_src", ("include/hpcckpt/plugin.h", "src/gil.h", "src/utf8.h"))
LMS = Library("_lms_ops", "the TensorFlow ops of LMS", "lms_src", ("src/gil.h", "src/utf8.h"))


class OpsModule(Protocol):
    """The library's functions in addition to its ops; see ``tf_src/module.cc``."""

    def arrays(self, address: int, dtypes: list[Any], /) -> tuple[list[Any], int, int]:
        """Return what ``hpcckpt_hold`` held, how much of it is left to others, and how much has no value."""

    def open(self, table: int, instance: int, /) -> int:
        """Return a token for a plugin's instance, which the ops call by it."""

    def close(self, token: int, /) -> None:
        """Let no more calls in, and wait for those under way."""

    def take_failure(self, token: int, /) -> tuple[int, str]:
        """Return code and text of what the last call failed of, once."""


class Ops(NamedTuple):
    """The library, loaded: its ops, its functions, its file."""

    raw: Any
    module: OpsModule
    path: Path


class Target(NamedTuple):
    """What a library is built for; its file name contains all of it."""

    tensorflow: str
    cxx11_abi: str
    python: str
    numpy: str
    sources: str
    module: str = OPS.module

    @property
    def filename(self) -> str:
        """The name of the file."""
        made_for = f"tf{self.tensorflow}-abi{self.cxx11_abi}-{self.python}-numpy{self.numpy}"
        return f"{self.module}-{made_for}-{self.sources}.so"

    @classmethod
    def of_filename(cls, name: str) -> Target | None:
        """Return what a library of this name is made for."""
        match = re.fullmatch(r"(_\w+)-tf(.+)-abi(.*)-(\w+)-numpy(\d+)-(\w+)\.so", name)
        return cls(match[2], match[3], match[4], match[5], match[6], match[1]) if match else None


def target(library: Library = OPS) -> Target:
    """Return what a library must be made for to be loaded here; imports TensorFlow."""
    import numpy as np
    import tensorflow as tf

    python = sys.implementation.cache_tag.replace("-", "")
    abi = str(int(tf.sysconfig.CXX11_ABI_FLAG))
    numpy = np.__version__.partition(".")[0]
    return Target(tf.__version__, abi, python, numpy, sources_digest(library), library.module)


@functools.cache
def sources_digest(library: Library = OPS) -> str:
    """Return a short digest of a library's sources."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in library.source_files())).hexdigest()[:12]


def directories() -> list[Path]:
    """Return where libraries may lie, the first choice first."""
    chosen = os.environ.get("HPCCKPT_TF_OPS_DIR")
    if chosen:
        return [Path(chosen)]
    cache = private_dirs.user_cache()
    own = [] if cache is None else [cache / "hpcckpt" / "tf_ops"]
    return [INSTALLED, PACKAGE, *own]


def find(wanted: Target) -> Path | None:
    """Return the library built for this, if there is one and no other user can have put it there."""
    paths = (directory / wanted.filename for directory in directories())
    return next((path for path in paths if path.is_file() and not why_not_trusted(path)), None)


def why_not_trusted(path: Path) -> str:
    """Return why a library, which has a predictable name, may be from another user; "" if it is not."""
    is_installed = path.parent in (PACKAGE, INSTALLED)
    return "" if is_installed else private_dirs.why_not_safe(path, owners=[Path(__file__).stat().st_uid])


@functools.cache
def load_ops() -> Ops:
    """Load the library, built first if there is none; once in a process. Independent.

    Raises
    ------
    BackendError
        If it cannot be built, or does not load; with what to do about it.
    """
    return _opened(find_or_build())


@functools.cache
def _opened(path: Path) -> Ops:
    raw, module = open_library(path)
    return Ops(raw, cast(OpsModule, module), path)


def find_or_build(library: Library = OPS) -> Path:
    """Return the file of a library for the TensorFlow that is installed, built first if there is none. Independent.

    Raises
    ------
    BackendError
        If it cannot be built; with what to do.
    """
    wanted = target(library)
    found = find(wanted)
    if found is not None:
        return found
    if reason := _why_refused(wanted):
        raise BackendError(f"{library.words} are not loaded from {reason}")
    from hpcckpt.native import build, tfinfo  # they import this module

    try:
        return build.build(tfinfo.resolve(), library)
    except ConfigError as error:
        raise BackendError(f"{library.words} cannot be built for TensorFlow {wanted.tensorflow}: {error}") from None


def find_built(library: Library = OPS) -> Path:
    """Return the file of a library that is made for the TensorFlow that is installed; build nothing.

    Raises
    ------
    BackendError
        If there is none; with what to do about it.
    """
    wanted = target(library)
    path = find(wanted)
    if path is None:
        raise BackendError(f"{_why_not(wanted, library)}; {REMEDY}")
    return path


def _why_refused(wanted: Target) -> str:
    """Return which library exists and is not trusted, and why; "" if none."""
    refused = (path for directory in directories() if (path := directory / wanted.filename).is_file())
    return next((f"{path}: {why_not_trusted(path)}" for path in refused), "")


def loaded_if_built() -> Ops | None:
    """Load the library if there is one that loads; ``None`` if not, or with ``HPCCKPT_NO_NATIVE=1``. Independent."""
    found = "" if _is_unwanted() else _loaded()
    return found if isinstance(found, Ops) else None


def why_not_loaded() -> str:
    """Return why `loaded_if_built` has nothing, and what to do; "" where that was asked for. Independent."""
    found = "" if _is_unwanted() else _loaded()
    return found if isinstance(found, str) else ""


def _is_unwanted() -> bool:
    return os.environ.get("HPCCKPT_NO_NATIVE", "0") not in ("", "0")


@functools.cache
def _loaded() -> Ops | str:
    try:
        return _opened(find_built())
    except BackendError as error:
        return str(error)


def open_library(path: Path, library: Library = OPS) -> tuple[Any, ModuleType]:
    """Load a file, whatever its name says, and return its ops and its module; also to try a new one. Independent.

    Raises
    ------
    BackendError
        If it does not load.
    """
    import tensorflow as tf

    try:
        raw = tf.load_op_library(str(path))
        loader = importlib.machinery.ExtensionFileLoader(library.module, str(path))
        spec = importlib.util.spec_from_loader(library.module, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (tf.errors.OpError, ImportError, RuntimeError) as error:
        text = f"{library.words} in {path} do not load in TensorFlow {tf.__version__}: {error}"
        if "undefined symbol" in str(error):
            text += "; they were compiled against another TensorFlow, or with another _GLIBCXX_USE_CXX11_ABI than it"
        raise BackendError(f"{text}; {REMEDY} --force") from error
    return raw, module


def _why_not(wanted: Target, library: Library) -> str:
    """Return what exists in place of the library that is wanted."""
    words = library.words
    if reason := _why_refused(wanted):
        return f"{words} are not loaded from {reason}"
    files = [path for place in directories() for path in place.glob(f"{library.module}-*.so")]
    others = [made for path in files if (made := Target.of_filename(path.name))]
    if not others:
        places = ", ".join(map(str, directories()))
        return f"{words} are not built for TensorFlow {wanted.tensorflow} (none in {places})"
    made = max(others, key=lambda other: sum(a == b for a, b in zip(other, wanted, strict=True)))
    if made.tensorflow != wanted.tensorflow:
        return f"{words} are built for TensorFlow {made.tensorflow}, and {wanted.tensorflow} is installed"
    if made.cxx11_abi != wanted.cxx11_abi:
        return (
            f"{words} are built with _GLIBCXX_USE_CXX11_ABI={made.cxx11_abi}, "
            f"and TensorFlow {wanted.tensorflow} with {wanted.cxx11_abi}"
        )
    if made.python != wanted.python:
        return f"{words} are built for {made.python}, and this is {wanted.python}"
    if made.numpy != wanted.numpy:
        return f"{words} are built for NumPy {made.numpy}, and NumPy {wanted.numpy} is installed"
    return f"{words} are built from the sources of another hpcckpt"


def main(arguments: Sequence[str] | None = None, library: Library = OPS) -> int:
    """Load a library, or a file that is named, and say where it is."""
    paths = sys.argv[1:] if arguments is None else arguments
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        path = Path(paths[0]) if paths else find_built(library)
        open_library(path, library)
        print(path)
    except BackendError as error:
        print(f"hpcckpt: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
