"""One training within a memory budget in a separate process, for `lms_budgets.py`; writes what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from _lms_models import build

from hpcckpt.errors import MemoryBudgetError
from hpcckpt.lms import LMS
from hpcckpt.lms.planner import verify_step


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Train as the task says."""
    import tensorflow as tf

    model, data = build(task["model"], task["batch"])
    n_steps: list[int] = []
    counting = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: n_steps.append(batch))  # noqa: ARG005
    lms = LMS(memory_budget=task["budget"], directory=task["directory"])
    try:
        batches = tf.data.Dataset.from_tensors(data).repeat(task["steps"])
        model.fit(batches, callbacks=[lms, counting], verbose=0)
    except MemoryBudgetError as error:
        return {"refused": str(error), "n_steps": len(n_steps)}
    report = lms.report()
    peak_of_all = verify_step.peak_since() - (report.level or 0)
    return {
        "n_steps": len(n_steps), "first": report.peak, "all": max(peak_of_all, report.peak or 0),
        "n_attempts": report.n_attempts, "n_swapped": len(report.traffic),
        "simulated": report.memory.peaks["simulated_with"], "without": report.memory.peaks["simulated_without"],
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
