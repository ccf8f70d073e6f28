"""Keras shell: callbacks that save and restore, and the adapter that names a model's state.

Works with Keras 2.15 (TensorFlow 2.15) and with Keras 3 on TensorFlow.  Importing this package loads
neither; names are loaded on first use.

A state that holds a Keras model, ``{"model": model}``, or the bare model, gives these names:

``model/<layer>/…/<weight>``
    All weights. Layer names that Keras made up (``conv2d_7``) are numbered again within the parent, in
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

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.keras.callbacks.backup_and_restore import BackupAndRestore
    from hpcckpt.keras.callbacks.model_checkpoint import ModelCheckpoint
    from hpcckpt.keras.callbacks.reproducibility import enable_exact_resume
    from hpcckpt.keras.files.describe import describe
    from hpcckpt.keras.files.load_model import load_model, load_weights, signature
    from hpcckpt.keras.program.declarations import stateless

_HOME = {
    "BackupAndRestore": "callbacks.backup_and_restore",
    "ModelCheckpoint": "callbacks.model_checkpoint",
    "describe": "files.describe",
    "enable_exact_resume": "callbacks.reproducibility",
    "load_model": "files.load_model",
    "load_weights": "files.load_model",
    "signature": "files.load_model",
    "stateless": "program.declarations",
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
