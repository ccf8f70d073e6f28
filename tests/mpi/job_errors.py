"""One rank fails inside a collective call, at every phase: ``job_errors.py DIRECTORY background|at-once``.

Prints what every rank raised, and what the directory held afterwards.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Any

from mpi4py import MPI

import hpcckpt as hc
from hpcckpt.errors import CollectiveError, HpcckptError
from hpcckpt.testing.faults import Fault, armed
from tests.support.mpi.states import differences, state_of
from tests.support.mpi.unreadable import Unreadable

WORLD = MPI.COMM_WORLD
EACH = ("2-write", "2-written", "2-synced", "3-report")
ROOT = ("1-begin", "4-sealed", "4-check", "4-manifest", "4-durable", "5-published", "6-parent-synced")
ERRORS = {"no-space": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file"), "bug": ZeroDivisionError("a bug")}


def raised_by(fn: Any) -> list[str]:
    """Call `fn` on every rank; return what each rank raised."""
    try:
        fn()
    except HpcckptError as error:
        text = f"{type(error).__name__} {error.kind} {isinstance(error, CollectiveError)} {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to see it
        text = f"foreign {error!r}"
    else:
        text = "nothing"
    return WORLD.allgather(text)


def failing(ckpt: hc.Checkpointer, fault: Fault, *, overwrite: bool) -> dict[str, Any]:
    """Save into a fault; return what happened and what is left, then check that saving goes on."""
    before = ckpt.all_steps()
    step = before[-1] + (not overwrite)
    with armed(fault):
        texts = raised_by(lambda: ckpt.save(step, state_of(WORLD, 77), overwrite=overwrite).result())
    after = ckpt.all_steps()
    state = state_of(WORLD, 0)
    ckpt.restore(state)
    intact = WORLD.allgather(not differences(state, state_of(WORLD, before[-1])))
    left = WORLD.bcast(ckpt._session.rundir.workspace.leftovers() if WORLD.rank == 0 else None)
    ckpt.save(before[-1] + 1, state_of(WORLD, before[-1] + 1)).result()
    return {"phase": fault.phase, "texts": texts, "kept": before == after, "intact": all(intact), "left": left}


def main() -> None:
    """Run."""
    is_last = WORLD.rank == WORLD.size - 1
    options = {"max_to_keep": 2, "check_replicas": 0, "async_save": sys.argv[2] == "background"}
    with hc.Checkpointer(sys.argv[1], **options) as ckpt:
        ckpt.save(1, state_of(WORLD, 1)).result()
        found = []
        for kind, error in ERRORS.items():
            for phase in EACH + ROOT:
                rank = WORLD.size - 1 if phase in EACH else 0
                for overwrite in (False, True):
                    fault = Fault(phase, "raise", rank, error=error)
                    found.append({"kind": kind, "rank": rank, **failing(ckpt, fault, overwrite=overwrite)})
        unreadable = {"u": Unreadable(is_bad=is_last)}
        found.append({"phase": "read", "texts": raised_by(lambda: ckpt.save(1000, unreadable).result())})
    if WORLD.rank == 0:
        for outcome in found:
            print("outcome", json.dumps(outcome), flush=True)


main()
