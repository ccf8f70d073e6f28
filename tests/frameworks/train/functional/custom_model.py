#!/usr/bin/env python3
"""A model of one's own is visible to a config by its bare name, once it is exported; a taken name is refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import hpcckpt.train
import hpcckpt.train.models
from hpcckpt.errors import HpcckptError

TRAINED: list[tf.keras.Model] = []
CONFIG = {
    "datasets": {"ktf.datasets.mnist.from_raw": {"batch_size": 50, "limit": 500}},
    "model": {"MyCustomModel": {"name": "my_hello_world_model"}},
    "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
    "train_loop": {"ktf.train.KerasTrainLoop": {"callbacks": [{"RememberModel": {}}]}},
    "seed": 1,
}


@hpcckpt.train.export_config
class RememberModel(tf.keras.callbacks.Callback):
    """Keeps the model that is trained."""

    def on_train_end(self, logs: object = None) -> None:
        TRAINED.append(self.model)


def refusal(act: Callable[[], object]) -> str:
    """Return what an error of hpcckpt says."""
    try:
        act()
    except HpcckptError as error:
        return str(error)
    raise AssertionError("it was not refused")


def run(directory: str) -> list:
    """Train by the config."""
    return hpcckpt.train.Environment(Path(directory) / "run").run([CONFIG])


with tempfile.TemporaryDirectory() as directory:
    message = refusal(lambda: run(directory))
    assert "[0].model" in message, message
    assert "MyCustomModel" in message, message

    @hpcckpt.train.export_config
    class MyCustomModel(hpcckpt.train.models.OneHeadNet):
        """Ten outputs, whatever else is asked for."""

        def __init__(self, **kwargs: object) -> None:
            super().__init__(num_outputs=10, **kwargs)

    (history,) = run(directory)
    assert len(history.history["loss"]) == 1
    (model,) = TRAINED
    assert isinstance(model, MyCustomModel)
    assert model.name == "my_hello_world_model", model.name

message = refusal(lambda: hpcckpt.train.export_config(name="MyCustomModel")(dict))
assert "MyCustomModel" in message, message
print("*********** Passed ***********")
