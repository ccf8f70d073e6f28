"""Save steps, then run into a fault: ``job_faults.py '{"directory": …, "saves": […], "fault": {…}}'``.

``saves`` has one entry per save: step, seed of the state, and whether it overwrites.  The fault is armed before
the last one.  ``options`` are the checkpointer's, ``options_before`` those for all saves but the last, and
``restore`` adds a restore at the end.
"""

from __future__ import annotations

import json
import sys
import time

from mpi4py import MPI

import hpcckpt as hc
from hpcckpt.testing import faults
from tests.support.mpi.states import state_of


def main() -> None:
    """Run."""
    request = json.loads(sys.argv[1])
    world = MPI.COMM_WORLD
    options = request.get("options", {})
    ckpt = hc.Checkpointer(request["directory"], **request.get("options_before", options))
    *before, (step, seed, overwrite) = request["saves"]
    for number, content, replaces in before:
        ckpt.save(number, state_of(world, content), overwrite=replaces).result()
    if "options_before" in request:
        ckpt.close()
        ckpt = hc.Checkpointer(request["directory"], **options)
    faults.arm(faults.Fault(**request["fault"]), pids=faults.process_ids(ckpt.comm))
    pending = ckpt.save(step, state_of(world, seed), overwrite=overwrite)
    while not pending.done():  # as a training loop does
        time.sleep(0.001)
    pending.result()
    if request.get("restore"):
        ckpt.restore(state_of(world, 0))
    world.Barrier()
    print("survived", flush=True)


main()
