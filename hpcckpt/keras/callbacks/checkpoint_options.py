"""Validation of `ModelCheckpoint` options: accepts, refuses and warns like the installed Keras, with its messages."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from hpcckpt.collective.communicator import launched_rank
from hpcckpt.keras.versions import IS_KERAS_3

_log = logging.getLogger("hpcckpt")


def complain(text: str) -> None:
    """Warn as Keras does: 2.15 by a log, 3 by Python's warnings."""
    if IS_KERAS_3:
        warnings.warn(text, stacklevel=4)
    else:
        _log.warning("%s", text)


def _speaks() -> bool:
    """Return True if this process warns for all that were launched together. Independent."""
    return launched_rank() in {None, 0}


def checked_mode(mode: str) -> str:
    """Return the mode; ``auto`` with a warning if there is none of this name."""
    if mode in {"auto", "min", "max"}:
        return mode
    quoted = f"'{mode}'" if IS_KERAS_3 else mode
    if _speaks():
        complain(f"ModelCheckpoint mode {quoted} is unknown, fallback to auto mode.")
    return "auto"


def check_frequency(value: object) -> None:
    """Refuse what Keras refuses, and numbers of batches that are none."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value != "epoch" and not is_count:
        expected = "'epoch' or integer values" if IS_KERAS_3 else '"epoch" or integer'
        raise ValueError(f"Unrecognized save_freq: {value}. Expected save_freq are {expected}")


def check_options(options: Any, *, is_weights_only: bool) -> None:
    """Refuse what Keras 2.15 refuses."""
    if options is None:
        return
    import tensorflow as tf

    cls, name = (
        (tf.train.CheckpointOptions, "tf.train.CheckpointOptions")
        if is_weights_only
        else (tf.saved_model.SaveOptions, "tf.saved_model.SaveOptions")
    )
    if not isinstance(options, cls):
        raise TypeError(
            f"If save_weights_only is {is_weights_only}, then `options` must be either None or a {name}. Got {options}."
        )


def warn_of_old(period: int | None, *, is_loading: bool | None) -> None:
    """Warn of options that Keras 2.15 still takes, and calls deprecated."""
    if is_loading is not None and _speaks():
        complain(
            "`load_weights_on_restart` argument is deprecated. "
            "Please use `model.load_weights()` for loading weights before the start of `model.fit()`."
        )
    if period is not None and _speaks():
        complain(
            "`period` argument is deprecated. Please use `save_freq` "
            "to specify the frequency in number of batches seen."
        )
