"""MPI: which library each package uses, which launcher there is, and whether they belong together."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence

from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.probe import ask_python, linked_libraries, package_folder, run, version_of

_CODE = (
    "import json, re, mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "maps = open('/proc/self/maps').read(); "
    "paths = sorted(set(re.findall(r'/\\S*/libmpi\\w*\\.so[.\\d]*', maps))); "
    "print(json.dumps({'library': MPI.Get_library_version().strip('\\0 \\n').splitlines()[0], 'paths': paths}))"
)
_INIT_CODE = (
    "import json, re; from mpi4py import MPI; "
    "levels = ('SINGLE', 'FUNNELED', 'SERIALIZED', 'MULTIPLE'); "
    "print(json.dumps({'level': {getattr(MPI, 'THREAD_' + name): name for name in levels}[MPI.Query_thread()]}))"
)
LAUNCHERS = ("mpirun", "mpiexec", "srun", "aprun")
_VENDORS = {
    "Open MPI": r"open ?mpi|open-?rte|prrte",
    "Intel MPI": r"intel\(r\) mpi",
    "MPICH": r"mpich|hydra|cray|pals|mvapich",
}


def quick_findings() -> Iterator[Finding]:
    """Yield what is known of MPI without starting a process. Independent."""
    found = version_of("mpi4py")
    remedy = "pip install 'hpcckpt[mpi]' to save from several ranks"
    yield Finding("mpi4py", "ok", found[1]) if found else Finding("mpi4py", "note", "not installed", remedy)


def findings() -> Iterator[Finding]:
    """Yield what there is to say about MPI. Independent."""
    found = version_of("mpi4py")
    if found is None:
        yield Finding("mpi4py", "note", "not installed", "pip install 'hpcckpt[mpi]' to save from several ranks")
        yield _launcher("")
        return
    answer = ask_python(_CODE)
    if "error" in answer:
        remedy = "load the MPI module that mpi4py was built with, or pip install --no-binary=mpi4py mpi4py"
        yield Finding("mpi4py", "problem", f"{found[1]} finds no MPI library: {answer['error']}", remedy)
        return
    paths = f" ({', '.join(answer['paths'])})" if answer["paths"] else ""
    yield Finding("mpi4py", "ok", f"{found[1]} on {answer['library']}{paths}")
    started = ask_python(_INIT_CODE)
    if "error" in started:
        remedy = "start it as your site's pages say; mpirun -n 1 python -m mpi4py.bench helloworld tells more"
        yield Finding("thread level", "problem", f"MPI does not start: {started['error']}", remedy)
    else:
        yield thread_level(started["level"])
    yield from _horovod_library(answer["paths"])
    yield from _hdf5_library(answer["paths"])
    yield _launcher(answer["library"])


def _horovod_library(paths: Sequence[str]) -> Iterator[Finding]:
    """Compare the MPI that Horovod was linked to with mpi4py's: two in one process crash or hang."""
    folder = package_folder("horovod")
    binary = next((folder / "tensorflow").glob("mpi_lib*.so"), None) if folder else None
    wanted = linked_libraries(binary, r"^libmpi") if binary else []
    if not wanted or not paths:
        return
    versions = {_soname_version(name) for name in wanted}
    own = {_soname_version(path) for path in paths}
    if versions & own:
        yield Finding("one MPI", "ok", f"Horovod ({', '.join(wanted)}) and mpi4py use the same MPI")
        return
    message = f"Horovod is linked to {', '.join(wanted)}, mpi4py uses {', '.join(paths)}"
    yield Finding("one MPI", "problem", message, "build Horovod and mpi4py with the same mpicc on the PATH")


def _hdf5_library(paths: Sequence[str]) -> Iterator[Finding]:
    """Compare the MPI that a parallel h5py was linked to with mpi4py's."""
    folder = package_folder("h5py")
    binary = next(folder.glob("h5p.*.so"), None) if folder else None
    wanted = linked_libraries(binary, r"^libmpi") if binary else []
    if wanted and paths and not {_soname_version(name) for name in wanted} & {_soname_version(path) for path in paths}:
        message = f"h5py is linked to {', '.join(wanted)}, mpi4py uses {', '.join(paths)}"
        yield Finding("one MPI of h5py", "problem", message, "build h5py and mpi4py with the same mpicc on the PATH")


def thread_level(level: str) -> Finding:
    """Check a level of thread support: hpcckpt itself needs none, Horovod the highest. Pure."""
    if version_of("horovod") is not None and level != "MULTIPLE":
        message = f"MPI_THREAD_{level}; Horovod calls MPI from a separate thread"
        remedy = "ask your site for an MPI with MPI_THREAD_MULTIPLE, or set no mpi4py.rc.thread_level below it"
        return Finding("thread level", "warning", message, remedy)
    return Finding("thread level", "ok", f"MPI_THREAD_{level}")


def _soname_version(name: str) -> str:
    """Return the ABI number of a library: 40 of Open MPI's, 12 of MPICH's and its relatives."""
    found = re.search(r"\.so\.(\d+)", name)
    return found[1] if found else ""


def vendor(text: str) -> str:
    """Return the name of the MPI implementation in a version text, or ""."""
    return next((name for name, pattern in _VENDORS.items() if re.search(pattern, text, re.IGNORECASE)), "")


def _launcher(library: str) -> Finding:
    found = {name: path for name in LAUNCHERS if (path := shutil.which(name))}
    if not found:
        return Finding(
            "launcher", "note", "no mpirun, mpiexec, srun or aprun on the PATH", "load your site's MPI module"
        )
    path = next(iter(found.values()))
    answer = run([path, "--version"])
    line = next((text for text in (answer.stdout + answer.stderr).splitlines() if text.strip()), "")
    message = f"{path}: {line.strip()}"
    theirs, ours = vendor(answer.stdout + answer.stderr), vendor(library)
    if theirs and ours and theirs != ours:
        remedy = f"put the launcher of {ours} first on the PATH, or rebuild mpi4py with this one's mpicc"
        return Finding("launcher", "problem", f"{message}, but mpi4py uses {ours}: every rank would be alone", remedy)
    return Finding("launcher", "ok", message)
