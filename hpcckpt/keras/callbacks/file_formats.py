"""Which file of Keras or TensorFlow a path of `ModelCheckpoint` is, and what Keras refuses about it.

==============  ============================  ===============================================
format          the path ends in              Keras' call
==============  ============================  ===============================================
``keras``       ``.keras``                    ``model.save``
``weights.h5``  ``.weights.h5``               ``model.save_weights``
``h5``          ``.h5``, ``.hdf5``            ``model.save``, or ``save_weights`` (2.15)
``tf``          none of these                 ``model.save_weights(..., save_format="tf")``
``savedmodel``  none of these                 ``model.save(..., save_format="tf")``, ``model.export`` (Keras 3)
==============  ============================  ===============================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcckpt.errors import OptionError
from hpcckpt.keras.versions import IS_KERAS_3

ENDINGS = {"weights.h5": (".weights.h5",), "keras": (".keras",), "h5": (".h5", ".hdf5")}
FORMATS = ("keras", "weights.h5", "h5", "tf", "savedmodel")
_WEIGHTS, _WHOLE = {"weights.h5", "tf"}, {"keras", "savedmodel"}


def format_of_name(filepath: str) -> str | None:
    """Return the format that the end of a path says, or None. Pure."""
    return next((name for name, endings in ENDINGS.items() if filepath.endswith(endings)), None)


def choose_format(filepath: str, wanted: str | None) -> str | None:
    """Return the format of the files, or None for hpcckpt's own checkpoints. Pure.

    Raises
    ------
    OptionError
        If there is no such format, or the end of the path says another one.
    """
    by_name = format_of_name(filepath)
    if wanted is None:
        return by_name
    if wanted not in FORMATS:
        raise OptionError(f"format: {wanted!r} – one of {', '.join(FORMATS)}, or None to go by the end of the path")
    if wanted == by_name or (wanted not in ENDINGS and by_name is None):
        return wanted
    expected = f"a path that ends in {' or '.join(ENDINGS[wanted])}" if wanted in ENDINGS else "another end of the path"
    raise OptionError(f"format={wanted!r} needs {expected}; the path is {filepath}")


def choose_weights_only(wanted: str | None, *, is_weights_only: bool) -> bool:
    """Return whether only weights are saved; a format that holds nothing else decides. Pure.

    Raises
    ------
    OptionError
        If the format that was asked for cannot be of weights only.
    """
    if is_weights_only and wanted in _WHOLE:
        raise OptionError(f"format={wanted!r} holds whole models; save_weights_only=True needs 'weights.h5' or 'tf'")
    return is_weights_only or wanted in _WEIGHTS


def refuse_as_keras(filepath: str, file_format: str, options: Any, *, is_weights_only: bool) -> None:
    """Raise what the Keras that runs raises for a path of such a file. Pure."""
    if IS_KERAS_3 and file_format in ENDINGS and is_weights_only and not filepath.endswith(".weights.h5"):
        raise ValueError(
            "When using `save_weights_only=True` in `ModelCheckpoint`, the filepath provided must end in `.weights.h5` "
            f"(Keras weights format). Received: filepath={filepath}"
        )
    if file_format == "keras" and options is not None and not is_weights_only:
        raise ValueError(
            "The native Keras format does not support the `options` argument. Please remove the `options` argument, "
            "or use the SavedModel format by removing the `.keras` extension from the model filepath."
        )


def refuse_storage_options(filepath: str, given: Mapping[str, Any]) -> None:
    """Raise if options are given that only hpcckpt's own checkpoints have. Pure."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise OptionError(
            f"{filepath} is a file of Keras or TensorFlow, for which there is no {', '.join(names)}: leave "
            f"{'it' if len(names) == 1 else 'them'} out, or choose a path such as training/cp-{{epoch:04d}}.ckpt"
        )
