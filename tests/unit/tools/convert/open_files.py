"""Open converted files in a fresh process, as their users do: ``open_files.py DIRECTORY``.

``DIRECTORY/files.json`` names the files. What each one predicts goes to ``results.npz``, what it evaluates to, to
``results.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hpcckpt as hc
from tests.support.convert import kinds_of_models

IS_KERAS_3 = keras.__version__.startswith("3")


def opened(path: Path, file_format: str, kind: str, *, is_compiled: bool) -> Any:
    """Return the model in a file; where the file holds weights only, the program builds it."""
    if file_format in {"keras", "h5"}:
        return keras.models.load_model(path)
    if file_format == "saved-model":
        return tf.saved_model.load(str(path)) if IS_KERAS_3 else keras.models.load_model(path)
    model = kinds_of_models.build(kind, is_compiled=is_compiled)
    if is_compiled:
        model.optimizer.build(model.trainable_variables)
    if file_format == "weights.h5":
        model.load_weights(path)
    elif file_format == "tf":
        tf.train.Checkpoint(model=model).restore(str(path)).expect_partial()
    else:
        run = path.with_name(f"{path.name}.run")
        hc.import_checkpoint(path, run)
        hc.keras.load_weights(model, run)
    return model


def main(directory: Path) -> None:
    """Open all files."""
    evaluated, predicted = {}, {}
    for name, (file_format, kind, is_compiled) in json.loads((directory / "files.json").read_text()).items():
        try:
            model = opened(directory / name, file_format, kind, is_compiled=is_compiled)
            predicted[name] = kinds_of_models.predicted(model)
            if is_compiled and hasattr(model, "evaluate"):
                evaluated[name] = kinds_of_models.evaluated(model, kind)
        except Exception as error:  # noqa: BLE001 - it becomes the failure of one test
            evaluated[name] = {f"{type(error).__name__}: {error}": 0.0}
    np.savez(directory / "results.npz", **predicted)
    (directory / "results.json").write_text(json.dumps(evaluated))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
