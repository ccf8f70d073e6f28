"""Save steps, then run into a fault: ``job_faults.py '{"directory": …, "saves": […], "fault": {…}}'``.

``saves`` has one entry per save: step, seed of the state, and whether it overwrites.  The fault is armed before
the last one.  ``then`` is ``restore`` to restore instead, with the fault armed.
"""

from __future__ import annotations

import json
import sys

from mpi4py import MPI
from mpi_states import state_of

import hpcckpt as hc
from hpcckpt.testing import faults


def main() -> None:
    """Run."""
    request = json.loads(sys.argv[1])
    world = MPI.COMM_WORLD
    ckpt = hc.Checkpointer(request["directory"], **request.get("options", {}))
    pids = faults.process_ids(ckpt.comm)
    *before, (step, seed, overwrite) = request["saves"]
    for number, content, replaces in before:
        ckpt.save(number, state_of(world, content), overwrite=replaces)
    faults.arm(faults.Fault(**request["fault"]), pids=pids)
    ckpt.save(step, state_of(world, seed), overwrite=overwrite)
    if request.get("restore"):
        ckpt.restore(state_of(world, 0))
    world.Barrier()
    print("survived", flush=True)


main()
