"""What of Keras a configuration may name: parts of models and of trainings, and nothing that runs, loads or fetches.

The list says what is allowed, namespace by namespace: classes below a base class, or single names.  What is not in it
is refused, so a new version of Keras opens no door.  Some of what a list by base class would let through carries code
or acts on its own, and is refused by name, wherever it or a class made of it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOMES = ("keras", "tf_keras")
"""Where what Keras has is defined: ``tf.keras`` is the second with ``TF_USE_LEGACY_KERAS=1``."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What is open in a namespace of ``tf.keras``.

    Attributes
    ----------
    bases : tuple of str
        Classes below one of these are, by their paths in ``tf.keras``.
    names : tuple of str
        These are.
    builds_models : bool
        Functions with a capital are: they build a model.
    hands_over : bool
        Functions may be handed over, not called: ``{"@": …}``.
    """

    bases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    builds_models: bool = False
    hands_over: bool = False


_LAYERS = Namespace(("layers.Layer",), ("Input", "InputSpec"))
_OPTIMIZERS = Namespace(("optimizers.Optimizer", "optimizers.legacy.Optimizer"), ("LossScaleOptimizer",))
APPLICATIONS = Namespace(builds_models=True)
NAMESPACES: Mapping[str, Namespace] = {
    "": Namespace(names=("Sequential", "Input")),
    "activations": Namespace(hands_over=True),
    "applications": APPLICATIONS,
    "callbacks": Namespace(
        names=(
            "CSVLogger", "EarlyStopping", "ModelCheckpoint", "ProgbarLogger", "ReduceLROnPlateau", "SwapEMAWeights",
            "TensorBoard", "TerminateOnNaN",
        )
    ),
    "constraints": Namespace(("constraints.Constraint",)),
    "initializers": Namespace(("initializers.Initializer",)),
    "layers": _LAYERS,
    "layers.experimental": _LAYERS,
    "layers.experimental.preprocessing": _LAYERS,
    "losses": Namespace(("losses.Loss",), hands_over=True),
    "metrics": Namespace(("metrics.Metric",), hands_over=True),
    "mixed_precision": Namespace(names=("LossScaleOptimizer", "Policy", "DTypePolicy")),
    "models": Namespace(names=("Sequential",)),
    "optimizers": _OPTIMIZERS,
    "optimizers.experimental": _OPTIMIZERS,
    "optimizers.legacy": _OPTIMIZERS,
    "optimizers.schedules": Namespace(("optimizers.schedules.LearningRateSchedule",)),
    "random": Namespace(names=("SeedGenerator",)),
    "regularizers": Namespace(("regularizers.Regularizer",), ("l1_l2",)),
}  # fmt: skip

OWN = "write a function or class of your own around it, exported by hpcckpt.train.export_config"
CLOSED: Mapping[str, tuple[str, str]] = {
    "backend": ("it reaches into Keras itself", OWN),
    "datasets": ("it downloads", "use hpcckpt.train.datasets, or a function of your own, exported"),
    "models": ("it loads and saves models, which may carry code", "name the model's class"),
    "saving": ("it loads and saves models, which may carry code", "name the model's class"),
    "utils": ("it downloads, writes files, and builds whatever it is told", OWN),
}
_CODE = "it carries code, and a configuration runs none"
CARRIERS: Mapping[str, tuple[str, str]] = {
    "BackupAndRestore": ("it removes a directory when training ends", "use the key 'checkpoint'"),
    "FlaxLayer": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
    "JaxLayer": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
    "Lambda": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
    "LambdaCallback": (_CODE, "write a callback of your own, exported by hpcckpt.train.export_config"),
    "LearningRateScheduler": (_CODE, "use one of tf.keras.optimizers.schedules as learning_rate"),
    "OrbaxCheckpoint": ("it removes older files", "use the key 'checkpoint'"),
    "RemoteMonitor": ("it sends what it is told to where it is told", "use tf.keras.callbacks.CSVLogger"),
    "TFSMLayer": ("it loads a saved model, which may carry code", "name the model's class"),
    "TorchModuleWrapper": (_CODE, "write a layer of your own, exported by hpcckpt.train.export_config"),
}
