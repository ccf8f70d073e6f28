#!/usr/bin/env python3
"""A submodel that one training has saved goes into a model with another head, in another training, and only it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hpcckpt
import hpcckpt.train

LOSS = {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}}
Weights = dict[str, bytes]


def train(run: Path, num_outputs: int, classes: list[int], **submodels: object) -> Weights:
    """Train on some digits with as many outputs, and return the last weights."""
    hpcckpt.train.Environment(run).run(
        [
            {
                "datasets": {"ktf.datasets.mnist.from_raw": {"batch_size": 50, "limit": 500, "classes": classes}},
                "model": {"ktf.models.OneHeadNet": {"num_outputs": num_outputs}},
                "loss": LOSS,
                "train_loop": {"ktf.train.KerasTrainLoop": submodels},
                "seed": num_outputs,
            }
        ]
    )
    arrays = hpcckpt.load(run / "cycle-1" / "final")
    assert arrays["model/head/bias"].shape == (num_outputs,)
    return {name: array.tobytes() for name, array in arrays.items()}


def base(weights: Weights) -> Weights:
    """Return the weights below the head."""
    found = {name: value for name, value in weights.items() if name.startswith("model/base_model/")}
    assert found, sorted(weights)
    return found


with tempfile.TemporaryDirectory() as directory:
    where = Path(directory)
    listed = [{"name": "base_model", "path": str(where / "base")}]
    ten = train(where / "ten", 10, list(range(10)), save_submodels=listed)
    two = train(where / "two", 2, [3, 8], load_submodels=listed, freeze_submodels=["base_model"])
    other = train(where / "other", 2, [3, 8], freeze_submodels=["base_model"])

assert base(two) == base(ten), "the base is not the one that was saved"
assert base(other) != base(ten), "the base would have been the same without"
assert two["model/head/kernel"] != other["model/head/kernel"], "the head has not learned from it"
print("*********** Passed ***********")
