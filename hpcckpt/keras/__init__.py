"""Keras shell: callbacks that save and restore, and the adapter that names a model's state.

Works with Keras 2.15 (TensorFlow 2.15) and with Keras 3 on TensorFlow.  Importing this package loads
neither; names are loaded on first use.

A state that holds a Keras model, ``{"model": model}``, or the bare model, gives these names:

``model/<layer>/…/<weight>``
    All weights. Layer names that Keras made up (``conv2d_7``) are counted anew within the parent, in
    layer order, so that they are the same in every process; names that the user chose stay.
``optimizer/<variable>``, ``optimizer/<slot>/<layer>/…/<weight>``
    All variables of the compiled optimizer, which is built if need be; the learning rate too, which
    Keras 2.15 leaves out of ``optimizer.variables``, and the loss scale of a `LossScaleOptimizer`.

Weights that training does not average over ranks (moving statistics of BatchNorm) count on root;
seeds and generators of layers belong to each rank.  Metrics are not part of the state: Keras resets
them with each epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.keras.callbacks import BackupAndRestore
    from hpcckpt.keras.declarations import stateless
    from hpcckpt.keras.describing import describe
    from hpcckpt.keras.levels import enable_exact_resume
    from hpcckpt.keras.model_checkpoint import ModelCheckpoint
    from hpcckpt.keras.model_loading import load_model, load_weights, signature

_HOME = {
    "BackupAndRestore": "callbacks",
    "ModelCheckpoint": "model_checkpoint",
    "describe": "describing",
    "enable_exact_resume": "levels",
    "load_model": "model_loading",
    "load_weights": "model_loading",
    "signature": "model_loading",
    "stateless": "declarations",
}

__all__ = [
    "BackupAndRestore",
    "ModelCheckpoint",
    "describe",
    "enable_exact_resume",
    "load_model",
    "load_weights",
    "signature",
    "stateless",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
