"""The Python side: which versions are installed, and whether they go together."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from hpcckpt._version import __version__
from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.probe import ask_python, linked_libraries, package_folder, version_key, version_of

TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "intel-tensorflow", "tensorflow-rocm")
_H5PY_CODE = (
    "import json, h5py; c = h5py.get_config(); "
    "print(json.dumps({'hdf5': h5py.version.hdf5_version, 'is_parallel': bool(c.mpi)}))"
)


def findings(*, is_quick: bool = False) -> Iterator[Finding]:
    """Yield what there is to say about the installed packages. Independent.

    Parameters
    ----------
    is_quick : bool, optional
        Whether to leave out checks that need a separate process.
    """
    yield Finding("hpcckpt", "ok", __version__)
    yield _python()
    yield _numpy()
    yield _tensorflow()
    yield _keras()
    yield _horovod()
    yield _h5py(is_quick=is_quick)


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _numpy() -> Finding:
    found, tensorflow = version_of("numpy"), version_of(*TENSORFLOW)
    if found is None:
        return Finding("NumPy", "problem", "not installed", "pip install numpy")
    if tensorflow and version_key(found[1]) >= (2,) and version_key(tensorflow[1]) < (2, 18):
        return Finding(
            "NumPy", "problem", f"{found[1]}, which TensorFlow {tensorflow[1]} cannot load", "pip install 'numpy<2'"
        )
    return Finding("NumPy", "ok", found[1])


def _tensorflow() -> Finding:
    found = version_of(*TENSORFLOW)
    if found is None:
        return Finding("TensorFlow", "note", "not installed", "pip install 'hpcckpt[tf]' to save Keras models")
    name, version = found
    if version_key(version) < (2, 15):
        return Finding(
            "TensorFlow", "warning", f"{version} ({name}), older than tested", "use 2.15.1, or 2.16 and newer"
        )
    return Finding("TensorFlow", "ok", f"{version} ({name})")


def _keras() -> Finding:
    found, tensorflow = version_of("keras", "tf-keras"), version_of(*TENSORFLOW)
    if found is None:
        return Finding("Keras", "note", "not installed")
    name, version = found
    if name == "keras" and tensorflow and not do_match(version, tensorflow[1]):
        remedy = f"pip install '{wanted_keras(tensorflow[1])}'"
        return Finding("Keras", "problem", f"{version} does not go with TensorFlow {tensorflow[1]}", remedy)
    return Finding("Keras", "ok", f"{version}{'' if name == 'keras' else f' ({name})'}")


def do_match(keras: str, tensorflow: str) -> bool:
    """Return True if two versions are compatible: Keras 3 came with TensorFlow 2.16. Pure."""
    return (version_key(keras) >= (3,)) == (version_key(tensorflow) >= (2, 16))


def wanted_keras(tensorflow: str) -> str:
    """Return the requirement that goes with a version of TensorFlow. Pure."""
    series = ".".join(tensorflow.split(".")[:2])
    return "keras>=3" if version_key(tensorflow) >= (2, 16) else f"keras=={series}.*"


def _horovod() -> Finding:
    found, folder = version_of("horovod"), package_folder("horovod")
    if found is None or folder is None:
        return Finding("Horovod", "note", "not installed")
    binary = next((folder / "tensorflow").glob("mpi_lib*.so"), None)
    if binary is None:
        remedy = "reinstall it with HOROVOD_WITHTENSORFLOW=1 HOROVOD_WITH_MPI=1 pip install --no-build-isolation"
        return Finding("Horovod", "problem", f"{found[1]}, built without TensorFlow", remedy)
    built_for, tensorflow = _built_for(folder / "metadata.json"), version_of(*TENSORFLOW)
    parts = _horovod_parts(binary)
    message = f"{found[1]}, built for TensorFlow {built_for} with {', '.join(parts) or 'neither MPI nor Gloo'}"
    if tensorflow and built_for not in {"?", tensorflow[1]}:
        remedy = "rebuild Horovod: pip install --no-cache-dir --force-reinstall --no-build-isolation horovod"
        return Finding("Horovod", "problem", f"{message}, but TensorFlow is {tensorflow[1]}", remedy)
    if not any(part.startswith("MPI") for part in parts):
        return Finding("Horovod", "warning", message, "rebuild it with HOROVOD_WITH_MPI=1 to run under mpirun or srun")
    return Finding("Horovod", "ok", message)


def _built_for(metadata: Path) -> str:
    try:
        return str(json.loads(metadata.read_text(encoding="utf-8")).get("tensorflow", "?"))
    except (OSError, ValueError, AttributeError):
        return "?"


def _horovod_parts(binary: Path) -> list[str]:
    linked = linked_libraries(binary, "mpi|nccl")
    mpi, nccl = [name for name in linked if "mpi" in name], [name for name in linked if "nccl" in name]
    has_gloo = b"N4gloo" in binary.read_bytes()  # linked statically: a mangled C++ name is all there is to see
    return [*([f"MPI ({', '.join(mpi)})"] if mpi else []), *(["NCCL"] if nccl else []), *(["Gloo"] if has_gloo else [])]


def _h5py(*, is_quick: bool) -> Finding:
    found = version_of("h5py")
    if found is None:
        return Finding(
            "h5py", "note", "not installed", "pip install 'hpcckpt[hdf5]' for HDF5 checkpoints and .weights.h5"
        )
    if is_quick:
        return Finding("h5py", "ok", found[1])
    answer = ask_python(_H5PY_CODE)
    if "error" in answer:
        return Finding(
            "h5py", "problem", f"{found[1]} cannot be imported: {answer['error']}", "pip install --force-reinstall h5py"
        )
    kind = "parallel (MPI)" if answer["is_parallel"] else "serial, which is all that the hdf5 backend needs"
    return Finding("h5py", "ok", f"{found[1]}, HDF5 {answer['hdf5']}, {kind}")
