"""Trains configurations one after another, as one rank of a job: ``trainjob.py '[{"run": …, "config": …}, …]'``.

Tells what each ended with: the histories, or the error.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from hpcckpt.train import Environment
from tests.support.train import pieces  # noqa: F401 - exports what the configurations name

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
for order in json.loads(sys.argv[1]):
    told = {"rank": rank, "run": order["run"]}
    environment = Environment(order["run"], order.get("resume", "auto"), **order.get("environment", {}))
    try:
        told["histories"] = [each.history for each in environment.run(order["config"])]
    except Exception as error:
        if "is_expected" not in order:
            raise
        told["error"] = f"{type(error).__name__}: {error}"
    print("TOLD " + json.dumps(told), flush=True)
