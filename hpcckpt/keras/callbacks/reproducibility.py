"""How equal a resumed run is to one that was never interrupted, and what keeps it from being equal to the bit.

``exact``    The same losses and weights, to the bit, on the same number of ranks.
``state``    All state comes back; but something that is drawn or added up in another order may make a difference.
``weights``  Weights and optimizer only: another number of ranks, or a checkpoint that holds no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from hpcckpt.core.options import Level
from hpcckpt.errors import OptionError
from hpcckpt.keras.data.data_source import DataSource, is_seeded
from hpcckpt.keras.model.batch_norm import Policy, statistics_in

_FUSION = "HOROVOD_FUSION_THRESHOLD"
_NO_SEED = "no seed was set"
_NOT_DETERMINISTIC = "deterministic operations are off"
_OF_RANKS = "makes the statistics of all ranks equal"


def enable_exact_resume(seed: int | None = None) -> None:
    """Make training bit-reproducible, also after a resume. Independent.

    Call it before the model is built. It seeds Python, NumPy and TensorFlow; makes TensorFlow use only deterministic
    operations, which may be slower; makes Keras 2.15 draw from generators whose state can be saved (Keras 3 always
    does); and makes Horovod, if it is not initialized yet, sum gradients one by one, in a fixed order.

    Parameters
    ----------
    seed : int, optional
        For all streams of random numbers, on every rank. Ranks that should draw different numbers, for example for
        dropout, pass different seeds and broadcast the initial weights. Required unless the program has set a seed.

    Raises
    ------
    OptionError
        If there is no seed.
    """
    import keras
    import tensorflow as tf

    if seed is not None:
        keras.utils.set_random_seed(seed)
    elif not is_seeded():
        raise OptionError("a repeatable run needs a seed: enable_exact_resume(seed=1), or keras.utils.set_random_seed")
    tf.config.experimental.enable_op_determinism()
    generators: Any = getattr(keras.backend, "experimental", None)  # Keras 2.15
    if generators is not None:
        generators.enable_tf_random_generator()
    os.environ.setdefault(_FUSION, "0")


def level_of(reasons: Iterable[str]) -> Level:
    """Return the level of a run for which these reasons against ``exact`` were found. Pure."""
    return "state" if list(reasons) else "exact"


def remedy(reasons: Iterable[str]) -> str:
    """Return what removes reasons against ``exact``, as far as they do not say so themselves. Pure."""
    every = list(reasons)
    found = []
    if any(reason.startswith((_NO_SEED, _NOT_DETERMINISTIC, _FUSION)) for reason in every):
        found.append("call hpcckpt.enable_exact_resume(seed=1) before the model is built")
    if any(reason.endswith(_OF_RANKS) for reason in every):
        found.append("pass batch_norm='per-rank'")
    if every and not found:
        found.append("see 'What exact needs' in docs/keras.md")
    return ", and ".join(found)


def reasons_against_exact(model: Any, data_source: DataSource | None, policy: Policy, n_ranks: int) -> list[str]:
    """Return the reasons, in the program's settings and data, why a resume is not exact. Independent.

    What its model and callbacks do is found by :mod:`hpcckpt.keras.callbacks.exactness`.
    """
    return [*_of_program(), *_of_data(data_source), *_of_ranks(model, policy, n_ranks)]


def _of_program() -> list[str]:
    from tensorflow.python.framework import config

    found = [] if is_seeded() else [_NO_SEED]
    return found + ([] if config.is_op_determinism_enabled() else [_NOT_DETERMINISTIC])


def _of_data(data_source: DataSource | None) -> list[str]:
    if data_source is None:
        return ["nothing is known of the data"]
    found = [f"data is skipped, not restored: {data_source.reason}"] if data_source.method == "skipped" else []
    return found + ([f"this run has lost its place in the data: {data_source.lost}"] if data_source.lost else [])


def _of_ranks(model: Any, policy: Policy, n_ranks: int) -> list[str]:
    if n_ranks == 1:
        return []
    found = []
    if policy != "per-rank" and statistics_in(model):
        found.append(f"batch_norm={policy!r} {_OF_RANKS}")
    if "horovod" in sys.modules and os.environ.get(_FUSION) != "0":
        found.append(f"{_FUSION} is not 0: Horovod adds up in an order that varies")
    return found
