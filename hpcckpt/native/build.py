"""Build the TensorFlow ops for the TensorFlow that is installed now: ``python -m hpcckpt.native.build``.

There are two libraries: the ops themselves, and those of LMS. Each takes 10 to 40 seconds, and none if it is there
already.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hpcckpt import files
from hpcckpt.errors import ConfigError
from hpcckpt.native import tf_ops, tfinfo

COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wno-missing-field-initializers")


def build(info: tfinfo.TfInfo, library: tf_ops.Library = tf_ops.OPS, *, force: bool = False) -> Path:
    """Build a library unless it is there, and return its file.

    Parameters
    ----------
    info : TfInfo
        How to compile against TensorFlow.
    library : Library
        Which one.
    force : bool
        Build it in any case.

    Raises
    ------
    ConfigError
        If there is no compiler, nowhere to put it, or it does not compile or load.
    """
    wanted = tf_ops.target(library)
    found = tf_ops.find(wanted)
    if found is not None and not force:
        return found
    if info.cxx11_abi not in ("", wanted.cxx11_abi):
        raise ConfigError(
            f"{info.extra_cxxflags.source} says _GLIBCXX_USE_CXX11_ABI={info.cxx11_abi}, and TensorFlow "
            f"{wanted.tensorflow} was compiled with {wanted.cxx11_abi}: leave the flag out, it is guessed"
        )
    command = compiler()
    place = writable_directory()
    with tempfile.TemporaryDirectory(prefix=".tf_ops-", dir=place) as folder:
        made = Path(folder) / f"{library.module}.so"
        _compile(command, info, library, made)
        _try(library, made)
        made.chmod(made.stat().st_mode & ~0o022)  # what others may write is not loaded
        made.replace(place / wanted.filename)
    _remove_others(place, wanted)
    return place / wanted.filename


def compiler() -> list[str]:
    """Return the C++ compiler: ``$CXX``, or the first one on the PATH.

    Raises
    ------
    ConfigError
        If there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    names = [chosen[0]] if chosen else list(COMPILERS)
    name = next(filter(shutil.which, names), None)
    if name is None:
        raise ConfigError(
            f"no C++ compiler ({', '.join(names)}) is on the PATH: install one with C++17 (apt-get install g++, module "
            "load gcc), or name it: CXX=/path/to/g++"
        )
    return chosen or [name]


def writable_directory() -> Path:
    """Return the first directory for libraries that can be written; made if need be.

    Raises
    ------
    ConfigError
        If none can.
    """
    for place in tf_ops.directories():
        try:
            for directory in (*reversed(place.parents), place):
                if not directory.exists():
                    directory.mkdir(0o755, exist_ok=True)  # others may not write there, whatever the umask is
            with tempfile.NamedTemporaryFile(dir=place) as file:
                if not tf_ops.why_not_trusted(Path(file.name)):
                    return place
        except OSError:
            continue
    places = ", ".join(map(str, tf_ops.directories()))
    raise ConfigError(
        f"none of {places} can be written by this user alone: name a directory that can with HPCCKPT_TF_OPS_DIR"
    )


def _compile(command: list[str], info: tfinfo.TfInfo, library: tf_ops.Library, made: Path) -> None:
    """Compile all sources as one: TensorFlow's headers take most of the time."""
    import numpy as np

    sources = sorted(library.sources.glob("*.cc"))
    # Python wants its header before all others.
    whole = made.with_name("all.cc")
    texts = ["#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n", *(f'#include "{path}"\n' for path in sources)]
    whole.write_text("".join(texts), encoding="utf-8")
    ours = [f"-I{library.sources}", f"-I{tf_ops.PACKAGE / 'include'}"]
    python = ["-isystem", sysconfig.get_path("include"), "-isystem", np.get_include()]
    call = [*command, *_FLAGS, *ours, *python, *info.compile_flags, str(whole), "-o", str(made), *info.link_flags]
    done = subprocess.run(call, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"{library.words} do not compile against TensorFlow {info.version}:\n{done.stderr[:4000]}\n"
            f"The command was: {shlex.join(call)}\npython -m hpcckpt.native.tfinfo says where its parts are from"
        )


def _try(library: tf_ops.Library, made: Path) -> None:
    """Load it in a process of its own before anybody else can."""
    done = subprocess.run(library.check(made), capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise ConfigError(f"{library.words} were built and do not load:\n{done.stderr[-4000:]}")


def _remove_others(place: Path, kept: tf_ops.Target) -> None:
    """Remove libraries for the same TensorFlow and Python made from older sources."""
    for path in place.glob(f"{kept.module}-*.so"):
        made = tf_ops.Target.of_filename(path.name)
        if made is not None and made != kept and made._replace(sources=kept.sources) == kept:
            files.unlink(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the libraries of TensorFlow ops, and say where they are."""
    parser = argparse.ArgumentParser(prog="python -m hpcckpt.native.build", description=main.__doc__)
    parser.add_argument("--force", action="store_true", help="also if it is there already")
    parser.add_argument("--file", help="a file in the form of tensorflow.json, in place of the one of the package")
    chosen = parser.parse_args(arguments)
    try:
        info = tfinfo.resolve(chosen.file)
        for library in (tf_ops.OPS, tf_ops.LMS):
            print(f"TensorFlow {info.version}: {build(info, library, force=chosen.force)}", flush=True)
    except ConfigError as error:
        print(f"hpcckpt: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
