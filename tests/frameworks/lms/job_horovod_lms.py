"""Two ranks of Horovod train with LMS: the same plan, the same weights as without; and with options that differ.

Started under mpirun by `tests/frameworks/lms/test_ranks_horovod.py`; each rank tells what it saw in a file.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_FUSION_THRESHOLD": "0"}
import horovod.tensorflow.keras as hvd
import keras

import hpcckpt as hc
from hpcckpt.errors import PlanMismatchError
from hpcckpt.lms import LMS
from hpcckpt.lms.runtime import native_engine
from tests.support.lms import models

PLACE = Path(sys.argv[1])


def distributed() -> Any:
    """Return a model whose gradients are averaged."""
    model = models.compiled(models.skipping)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss)
    return model


def fit(*callbacks: Any) -> tuple[Any, str]:
    """Train on rows of this rank's own; return the model, and losses and weights to the bit."""
    model = distributed()
    x, y = models.rows(32, seed=hvd.rank())
    done = model.fit(x, y, 8, 2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model, models.digest([*done.history["loss"], *model.get_weights()])


def main() -> None:
    """Train without, with, and with options that differ."""
    warnings.simplefilter("ignore")
    hvd.init()
    comm = hc.horovod.communicator()
    given: dict[str, Any] = {"swapin_ahead": 1, "swapin_groupby": 0, "min_bytes": 1, "comm": comm}
    _, without = fit()
    lms = LMS(2, **given)
    checkpoints = hc.keras.ModelCheckpoint(PLACE / "run" / "{epoch}", save_weights_only=False)
    model, with_lms = fit(lms, checkpoints)
    plan = dict(lms.report().plan)
    try:
        fit(LMS(2 + hvd.rank(), **given))
        refused = ""
    except PlanMismatchError as error:
        refused = str(error)
    budget = LMS(memory_budget="100 MiB", min_bytes=1, comm=comm)
    _, within = fit(budget)
    saved = hc.load(PLACE / "run")
    told = {
        "without": without, "with": with_lms, "digest": plan["digest"], "swaps": plan["n_swap_outs"],
        "collectives": [each.name for each in lms.report().traffic if "orovod" in each.name],
        "refused": refused, "within": within, "verified": budget.report().is_verified,
        "live": native_engine.stats().live_handles if native_engine.wait_until_idle() else -1,
        "names": sorted(saved), "n_weights": len(model.get_weights()),
    }  # fmt: skip
    (PLACE / f"rank-{hvd.rank()}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
