"""All that a ``fit`` needs to resume, besides the model: taken for a checkpoint, and restored in the right order.

In a checkpoint, beside ``model/…`` and ``optimizer/…``:

``training/random``      Streams of random numbers, of each rank.
``training/metrics``     What metrics have accumulated in the current epoch, per rank.
``training/callbacks``   State of the other callbacks, of each rank; of rank 0 if the number of ranks changes.
``training/iterator``    Position in the data, of each rank.
``training/captured/…``  Variables that the compiled training step uses and that are nowhere else, of each rank.
``callbacks/NAME/…``     Best weights that a callback holds.

When it is restored, with the numbers of the rules in ``docs/keras.md``:

1. After every ``on_train_begin``: weights, optimizer, callbacks, which reset themselves there.  Then, when the training
   step is compiled, the other variables that it uses.
2. After the first iterator was made: position in the data.  Then random streams: making an iterator may draw from them.
3. After every ``on_epoch_begin``, if the run begins within an epoch: all that callbacks may change there, and random
   streams, again, because that epoch had begun before the save; and metrics, which Keras has just reset.
   (Keras 3 makes its first iterator after it, and metrics may not exist before.)
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from hpcckpt.core.results import Restored
from hpcckpt.errors import OptionError
from hpcckpt.keras.callbacks import callback_state, metric_state
from hpcckpt.keras.callbacks.exactness import Exactness
from hpcckpt.keras.callbacks.kept_state import KeptState
from hpcckpt.keras.data.data_source import DataSource
from hpcckpt.keras.data.iterator_state import NO_STATE
from hpcckpt.keras.data.position import DataPosition
from hpcckpt.keras.model import batch_norm
from hpcckpt.keras.model.layers import named_weights
from hpcckpt.restoring.reader import open_step
from hpcckpt.state import random_streams
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tf_hold import hold
from hpcckpt.state.tf_variables import is_variable, tensorflow_variable
from hpcckpt.state.tree import Array, PerRank, PerRankArrays, flatten

RESERVED = frozenset({"callbacks", "data", "model", "optimizer", "training"})
_PARTS = ("random", "metrics", "callbacks", "iterator")
_CAPTURED = "training/captured/"
_ORDER = "order of the epoch"
"""Among the random streams: where Python's was when Keras drew the order of a shuffled `Sequence` or `PyDataset`."""


@dataclass(slots=True)
class Training:
    """The state of one ``fit``.

    Attributes
    ----------
    model : keras.Model
        The model.
    callbacks : dict
        The other callbacks, by name.
    data_source : DataSource or None
        What the data is read with.
    data : DataPosition or None
        A pipeline that knows its position.
    more : mapping
        What the user wants saved besides.
    """

    model: Any
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    data_source: DataSource | None = None
    data: DataPosition | None = None
    more: MutableMapping[str, Any] = field(default_factory=dict)
    exactness: Exactness = field(init=False)
    position_nbytes: int = 0
    """Bytes of the position in the data, in the state that was taken last."""
    _parts: dict[str, PerRank] = field(default_factory=dict)
    _captured: PerRankArrays = field(default_factory=PerRankArrays)
    _identity: tuple[int, ...] = ()
    _weights: Mapping[str, Any] = field(default_factory=dict)
    _target: Mapping[str, Any] = field(default_factory=dict)
    _kept: KeptState | None = None

    def __post_init__(self) -> None:
        self.exactness = Exactness(self.model, self.callbacks, [*self.more.values()], self._saved_variables)

    # -- taking ----------------------------------------------------------------------------------

    def state(self, *, is_between_epochs: bool) -> dict[str, Any]:
        """Return the state as it is now. Independent."""
        streams = random_streams.read_streams()
        if self.data_source is not None and self.data_source.order.size and not is_between_epochs:
            streams[_ORDER] = self.data_source.order
        taken = {
            "random": pack(streams),
            "metrics": metric_state.take(self.model),
            "callbacks": callback_state.take(self.callbacks),
            "iterator": self.data_source.state(is_between_epochs=is_between_epochs) if self.data_source else NO_STATE,
        }
        self.position_nbytes = taken["iterator"].nbytes
        own = self.exactness.variables
        held = hold(list(own.values())) if own else []
        captured = PerRankArrays(dict(zip(own, held, strict=True)))
        return self._with({name: PerRank(part) for name, part in taken.items()}, captured)

    def restore_target(self) -> dict[str, Any]:
        """Return a state to restore into. Independent."""
        self._parts = {name: PerRank(NO_STATE) for name in _PARTS}
        self._captured = PerRankArrays()
        target = self._with(self._parts, self._captured)
        self._weights = target.get("callbacks", {})
        self._target = target
        return target

    def _saved_variables(self) -> list[Any]:
        """Return the variables of TensorFlow that are saved anyway, whatever the training step uses. Independent."""
        own = [tensorflow_variable(weight.variable, weight.path) for weight in named_weights(self.model)]
        leaves = flatten({"model": self.model, **self.more}).tensors.values()
        return own + [leaf.source for leaf in leaves if is_variable(leaf.source)]

    def _with(self, parts: Mapping[str, PerRank], captured: PerRankArrays) -> dict[str, Any]:
        weights = callback_state.best_weights(self.callbacks, self.model)
        own = {**parts, "captured": captured}
        state = {"model": self.model, "training": own, "callbacks": weights, **self.more}
        if not weights:
            del state["callbacks"]
        return state | ({"data": self.data} if self.data is not None else {})

    # -- giving back -----------------------------------------------------------------------------

    def restored(self, restored: Restored, n_ranks: int, rank: int) -> list[str]:
        """Use the restored state, after every ``on_train_begin``; return what was not restored. Independent."""
        for name in [name for name, value in self.more.items() if self._target[name] is not value]:
            self.more[name] = self._target[name]
        if restored.n_ranks != n_ranks:
            self._from_other_ranks(restored, (restored.step, restored.n_ranks, n_ranks, rank))
        return self.set_callbacks()

    def _from_other_ranks(self, restored: Restored, identity: tuple[int, ...]) -> None:
        """Make of what other ranks had what this one can use: rank 0's callbacks and statistics, new streams."""
        self._identity = identity
        reader = open_step(restored.path)
        batch_norm.fill_from_rank_0(self.model, "model", reader)
        if any(map(is_of_training, reader.specs)):  # else it holds a model only
            self._parts["callbacks"].value = reader.load_rank("training/callbacks", 0)
            callback_state.fill_from_rank_0(self._weights, "callbacks", reader)
            names = [name for name in reader.specs if name.startswith(_CAPTURED)]
            self._captured.arrays |= {name[len(_CAPTURED) :]: reader.load_rank(name, 0) for name in names}
        random_streams.derive_streams(*identity)
        for weight in named_weights(self.model):
            if batch_norm.is_random(weight):
                random_streams.derive_variable(weight.variable, weight.path, *identity)

    @property
    def place_state(self) -> Array:
        """The iterator's state that was restored; empty if there is none."""
        state: Array = self._parts["iterator"].value
        return state

    @property
    def order(self) -> Array:
        """What the order of the epoch was drawn from, as `DataSource.order` has it; empty if it was not."""
        return self._streams().get(_ORDER, NO_STATE)

    def _streams(self) -> dict[str, Array]:
        packed = self._parts["random"].value
        return unpack(packed)[0] if packed.size else {}

    def set_captured(self) -> list[str]:
        """Set the other variables that the training step uses; return descriptions of what was not restored."""
        arrays, own = self._captured.arrays, self.exactness.variables
        gone, new = self.exactness.restore(arrays, self._identity), sorted(own.keys() - arrays.keys())
        texts = (
            [f"variables of the checkpoint that the training step does not use now: {', '.join(gone)}"] if gone else []
        )
        return texts + (
            [f"variables of the training step that are not in the checkpoint: {', '.join(new)}"] if new else []
        )

    def set_callbacks(self) -> list[str]:
        """Restore the other callbacks; return descriptions of what was not restored. Independent."""
        packed = self._parts["callbacks"].value
        texts = callback_state.give_back(self.callbacks, packed, self._weights) if packed.size else []
        is_of_other_rank = bool(self._identity) and self._identity[-1] > 0  # rank 0 may have more callbacks than others
        return [] if is_of_other_rank else texts

    def set_random(self) -> list[str]:
        """Restore the random streams; return descriptions of what was not restored. Independent."""
        streams = self._streams()
        streams.pop(_ORDER, None)
        unknown = random_streams.write_streams(streams)
        return [f"random streams that are not here: {', '.join(unknown)}"] if unknown else []

    def keep(self) -> None:
        """Keep what was restored, for `set_within_epoch`. Independent."""
        self._kept = KeptState(self.model, self.more)

    def keep_no_more(self) -> None:
        """Drop what is kept, if anything is. Independent."""
        self._kept = None

    def set_within_epoch(self) -> None:
        """Restore what callbacks have reset or changed at the start of an epoch. Independent."""
        assert self._kept is not None
        self._kept.give_back()
        self.keep_no_more()
        self.set_callbacks()
        self.set_captured()

    def set_metrics(self) -> list[str]:
        """Restore the accumulated values of metrics; return descriptions of those not restored. Independent."""
        packed = self._parts["metrics"].value
        return metric_state.give_back(self.model, packed) if packed.size else []


def is_of_training(name: str) -> bool:
    """Return True if a tensor of a checkpoint belongs to the backup of a ``fit``, not to its model. Pure."""
    return name.startswith("training/")


class FailedState:
    """Placeholder for a state that could not be taken; saving it raises the error.

    Parameters
    ----------
    error : Exception
        The reason.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def state_dict(self) -> dict[str, Any]:
        """Raise the error. Independent."""
        raise self._error

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: nothing is restored into it. Independent."""


def check_more(more: Mapping[str, Any]) -> None:
    """Raise if names of a user's state are taken.

    Raises
    ------
    OptionError
        Naming them.
    """
    taken = sorted(set(more) & RESERVED)
    if taken:
        raise OptionError(f"state: the names {', '.join(taken)} are taken; choose others")
