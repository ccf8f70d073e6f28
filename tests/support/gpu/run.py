"""Run the checks of `torch_checks`, one after another:  [mpirun -n 2] python -m tests.support.gpu.run [--device cuda]

On several ranks all use one device, or each its own where there are several. The exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what exact results ask for, before CUDA starts

import torch
from mpi4py import MPI

from tests.support.gpu.torch_checks import CHECKS, as_accelerator


def main() -> int:
    """Run all; a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--directory", help="where to write; default: a temporary directory")
    asked = parser.parse_args()
    comm = MPI.COMM_WORLD
    device = torch.device(asked.device)
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        device = torch.device("cuda", comm.rank % torch.cuda.device_count())
    torch.use_deterministic_algorithms(True)
    n_failed = 0
    with tempfile.TemporaryDirectory(dir=asked.directory) as own, as_accelerator(device):
        for check in CHECKS:
            directory = Path(comm.bcast(own)) / check.__name__
            directory.mkdir(exist_ok=True)
            began, error = time.monotonic(), ""
            try:
                check(device, directory)
            except Exception:  # noqa: BLE001 - the others are to run
                error = traceback.format_exc()
                if comm.size > 1:  # the other ranks may wait for this one
                    sys.stderr.write(f"[rank {comm.rank}] {check.__name__}:\n{error}")
                    sys.stderr.flush()
                    comm.Abort(1)
            n_failed += bool(error)
            if comm.rank == 0:
                outcome = "FAILED" if error else "ok"
                print(f"{outcome:7} {check.__name__} ({time.monotonic() - began:.1f} s)\n{error}", end="", flush=True)
        comm.Barrier()
    if comm.rank == 0:
        print(f"{len(CHECKS) - n_failed} passed, {n_failed} failed, on {device}, {comm.size} ranks")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
