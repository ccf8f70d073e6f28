"""What the caller's shell, terminal or batch job has set, and must not reach the tests."""

from __future__ import annotations

import ctypes
import os
import signal

PREFIXES = (
    "HPCCKPT_", "KERAS_", "OMP_", "TF_",
    # schedulers
    "COBALT_", "PBS_", "SALLOC_", "SBATCH_", "SLURM_", "SLURMD_", "SRUN_",
)  # fmt: skip
LAUNCHERS = ("ALPS_", "MPI_LOCAL", "OMPI_COMM_", "OMPI_UNIVERSE_", "PALS_", "PMIX_", "PMI_", "PMI2_")
"""Under mpirun these are how a rank knows which it is."""
NAMES = {
    "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "CUDA_VISIBLE_DEVICES", "DDL_OPTIONS", "FORCE_COLOR", "LINES", "NO_COLOR",
    "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONWARNINGS",
    "XDG_CACHE_HOME",
}  # fmt: skip
KEPT = {
    "HPCCKPT_GPU", "HPCCKPT_HOROVOD_EXAMPLE", "HPCCKPT_MPIRUN", "HPCCKPT_NO_NATIVE", "HPCCKPT_PURE",
    "HPCCKPT_STACK", "HPCCKPT_TEST_MIB", "HPCCKPT_TEST_TOOLS",
}  # fmt: skip
"""What chooses how the suite itself runs."""


def forget(*, is_under_mpi: bool) -> None:
    """Remove the caller's settings from the environment; set the usual umask and the default handling of signals."""
    prefixes = PREFIXES if is_under_mpi else PREFIXES + LAUNCHERS
    kept = KEPT | {"CUDA_VISIBLE_DEVICES"} if os.environ.get("HPCCKPT_GPU") else KEPT
    for name in set(os.environ) - kept:
        if name in NAMES or (name.startswith(prefixes) and not (is_under_mpi and name.startswith("SLURM_"))):
            del os.environ[name]
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGQUIT):  # ignored in the background of a shell
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def forget_launch_by_libraries() -> None:
    """Unset the variables that MPI sets without a launcher: `os.environ` lacks them, but programs inherit them."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    names = []
    for entry in entries:
        if entry is None:
            break
        names.append(os.fsdecode(entry.partition(b"=")[0]))
    for name in names:
        if name.startswith((*LAUNCHERS, "OMPI_", "ORTE_")) and name not in os.environ:
            os.unsetenv(name)
