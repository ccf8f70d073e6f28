"""A training that ``verify-resume`` is tried on: RUN [WORD...], where words say how it misbehaves.

``waits``    Killed it must be: the first run of an interrupted training waits before its end.
``forgets``  Does not restore its random numbers.
``fresh``    Does not restore at all.
``requeue``  Ends with 75 in the middle, to be started again.
``deletes``  Leaves no checkpoint.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

import hpcckpt as hc

RUN = Path(os.environ["HPCCKPT_RUN"]) if sys.argv[1] == "-" else Path(sys.argv[1])
WORDS = sys.argv[2:]
LAST = 20


def main() -> None:
    """Train."""
    rng = np.random.default_rng(1)
    state = {"model": {"w": np.zeros(5)}}
    losses: dict[int, float] = {}
    is_to_be_killed = "waits" in WORDS and RUN.name != "straight" and not list(RUN.glob("step-*"))
    with hc.Checkpointer(RUN, max_to_keep=None, on_newer="aside") as ckpt:
        first = 0
        if ckpt.latest_step() is not None and "fresh" not in WORDS:
            found = ckpt.restore(state)
            first = found.step
            losses = {int(step): loss for step, loss in found.objects["losses"].items()}
            if "forgets" not in WORDS:
                rng.bit_generator.state = found.objects["rng"]
        for step in range(first + 1, LAST + 1):
            state["model"]["w"] = state["model"]["w"] * 0.9 + rng.normal(size=5)
            losses[step] = float(np.square(state["model"]["w"]).mean())
            if step == LAST and is_to_be_killed:
                time.sleep(300)
            if step % 2 == 0:
                about = {"rng": rng.bit_generator.state, "losses": {str(at): loss for at, loss in losses.items()}}
                told = {"metrics": {"loss": losses[step]}, "objects": about, "overwrite": "fresh" in WORDS}
                ckpt.save(step, state, **told).result()
                if "waits" in WORDS and RUN.name != "straight":
                    time.sleep(0.1)
            if step == 10 and first == 0 and "requeue" in WORDS:
                time.sleep(0 if RUN.name == "straight" else 2)  # the kill is to come before the end
                ckpt.close()
                sys.exit(75)
    lines = [f"{step},{loss!r}" for step, loss in losses.items()]
    (RUN / "log.csv").write_text("\n".join(["step,loss", *lines]), encoding="utf-8")
    np.savez(RUN / "weights.npz", **state["model"])
    if "deletes" in WORDS:
        time.sleep(1)  # the watcher is to see them
        for path in RUN.glob("step-*"):
            shutil.rmtree(path)


main()
