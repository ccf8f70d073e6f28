"""The random streams of a rank: those that programs draw from without naming them.

Streams of layers are weights (:mod:`hpcckpt.keras.model.layers`); those that a program made itself, NumPy generators
for instance, it passes itself.  What kernels of TensorFlow count for themselves cannot be read at all; see
:mod:`hpcckpt.keras.callbacks.reproducibility`.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hpcckpt.state.tree import Array

_WORDS = 625
"""Of a Mersenne Twister in Python: 624 of state, and the position."""


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Leave the stream of Python's `random` as it is, whatever happens meanwhile: rich draws of it to be imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def read_streams() -> dict[str, Array]:
    """Return the states of all streams that exist, by name. Independent."""
    states = {name: _of_python(rng) for name, rng in _python_streams().items()}
    numpys = _of_numpy()
    if numpys is not None:
        states["numpy"] = numpys
    return states | {name: np.asarray(variable) for name, variable in _variables().items()}


def read_python() -> Array:
    """Return the state of the numbers of Python's `random`. Independent."""
    return _of_python(random._inst)


def set_python(state: Array) -> None:
    """Set the numbers of Python's `random` to what `read_python` returned. Independent."""
    _setter_of_python(random._inst)(state)


def write_streams(states: Mapping[str, Array]) -> list[str]:
    """Set streams to these states; return the names of those that do not exist here. Independent."""
    if "tensorflow.generator" in states:
        import tensorflow as tf

        tf.random.get_global_generator()  # makes it, if the program was to ask for it only later
    if "keras.generator" in states:
        _make_keras_generator()
    setters: dict[str, Callable[[Array], None]] = {"numpy": _set_numpy}
    setters |= {name: _setter_of_python(rng) for name, rng in _python_streams().items()}
    setters |= {name: variable.assign for name, variable in _variables().items()}
    for name in states.keys() & setters.keys():
        setters[name](states[name])
    return sorted(states.keys() - setters.keys())


def derive_streams(*identity: object) -> None:
    """Set all streams to new ones that depend on `identity` alone: for ranks that had none before. Independent."""
    for name, rng in _python_streams().items():
        rng.seed(words_from(name, *identity, count=1)[0])
    _GLOBAL.seed([int(word) for word in words_from("numpy", *identity, count=4)])
    for name, variable in _variables().items():
        derive_variable(variable, name, *identity)


def derive_variable(variable: Any, *identity: object) -> None:
    """Set the variable that holds a generator's state to one that depends on nothing but `identity`. Independent."""
    now = np.asarray(variable)
    words = words_from(*identity, count=now.size)
    variable.assign(np.array(words, np.uint32).reshape(now.shape).astype(now.dtype))


def words_from(*identity: object, count: int) -> list[int]:
    """Return numbers of 31 bits that depend on nothing but `identity`. Pure."""
    digests = (hashlib.sha256(repr((*identity, number)).encode()).digest() for number in range(count))
    return [int.from_bytes(digest[:4], "little") >> 1 for digest in digests]


# -- Python's own, and those like it -------------------------------------------------------------


def _python_streams() -> dict[str, random.Random]:
    streams = {"python": random._inst, "tensorflow.operations": _of_context()}
    seeds = getattr(_module("keras.src.backend"), "_SEED_GENERATOR", None)  # Keras 2.15, for set_random_seed
    streams["keras.seeds"] = getattr(seeds, "generator", None)
    return {name: rng for name, rng in streams.items() if isinstance(rng, random.Random)}


def _of_context() -> Any:
    """Return what TensorFlow seeds operations from that run eagerly."""
    from tensorflow.python.eager import context

    return getattr(context.context(), "_rng", None)


def _of_python(rng: random.Random) -> Array:
    version, words, gauss = rng.getstate()
    bits = np.float64(0.0 if gauss is None else gauss).view(np.uint64)
    return np.array([version, *words, gauss is not None, bits], np.uint64)


def _setter_of_python(rng: random.Random) -> Callable[[Array], None]:
    def set_state(state: Array) -> None:
        values = state.tolist()
        gauss = float(state[-1:].view(np.float64)[0]) if values[-2] else None
        rng.setstate((values[0], tuple(values[1 : 1 + _WORDS]), gauss))

    return set_state


# -- NumPy's global one --------------------------------------------------------------------------

_GLOBAL = np.random.mtrand._rand


def _of_numpy() -> Array | None:
    state: Any = _GLOBAL.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    bits = np.float64(state["gauss"]).view(np.uint64)
    return np.array([*state["state"]["key"], state["state"]["pos"], state["has_gauss"], bits], np.uint64)


def _set_numpy(state: Array) -> None:
    gauss = float(state[-1:].view(np.float64)[0])
    _GLOBAL.set_state(("MT19937", state[:-3].astype(np.uint32), int(state[-3]), int(state[-2]), gauss))


# -- variables -----------------------------------------------------------------------------------


def variables() -> list[Any]:
    """Return the variables that hold states of streams."""
    return list(_variables().values())


def _variables() -> dict[str, Any]:
    generators = {"tensorflow.generator": _of_tensorflow(), "keras.generator": _of_keras_3()}
    return {name: generator.state for name, generator in generators.items() if generator is not None}


def _of_tensorflow() -> Any:
    """Return TensorFlow's global generator if there is one: to ask for it would make one."""
    return getattr(_module("tensorflow.python.ops.stateful_random_ops"), "global_generator", None)


def _of_keras_3() -> Any:
    state = _module("keras.src.backend.common.global_state")
    return state.get_global_attribute("global_seed_generator") if state is not None else None


def _make_keras_generator() -> None:
    """Make Keras 3's global generator, if the program was to draw from it only later."""
    make = getattr(_module("keras.src.random.seed_generator"), "global_seed_generator", None)
    if make is not None:
        with undrawn():  # its first seed, which is overwritten
            make()


def _module(name: str) -> Any:
    return sys.modules.get(name)
