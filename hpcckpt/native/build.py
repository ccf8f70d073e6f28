"""Build the TensorFlow ops for the TensorFlow that is installed now: ``python -m hpcckpt.native.build``.

There are two libraries: the ops themselves, and those of LMS. Each takes 10 to 40 seconds. Users need not call this:
installing hpcckpt beside TensorFlow does, and so does the first use.

1. One process builds; the others wait for it (`hpcckpt.native.build_lock`).
2. It compiles in a separate directory, and another process loads the result.
3. The library is on storage before it has its name, so that no process finds a part of one.
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
import time
from collections.abc import Sequence
from pathlib import Path

from hpcckpt.core import files
from hpcckpt.core.std_streams import write_message
from hpcckpt.errors import ConfigError
from hpcckpt.native import fsync, fsync_dir, tf_ops, tfinfo
from hpcckpt.native.build_lock import BuildLock

COMPILERS = ("c++", "g++", "clang++")
_INSTALLERS = {
    "apt-get": "apt-get install g++",
    "dnf": "dnf install gcc-c++",
    "zypper": "zypper install gcc-c++",
    "apk": "apk add g++",
    "conda": "conda install -c conda-forge gxx",
}
_FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wno-missing-field-initializers")


def build(info: tfinfo.TfInfo, library: tf_ops.Library = tf_ops.OPS, *, force: bool = False) -> Path:
    """Build a library unless it exists, and return its file. Independent.

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
        If there is no compiler, no directory for it, or it does not compile or load.
    """
    wanted = tf_ops.target(library)
    found = None if force else tf_ops.find(wanted)
    if found is not None:
        return found
    if info.cxx11_abi not in ("", wanted.cxx11_abi):
        raise ConfigError(
            f"{info.extra_cxxflags.source} says _GLIBCXX_USE_CXX11_ABI={info.cxx11_abi}, and TensorFlow "
            f"{wanted.tensorflow} was compiled with {wanted.cxx11_abi}: leave the flag out, it is guessed"
        )
    command = compiler()
    directory = writable_directory()
    with BuildLock(directory / f".{wanted.filename}.lock", library.words) as lock:  # step 1
        found = None if force else tf_ops.find(wanted)
        if found is not None:
            return found
        if lock.failure:
            raise ConfigError(lock.failure)
        if lock.is_exclusive:
            _remove_leftovers(directory, wanted)
        return _build(command, info, library, directory / wanted.filename)


def _build(command: list[str], info: tfinfo.TfInfo, library: tf_ops.Library, path: Path) -> Path:
    write_message(
        f"hpcckpt: building {library.words} for TensorFlow {info.version}, once, in {path.parent}: about half a minute"
    )
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=_prefix(path.name), dir=path.parent) as folder:
        made = Path(folder) / f"{library.module}.so"
        _compile(command, info, library, made)  # step 2
        _try(library, made)
        made.chmod(made.stat().st_mode & ~0o022)  # what others may write is not loaded
        with made.open("rb") as file:
            fsync(file.fileno(), made)  # step 3
        made.replace(path)
    fsync_dir(path.parent)
    if path.parent == tf_ops.PACKAGE:
        _remove_older(path)
    write_message(f"hpcckpt: built {library.words} in {time.monotonic() - start:.0f} s")
    return path


def compiler() -> list[str]:
    """Return the C++ compiler: ``$CXX``, or the first one on the PATH.

    Raises
    ------
    ConfigError
        If there is none; with the command that installs one.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and not shutil.which(chosen[0]):
        raise ConfigError(f"CXX is {chosen[0]}, which is not on the PATH; run: unset CXX")
    name = next(filter(shutil.which, chosen or COMPILERS), None)
    if name is None:
        raise ConfigError(f"no C++ compiler ({', '.join(COMPILERS)}) is on the PATH; run: {_installing()}")
    return chosen or [name]


def _installing() -> str:
    """Return the command that brings a C++ compiler to this machine."""
    if "LMOD_CMD" in os.environ or "MODULESHOME" in os.environ:
        return "module load gcc"
    return next((command for tool, command in _INSTALLERS.items() if shutil.which(tool)), "export CXX=/path/to/g++")


def writable_directory() -> Path:
    """Return the first directory for libraries that this user can write and others cannot; made if need be.

    Raises
    ------
    ConfigError
        If there is none, with the reason for each.
    """
    reasons = []
    for directory in tf_ops.directories():
        if directory == tf_ops.INSTALLED:
            continue
        try:
            for each in (*reversed(directory.parents), directory):
                if not each.exists():
                    each.mkdir(0o755, exist_ok=True)  # others may not write there, whatever the umask is
            with tempfile.NamedTemporaryFile(dir=directory) as file:
                reason = tf_ops.why_not_trusted(Path(file.name))
        except OSError as error:
            reason = f"{directory}: {error.strerror}"
        if not reason:
            return directory
        reasons.append(reason)
    raise ConfigError(
        f"there is no directory for them that this user alone can write ({'; '.join(reasons)}); run: export "
        "HPCCKPT_TF_OPS_DIR=DIRECTORY"
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
    """Load it in another process, before it has its name."""
    done = subprocess.run(library.check(made), capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise ConfigError(f"{library.words} were built and do not load:\n{done.stderr[-4000:]}")


def _prefix(filename: str) -> str:
    return f".{filename}.build-"


def _remove_leftovers(directory: Path, wanted: tf_ops.Target) -> None:
    """Remove the directories of builders that were killed. The caller has the lock: none of them lives."""
    for path in directory.glob(f"{_prefix(wanted.filename)}*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove_older(kept: Path) -> None:
    """Remove libraries for the same TensorFlow and Python that older sources of this package made.

    A cache is left alone: other installations of hpcckpt use it too.
    """
    target = tf_ops.Target.of_filename(kept.name)
    assert target is not None
    for path in kept.parent.glob(f"{target.module}-*.so"):
        made = tf_ops.Target.of_filename(path.name)
        if made is not None and made != target and made._replace(sources=target.sources) == target:
            files.unlink(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the libraries of TensorFlow ops unless they exist, and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m hpcckpt.native.build", description=main.__doc__)
    parser.add_argument("--force", action="store_true", help="build them even if they exist")
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
