"""Whose values count of weights that training changes but does not average over ranks: statistics of BatchNorm.

``rank0``    Root's, for all ranks.
``mean``     The mean over the ranks, for all of them; the ranks that are training keep their own.
``per-rank`` Each rank's own, as long as the number of ranks stays; else rank 0's, for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import OptionError
from hpcckpt.keras.model.layers import RNG_STATE, Weight, named_weights
from hpcckpt.restoring.reader import StepReader
from hpcckpt.state.tf_variables import variable_leaf
from hpcckpt.state.tree import Array, TensorLeaf, declare, join

Policy = Literal["rank0", "mean", "per-rank"]


@dataclass(slots=True)
class BatchNormStatistics:
    """What is done with the statistics of one model.

    Attributes
    ----------
    policy : str
        See above.
    means : dict of str to numpy.ndarray
        Means over the ranks, by path; on root only.
    """

    policy: Policy = "rank0"
    means: dict[str, Array] = field(default_factory=dict)


_OF_MODEL: weakref.WeakKeyDictionary[Any, BatchNormStatistics] = weakref.WeakKeyDictionary()


def check_policy(policy: object) -> None:
    """Raise `OptionError` if `policy` is none."""
    if policy not in get_args(Policy):
        raise OptionError(f"batch_norm: {policy!r} – one of {', '.join(get_args(Policy))}")


def choose(model: Any, policy: Policy) -> None:
    """Say what is done with a model's statistics whenever it is saved or restored. Independent."""
    _OF_MODEL[model] = BatchNormStatistics(policy)


def average(model: Any, comm: Communicator) -> None:
    """Take the means over the ranks for the save to come, if these are asked for. Collective."""
    statistics = _OF_MODEL.get(model)
    if statistics is None or statistics.policy != "mean" or comm.size == 1:
        return
    own = {w.path: np.asarray(w.variable) for w in named_weights(model) if w.kind == "root" and _is_real(w.variable)}
    every = comm.gather(own) or []
    for path, array in own.items() if every else ():
        mean = np.mean([theirs[path] for theirs in every], axis=0, dtype=np.float64)
        statistics.means[path] = mean.astype(array.dtype)


def forget_means(model: Any) -> None:
    """Forget the means once they are saved: what is saved next has others. Independent."""
    if model in _OF_MODEL:
        _OF_MODEL[model].means = {}


def statistics_in(model: Any) -> list[str]:
    """Return the paths of a model's statistics."""
    return [weight.path for weight in named_weights(model) if weight.kind == "root"]


def numbers_of_own(model: Any) -> set[int]:
    """Return at which places of ``model.get_weights()`` each rank's own statistics count. Independent."""
    chosen = _OF_MODEL.get(model)
    if chosen is None or chosen.policy != "per-rank":
        return set()
    own = {id(weight.variable) for weight in named_weights(model) if weight.kind == "root"}
    return {number for number, variable in enumerate(model.weights) if id(variable) in own}


def weight_leaves(model: Any, name: str, weights: Sequence[Weight]) -> Iterator[TensorLeaf]:
    """Yield the leaves of a model's weights; those of its statistics as was chosen."""
    statistics = _OF_MODEL.get(model)
    for weight in weights:
        path = join(name, weight.path)
        if weight.kind == "root" and statistics is not None and statistics.policy != "rank0":
            yield _leaf(weight, path, statistics)
        else:
            yield variable_leaf(weight.variable, path, weight.kind)


def _leaf(weight: Weight, path: str, statistics: BatchNormStatistics) -> TensorLeaf:
    if statistics.policy == "per-rank":
        return variable_leaf(weight.variable, path, "per-rank")
    own = variable_leaf(weight.variable, path, "root")
    mean = statistics.means.get(weight.path)
    if mean is None:
        return own
    return TensorLeaf(declare(mean, path, "root"), lambda: mean, own.assign)


def _is_real(variable: Any) -> bool:
    return bool(np.issubdtype(np.asarray(variable).dtype, np.floating))


def is_random(weight: Weight) -> bool:
    """Return True if a weight is the state of a random stream."""
    return weight.path.rpartition("/")[2].startswith(RNG_STATE)


def fill_from_rank_0(model: Any, name: str, reader: StepReader) -> None:
    """Give this rank rank 0's statistics, where a checkpoint has each rank's, of another number. Independent."""
    for weight in named_weights(model):
        path = join(name, weight.path)
        if not is_random(weight) and path in reader.specs and reader.specs[path].kind == "per-rank":
            variable_leaf(weight.variable, path).assign(reader.load_rank(path, 0))
