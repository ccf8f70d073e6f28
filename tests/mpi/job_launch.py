"""What a rank takes itself for before and after MPI starts, and whether it saves: ``job_launch.py DIR [NAME=VALUE …]``.

The variables are set as another launcher, around this one or before it, would have set them.
"""

from __future__ import annotations

import json
import os
import sys

directory, *variables = sys.argv[1:]
for variable in variables:
    name, _, value = variable.partition("=")
    os.environ[name] = value
    if not value:
        del os.environ[name]

import hpcckpt as hc  # noqa: E402 - as if a launcher had set the variables
from hpcckpt.collective.communicator import launched_rank, launched_size  # noqa: E402

before = [launched_rank(), launched_size()]
with hc.Checkpointer(directory) as ckpt:
    ckpt.save(1, {"x": hc.PerRank(ckpt.comm.rank)})
    said = {"before": before, "after": [launched_rank(), launched_size()], "mpi": [ckpt.comm.rank, ckpt.comm.size]}
print("rank", json.dumps(said), flush=True)
