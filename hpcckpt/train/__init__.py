"""Training from a configuration, on any number of ranks, checkpointed and resumable.

    from hpcckpt.train import Environment

    histories = Environment("runs/a").run([{"datasets": …, "model": …, "loss": …}])

What a configuration says is in ``docs/train.md``.  Importing this package loads no framework; names are loaded on first
use.

`Environment`
    Trains what a configuration says: its cycles, one after another, each from where it was interrupted.
`KerasTrainLoop`, `CustomTrainLoop`, `TrainLoop`
    How a cycle is trained: by ``fit``, or by a step of one's own within it; and what both are.
`export_config`
    Makes a class or function of a program's own visible in configurations, by its bare name.
`datasets`, `batches`, `models`, `losses`
    What configurations may be made of, beside Keras' own.
`ktf`
    The same by ktf's names, for programs: ``ktf.train``, ``ktf.models``, ``ktf.datasets``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.loop.custom_loop import CustomTrainLoop
    from hpcckpt.train.loop.train_loop import KerasTrainLoop, TrainLoop
    from hpcckpt.train.names.export_config import export_config
    from hpcckpt.train.run.environment import Environment

_HOME = {
    "CustomTrainLoop": "loop.custom_loop",
    "Environment": "run.environment",
    "KerasTrainLoop": "loop.train_loop",
    "TrainLoop": "loop.train_loop",
    "export_config": "names.export_config",
}
_MODULES = {"batches", "datasets", "ktf", "losses", "models"}

__all__ = [
    "CustomTrainLoop",
    "Environment",
    "KerasTrainLoop",
    "TrainLoop",
    "batches",
    "datasets",
    "export_config",
    "ktf",
    "losses",
    "models",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME, _MODULES)
