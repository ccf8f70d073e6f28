#!/usr/bin/env python3
"""What is frozen, nested or not, stays as it is to the bit while the rest learns; a wrong path prints what there is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hpcckpt
import hpcckpt.train
from hpcckpt.errors import HpcckptError


def config(*frozen: str) -> dict:
    """Return a cycle that trains all but what is frozen."""
    return {
        "datasets": {"ktf.datasets.mnist.from_raw": {"batch_size": 50, "limit": 500}},
        "model": {"ktf.models.OneHeadNet": {"num_outputs": 10}},
        "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
        "train_loop": {"ktf.train.KerasTrainLoop": {"freeze_submodels": list(frozen)}},
        "seed": 1,
    }


def changed(one: Path, other: Path) -> set[str]:
    """Return the names of the weights that are not the same to the bit."""
    some, others = hpcckpt.load(one), hpcckpt.load(other)
    assert some.keys() == others.keys(), some.keys() ^ others.keys()
    return {name for name in some if some[name].tobytes() != others[name].tobytes()}


def refusal(run: Path, cycle: dict) -> str:
    """Return what is wrong with a cycle, by its error."""
    try:
        hpcckpt.train.Environment(run).run([cycle])
    except HpcckptError as error:
        return str(error)
    raise AssertionError("a submodel was frozen that is not there")


with tempfile.TemporaryDirectory() as directory:
    run = Path(directory) / "run"
    environment = hpcckpt.train.Environment(run)
    whole, base, layer = environment.check([config(), config("base_model"), config("base_model@block1")])
    assert whole.trained == whole.parameters
    assert base.trained < layer.trained < whole.trained, (base.trained, layer.trained, whole.trained)

    environment.run([config(), config("base_model"), config("base_model@block1")])
    weights = [run / f"cycle-{number}" / "final" for number in (1, 2, 3)]
    names = set(hpcckpt.load(weights[0]))
    in_base = {name for name in names if "/base_model/" in name}
    in_block = {name for name in names if "/base_model/block1/" in name}
    assert in_block < in_base < names, sorted(names)
    assert changed(weights[0], weights[1]) == names - in_base, "what was frozen has changed, or the rest has not"
    assert changed(weights[1], weights[2]) == names - in_block, "what was frozen has changed, or the rest has not"

    message = refusal(Path(directory) / "wrong", config("base_model@block9"))
    for word in ("[0].train_loop", "block9", "did you mean", "block1"):
        assert word in message, f"{word} is missing: {message}"
print("*********** Passed ***********")
