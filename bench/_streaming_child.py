"""One training of `streaming.py`, in a process with a limit of memory; it may kill itself within the epoch."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

ASKED = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (ASKED["limit"], ASKED["limit"]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402 - within the limit

from hpcckpt.train import Environment, export_config  # noqa: E402

_CLOCK: dict[str, float] = {}


def of_process(file: str, name: str) -> int:
    """Return a number that Linux keeps of this process."""
    lines = Path("/proc/self", file).read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@export_config
class Watch(keras.callbacks.Callback):
    """Looks at the clock, and kills the process after a batch."""

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        _CLOCK.update(begin=time.perf_counter(), read=of_process("io", "rchar"))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        _CLOCK.setdefault("first", time.perf_counter())
        _CLOCK["peak_data"] = max(_CLOCK.get("peak_data", 0), of_process("status", "VmData"))
        if batch + 1 == ASKED["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what it knows is of this process."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Take nothing."""


CONFIG = {
    "datasets": {ASKED["reader"]: ASKED["options"]},
    "model": {
        "ktf.models.OneHeadNet": {
            "num_outputs": 4,
            "base_model": {"ktf.models.networks.SmallConvNet": {"filters": [4]}},
        }
    },
    "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
    "train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": 1, "num_valid_steps": 1, "callbacks": [{"Watch": {}}]}},
    "checkpoint": {"every_n_batches": ASKED["every"]},
    "seed": 1,
}

environment = Environment(ASKED["run"])
environment.run([CONFIG])
digest = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in environment.model.weights)).hexdigest()
found = {
    "digest": digest,
    "peak_rss": of_process("status", "VmHWM") * 1024,
    "peak_data": _CLOCK["peak_data"] * 1024,
    "first_batch_s": _CLOCK["first"] - _CLOCK["begin"],
    "read": of_process("io", "rchar") - _CLOCK["read"],
}
print("FOUND " + json.dumps(found), flush=True)
