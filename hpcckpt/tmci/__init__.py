"""TMCI's interface: models saved and loaded by plugins that see the tensors' own memory.

A program that was written for TMCI changes one line, ``import hpcckpt.tmci as tmci``::

    tmci.plugins.load("libdummy.so")
    model.fit(x, y, callbacks=[tmci.CheckpointCallback("dummy")])
    tmci.save_weights(model, backend="dummy", config="")
    tmci.load_weights(model, backend="dummy", config="")

`backend` is the name of a plugin (C or C++; one made for TMCI compiles unchanged), or of any backend in Python, such as
``rankfile`` and ``hdf5``, whose `config` names a run directory: ``{"path": "runs/a"}``.

Importing this loads neither TensorFlow nor Keras; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach
from hpcckpt.tmci import checkpoint, plugins
from hpcckpt.tmci.functions import load_variables, load_weights, save_variables, save_weights
from hpcckpt.tmci.library import get_library, get_library_dir

if TYPE_CHECKING:
    from hpcckpt.tmci.callback import CheckpointCallback

_HOME = {"CheckpointCallback": "callback"}

__all__ = [
    "CheckpointCallback",
    "checkpoint",
    "get_library",
    "get_library_dir",
    "load_variables",
    "load_weights",
    "plugins",
    "save_variables",
    "save_weights",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
