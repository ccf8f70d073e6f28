"""The state of the other callbacks of a ``fit``, so that a resumed run continues as if not interrupted.

Taken are: whatever has ``state_dict()`` and ``load_state_dict()``; of Keras' own callbacks the attributes that they
change while training; the log of `CSVLogger`; and the best weights of `EarlyStopping`, which are tensors of the
checkpoint.  A callback is known by its class, and by its place among those of its class.

Callbacks that only use epoch, batch and the learning rate (`LearningRateScheduler`, `TerminateOnNaN`) have no state
of their own.  `History` starts empty, as it does with Keras' own callback.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import StateError
from hpcckpt.keras.model.batch_norm import numbers_of_own
from hpcckpt.keras.model.naming import Namer
from hpcckpt.restoring.reader import StepReader
from hpcckpt.state.packing import pack, pack_state_dict, unpack, unpack_state_dict
from hpcckpt.state.tree import Array, PerRank, RootOnly

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch"),
    "ModelCheckpoint": ("best", "epochs_since_last_save", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
}
"""What Keras' own callbacks change while training, by class; of 2.15 and of 3."""
WITHOUT_STATE = frozenset({
    "BackupAndRestore", "BestModelCheckpointCallback", "BroadcastGlobalVariablesCallback", "CSVLogger", "History",
    "LambdaCallback", "LearningRateScheduleCallback", "LearningRateScheduler", "LearningRateWarmupCallback",
    "MetricAverageCallback", "ProgbarLogger", "RemoteMonitor", "TerminateOnNaN",
})  # fmt: skip
"""Those of Keras and Horovod that keep nothing else that training depends on, but maybe functions of the program."""
MAX_LOG_BYTES = 1 << 20
"""A log of `CSVLogger` up to this size is stored in each checkpoint; of a longer one the length."""
_PACKED = "$packed"
"""Key of the name of the array that holds a callback's ``state_dict``."""
_MARK = "$array"
"""Key of the name of an array, in what older versions stored of a ``state_dict``."""


def named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return callbacks by names that are the same in every process that has the same list of them."""
    namer = Namer()
    return {namer.take(type(callback).__name__): callback for callback in callbacks}


def has_state(callback: Any) -> bool:
    """Return True if a callback's state can be saved."""
    return _is_stateful(callback) or _is_a(callback, "CSVLogger") or bool(_attributes(callback))


def is_known(callback: Any) -> bool:
    """Return True if all state of a callback is saved, by itself or by this library."""
    own = type(callback)
    root = own.__module__.partition(".")[0]
    is_listed = own.__name__ in ATTRIBUTES or own.__name__ in WITHOUT_STATE
    return root == "hpcckpt" or _is_stateful(callback) or (is_listed and root in {"keras", "tensorflow", "horovod"})


def may_call_program(callback: Any) -> bool:
    """Return True for a callback of Keras or Horovod, which may hold functions of the program."""
    return is_known(callback) and not _is_stateful(callback) and not type(callback).__module__.startswith("hpcckpt")


# -- taking --------------------------------------------------------------------------------------


def take(callbacks: Mapping[str, Any]) -> Array:
    """Return the state of all callbacks that have one, packed. Independent.

    Raises
    ------
    StateError
        Naming a callback whose ``state_dict`` holds what cannot be saved.
    """
    arrays: dict[str, Array] = {}
    values = {name: _value_of(callback, name, arrays) for name, callback in callbacks.items() if has_state(callback)}
    return pack(arrays, values)


def best_weights(callbacks: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return the best weights that callbacks hold, or as long as there are none room for them, for the state."""
    return {name: _best_weights(callback, model) for name, callback in callbacks.items() if _keeps_weights(callback)}


def _best_weights(callback: Any, model: Any) -> dict[str, RootOnly | PerRank]:
    held, own = callback.best_weights, numbers_of_own(model)
    arrays = enumerate(model.get_weights() if held is None else held)
    vocabularies = {number for number, each in enumerate(model.weights) if hasattr(each, "get_tensors")}  # Keras 2.15
    kept = [(number, array) for number, array in arrays if number not in vocabularies]  # those are the model's own
    return {str(number): (PerRank if number in own else RootOnly)(array) for number, array in kept}


def fill_from_rank_0(weights: Mapping[str, Any], name: str, reader: StepReader) -> None:
    """Make of best weights that were restored on another number of ranks rank 0's, all of them. Independent."""
    for callback, held in weights.items():
        for number, one in held.items():
            path = f"{name}/{callback}/{number}"
            if isinstance(one, PerRank) and path in reader.specs and reader.specs[path].kind == "per-rank":
                one.value = reader.load_rank(path, 0)


def _value_of(callback: Any, name: str, arrays: dict[str, Array]) -> Any:
    if _is_stateful(callback):
        return _packed(callback, name, arrays)
    value = {key: _plain(getattr(callback, key)) for key in _attributes(callback)}
    if _keeps_weights(callback):
        value["has_best_weights"] = callback.best_weights is not None
    if _is_a(callback, "CSVLogger"):
        value = {"keys": callback.keys, **_log_of(callback)}
    return value


def _packed(callback: Any, name: str, arrays: dict[str, Array]) -> dict[str, str]:
    """Put what a callback's ``state_dict`` returns into `arrays`, and return where it is."""
    try:
        arrays[name] = pack_state_dict(_copied(callback.state_dict()))
    except StateError as error:
        raise StateError(f"callback {name}: {error}") from error
    return {_PACKED: name}


def _copied(value: Any) -> Any:
    """Return a state with copies of its arrays; tensors of frameworks become arrays."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_copied(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    is_array = hasattr(value, "__array__") and not isinstance(value, np.generic)
    return np.array(value) if is_array else value


def _plain(value: Any) -> Any:
    """Return a number of NumPy or TensorFlow as Python's."""
    return value if value is None or isinstance(value, bool | int | float | str) else np.asarray(value).item()


def _log_of(callback: Any) -> dict[str, Any]:
    path = Path(callback.filename)
    nbytes = path.stat().st_size if path.is_file() else 0
    text = path.read_bytes().decode() if 0 < nbytes <= MAX_LOG_BYTES else None
    return {"nbytes": nbytes, "text": text}


# -- giving back ---------------------------------------------------------------------------------


def give_back(callbacks: Mapping[str, Any], packed: Array, weights: Mapping[str, Any]) -> list[str]:
    """Restore what `take` and `best_weights` took; return descriptions of what was not restored. Independent."""
    arrays, values = unpack(packed)
    with_state = {name: callback for name, callback in callbacks.items() if has_state(callback)}
    for name in with_state.keys() & values.keys():
        _set(with_state[name], values[name], arrays, weights.get(name))
    new, gone = sorted(with_state.keys() - values.keys()), sorted(values.keys() - with_state.keys())
    texts = [f"callbacks that are not in the checkpoint start in their initial state: {', '.join(new)}"] if new else []
    return texts + ([f"callbacks that are not there now: {', '.join(gone)}"] if gone else [])


def _set(callback: Any, value: Mapping[str, Any], arrays: Mapping[str, Array], weights: Any) -> None:
    if _is_stateful(callback):
        if value.keys() == {_PACKED}:
            unpack_state_dict(arrays[value[_PACKED]], _copied(callback.state_dict()), callback.load_state_dict)
        else:  # of an older version
            callback.load_state_dict(_joined(value, arrays))
        return
    for key in _attributes(callback):
        if key in value:
            setattr(callback, key, value[key])
    if _keeps_weights(callback):
        callback.best_weights = _held(callback, weights) if value["has_best_weights"] else None
    if _is_a(callback, "CSVLogger"):
        _set_log(callback, value)


def _held(callback: Any, weights: Mapping[str, Any]) -> list[Any]:
    """Return best weights that were restored, in their places; a vocabulary among them is the model's own."""
    own = callback.model.get_weights() if len(weights) < len(callback.model.weights) else [None] * len(weights)
    return [weights[str(number)].value if str(number) in weights else array for number, array in enumerate(own)]


def _joined(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_MARK}:
            return arrays[value[_MARK]].copy()
        return {key: _joined(item, arrays) for key, item in value.items()}
    return [_joined(item, arrays) for item in value] if isinstance(value, list) else value


def _set_log(callback: Any, value: Mapping[str, Any]) -> None:
    """Put the log back as it was when the checkpoint was saved; by now the callback may have emptied it."""
    path = Path(callback.filename)
    callback.csv_file.close()
    if value["text"] is not None:
        path.write_bytes(value["text"].encode())
    elif path.is_file():
        os.truncate(path, min(value["nbytes"], path.stat().st_size))
    callback.csv_file = path.open("a", newline="", encoding="utf-8")
    callback.append_header = value["nbytes"] == 0
    callback.keys = value["keys"]


# -- which callback is which ---------------------------------------------------------------------


def _is_stateful(callback: Any) -> bool:
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def _keras_classes(callback: Any) -> Iterator[str]:
    classes = type(callback).__mro__
    return (cls.__name__ for cls in classes if cls.__module__.partition(".")[0] in {"keras", "tensorflow"})


def _is_a(callback: Any, name: str) -> bool:
    return name in _keras_classes(callback)


def _attributes(callback: Any) -> Sequence[str]:
    found = next((ATTRIBUTES[name] for name in _keras_classes(callback) if name in ATTRIBUTES), ())
    return [key for key in found if hasattr(callback, key)]


def _keeps_weights(callback: Any) -> bool:
    return _is_a(callback, "EarlyStopping") and bool(callback.restore_best_weights)
