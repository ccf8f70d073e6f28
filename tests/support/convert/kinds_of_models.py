"""Models of each kind, compiled with the short names that programs use, and what they predict and evaluate to."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

layers = keras.layers
X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
CLASSES = X[:, :4].argmax(1)
SUMS = X.sum(1, keepdims=True)
LABELS: dict[str, Any] = {
    "classification": CLASSES,
    "one-hot": np.eye(4, dtype="float32")[CLASSES],
    "regression": SUMS,
    "multi-output": {"size": SUMS, "kind": CLASSES},
}
COMPILED: dict[str, dict[str, Any]] = {
    "classification": {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
    "one-hot": {"loss": "categorical_crossentropy", "metrics": ["acc"]},
    "regression": {"loss": "mse", "metrics": ["mae"]},
    "multi-output": {
        "loss": {"size": "mse", "kind": "sparse_categorical_crossentropy"},
        "metrics": {"size": ["mae"], "kind": ["accuracy"]},
        "loss_weights": {"size": 0.3, "kind": 1.0},
    },
}


def build(kind: str, *, is_compiled: bool) -> Any:
    """Return an untrained model."""
    keras.utils.set_random_seed(3)
    entry = keras.Input((6,))
    hidden = layers.Dense(8, activation="relu")(entry)
    size, classes = layers.Dense(1, name="size"), layers.Dense(4, activation="softmax", name="kind")
    outputs: Any = size(hidden) if kind == "regression" else classes(hidden)
    if kind == "multi-output":
        outputs = {"size": size(hidden), "kind": outputs}
    model = keras.Model(entry, outputs)
    if is_compiled:
        model.compile("adam", **COMPILED[kind])
    return model


def predicted(model: Any) -> Any:
    """Return what a model, or the part of one that a SavedModel keeps, predicts."""
    found = model.serve(X) if hasattr(model, "serve") else model(X, training=False)
    parts = [found[name] for name in sorted(found)] if isinstance(found, dict) else [found]
    return np.concatenate([np.asarray(part) for part in parts], axis=1)


def evaluated(model: Any, kind: str) -> dict[str, float]:
    """Return loss and metrics."""
    return {name: float(value) for name, value in model.evaluate(X, LABELS[kind], verbose=0, return_dict=True).items()}
