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
`datasets`, `models`, `losses`
    What configurations may be made of, beside Keras' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.custom_loop import CustomTrainLoop
    from hpcckpt.train.environment import Environment
    from hpcckpt.train.exporting import export_config
    from hpcckpt.train.loops import KerasTrainLoop, TrainLoop

_HOME = {
    "CustomTrainLoop": "custom_loop",
    "Environment": "environment",
    "KerasTrainLoop": "loops",
    "TrainLoop": "loops",
    "export_config": "exporting",
}
_ROOMS = {"datasets", "losses", "models"}

__all__ = [
    "CustomTrainLoop",
    "Environment",
    "KerasTrainLoop",
    "TrainLoop",
    "datasets",
    "export_config",
    "losses",
    "models",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME, _ROOMS)
