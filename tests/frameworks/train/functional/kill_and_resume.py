#!/usr/bin/env python3
"""Killed by SIGKILL in each of its cycles, a training ends with the same weights to the bit as one that ran through."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hpcckpt

LIMIT_S = 200.0
CONFIG = [
    {
        "datasets": {"ktf.datasets.mnist.from_raw": {"batch_size": 20, "limit": 1000}},
        "model": {"ktf.models.OneHeadNet": {"num_outputs": 10, "dropout": 0.2}},
        "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
        "train_loop": {"ktf.train.KerasTrainLoop": {"num_epochs": 2, "num_valid_steps": 2}},
        "checkpoint": {"every_n_batches": 7},
        "seed": 11,
    },
    {"optimizer": {"tf.keras.optimizers.SGD": {"learning_rate": 0.01, "momentum": 0.9}}},
]


def start(config: Path, run: Path) -> subprocess.Popen[bytes]:
    """Begin, or go on with, a training."""
    command = [sys.executable, "-m", "hpcckpt", "train", "-c", str(config), "--run", str(run), "--resume", "auto"]
    return subprocess.Popen(command, env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ})


def finish(config: Path, run: Path) -> None:
    """Train to the end."""
    assert start(config, run).wait(LIMIT_S) == 0


def kill_in(cycle: int, config: Path, run: Path) -> None:
    """Train until a cycle has a checkpoint within an epoch, then kill."""
    job, limit = start(config, run), time.monotonic() + LIMIT_S
    while not is_amid(run / f"cycle-{cycle}"):
        assert job.poll() is None, f"the training ended with {job.returncode} before it could be killed"
        assert time.monotonic() < limit, f"no checkpoint in cycle {cycle}"
        time.sleep(0.005)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL, "the training was over before it was killed"


def is_amid(cycle: Path) -> bool:
    """Return True if there is a checkpoint that is not the end of an epoch, of 50 batches each."""
    return any(int(path.parent.name.removeprefix("step-")) % 50 for path in cycle.glob("step-*/manifest.json"))


def assert_same(one: Path, other: Path) -> None:
    """Compare the last steps of two runs of checkpoints."""
    some, others = hpcckpt.load(one), hpcckpt.load(other)
    assert some.keys() == others.keys(), some.keys() ^ others.keys()
    names = [name for name in some if name.startswith(("model", "optimizer"))]
    assert names, sorted(some)
    different = [name for name in names if some[name].tobytes() != others[name].tobytes()]
    assert not different, different
    assert all(np.isfinite(some[name]).all() for name in names if some[name].dtype.kind == "f")


with tempfile.TemporaryDirectory() as directory:
    config, straight, killed = (Path(directory) / name for name in ("config.json", "straight", "killed"))
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    finish(config, straight)
    kill_in(1, config, killed)
    kill_in(2, config, killed)
    finish(config, killed)
    for cycle in ("cycle-1", "cycle-2"):
        assert_same(straight / cycle, killed / cycle)
print("*********** Passed ***********")
