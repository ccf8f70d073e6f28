"""Where ``fit`` reads its data from, and how reading resumes at the position of a checkpoint.

Keras 2.15 has one object that yields an iterator for each epoch, Keras 3 one that yields the steps of an epoch. Both
are observed from outside: the iterator of the current epoch is remembered, so that its state can be saved, and the
first one of a resumed run is moved to its position before Keras sees it.

``saved``     The iterator's state is in the checkpoint, and how often shuffles have drawn an order.
``replayed``  Arrays in an order that follows from the seed: batches are read again and dropped, which is the same.
``skipped``   Batches are read again and dropped; whether they are the same is unknown.
``own``       The pipeline knows its position itself.

The order of a shuffled ``tf.data`` pipeline in an epoch depends on how many iterators were made of it before.  So where
that is not saved, the epochs before the first one are iterated as Keras does, without reading more than necessary.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from hpcckpt.errors import OptionError, StateError
from hpcckpt.keras.data.iterator_state import (
    NO_STATE,
    is_at_end,
    repeats_what_is_shuffled,
    restart,
    shuffles_what_is_shuffled,
)
from hpcckpt.keras.data.pipeline_state import Pipeline
from hpcckpt.keras.data.skip_progress import Skipping
from hpcckpt.state import random_streams
from hpcckpt.state.tree import Array

Mode = Literal["exact", "skip", "auto"]
Method = Literal["saved", "replayed", "skipped", "own", "none"]
BATCH_SIZE, SAMPLES = "batch size", "samples"
_ARRAYS = {"ArrayDataAdapter", "GenericArrayLikeDataAdapter", "ListsOfScalarsDataAdapter", "TensorLikeDataAdapter"}


def check_mode(mode: object) -> None:
    """Raise `OptionError` if `mode` is none."""
    if mode not in get_args(Mode):
        raise OptionError(f"iterator: {mode!r} – one of {', '.join(get_args(Mode))}")


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where reading starts.

    Attributes
    ----------
    epoch, batch : int
        Epochs done, and batches done in the next one.
    state : numpy.ndarray
        The result of `Pipeline.place`; empty if it was not saved.
    n_seen : int
        Keras 3's count of batches read from an iterator that continues over epochs.
    is_read : bool
        Whether batches are read again; otherwise the pipeline restores its own position.
    order : numpy.ndarray
        The state of Python's random numbers that the order of the epoch was drawn from; empty if it was not.
    """

    epoch: int = 0
    batch: int = 0
    state: Array = field(default_factory=lambda: NO_STATE)
    n_seen: int = 0
    is_read: bool = True
    order: Array = field(default_factory=lambda: NO_STATE)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How a run reads its data.

    Attributes
    ----------
    place : ReadPosition or None
        Where it starts; ``None`` is the beginning.
    initial_epoch : int
        The epoch that the program asked to begin with.
    mode : str
        The user's option; ``own`` if the pipeline saves its own position.
    on_arrival : callable
        Called once, before the first batch, with the iterator.
    skipping : Skipping
        Shows the progress of skipping.
    """

    place: ReadPosition | None = None
    initial_epoch: int = 0
    mode: Mode | Literal["own"] = "auto"
    on_arrival: Callable[[Any], None] = lambda _: None
    skipping: Skipping = field(default_factory=lambda: Skipping(is_shown=False))


class DataSource(ABC):
    """Where a running ``fit`` reads its data from.

    1) (each rank) ``watch(plan)``       in ``on_train_begin``, after all callbacks: where to start reading
    2) (Keras)     reads; ``plan.on_arrival`` is called once, before the first batch, with the iterator
    3) (each rank) ``begin_epoch(…)``    in each ``on_epoch_begin``, after all callbacks
    4) (each rank) ``confirm()``         after the first batch: verifies ``method``
    5) (each rank) ``state(…)``          between two batches or epochs: the state to save
    6) (each rank) ``release()``         in ``on_train_end``: it is used no more

    Attributes
    ----------
    source : object
        Keras' own object.
    validation : object
        The validation data of ``fit``.
    iterator : tf.data.Iterator or None
        That of the current epoch.
    method, reason : str
        How a resume would reach this run's position, and why that is not exact, if it is not.
    lost : str
        Why this run is not at the position of the checkpoint; empty if it is.
    warnings : list of str
        What went wrong while reaching the position.
    order : numpy.ndarray
        The state of Python's random numbers that Keras has drawn the order of this epoch from; empty if it draws none.
    """

    _replaced: str
    """The method of Keras' object that ``watch`` replaces."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.validation: Any = None
        self.iterator: Any = None
        self.method: Method = "none"
        self.reason = self.lost = ""
        self.warnings: list[str] = []
        self.order: Array = NO_STATE
        self._plan = ReadPlan()
        self._pipeline: Pipeline | None = None
        self._is_confirmed = False

    # -- what Keras knows ------------------------------------------------------------------------

    @property
    @abstractmethod
    def adapter(self) -> Any:
        """Keras' own adapter of the data."""

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """Batches of an epoch, if that is known by now."""

    @property
    @abstractmethod
    def next_iterator(self) -> Any:
        """The iterator that the next epoch reads on in; ``None`` if it makes one for itself."""

    @property
    @abstractmethod
    def is_renewed(self) -> bool:
        """Whether each epoch has an iterator that is made for it."""

    @property
    @abstractmethod
    def _dataset(self) -> Any:
        """The ``tf.data`` pipeline that Keras reads; ``None`` if it has none."""

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch, if they are known before the first one; else ``None``."""
        return getattr(self._dataset, "element_spec", None)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The properties of the data that a position depends on, by name, as JSON values."""
        arrays = getattr(self.adapter, "_internal_adapter", self.adapter)  # that of lists of numbers
        size, batch_size = getattr(arrays, "_size", None), getattr(arrays, "_batch_size", None)
        if self.is_array and size and batch_size:
            rest = int(arrays._partial_batch_size or 0)
            n_samples = (size - 1) * batch_size + rest if rest else size * batch_size
            elements = _elements_text(self.element_spec, first_axis=1)
            return {BATCH_SIZE: int(batch_size), SAMPLES: int(n_samples), "elements": elements}
        found = {"elements": _elements_text(self.element_spec)}
        cardinality = getattr(self._dataset, "cardinality", None)
        n_batches = int(cardinality()) if self.is_renewed and cardinality is not None else -1
        return {"batches": n_batches, **found} if n_batches >= 0 else found

    @property
    def is_array(self) -> bool:
        """Whether the data is arrays, which Keras itself shuffles and cuts into batches."""
        return type(self.adapter).__name__ in _ARRAYS

    @property
    def n_seen(self) -> int:
        """Keras 3's count for an iterator that continues over epochs."""
        return int(getattr(self.source, "_steps_seen", 0)) if self.next_iterator is not None else 0

    @abstractmethod
    def first_epoch(self, plan: ReadPlan) -> int:
        """Return the epoch that Keras begins with; earlier ones are iterated here, or by Keras."""

    @abstractmethod
    def watch(self, plan: ReadPlan) -> None:
        """Start reading at the position of the plan. Independent."""

    def release(self) -> None:
        """Drop the data and the iterator, whose shuffle buffers may be large: the training has ended. Independent."""
        if self.source is not None:
            vars(self.source).pop(self._replaced, None)
        self.source = self.validation = self.iterator = self._pipeline = None
        self._plan = ReadPlan()

    @property
    @abstractmethod
    def _draws_order(self) -> bool:
        """Whether Keras draws the order of each epoch from Python's random numbers when it begins to read."""

    def begin_epoch(self, *, is_resumed: bool) -> None:
        """Note what the order of this epoch is drawn from, once all callbacks have begun it. Independent."""
        if self._draws_order and not is_resumed:
            self.order = random_streams.read_python()

    def _set_order(self, place: ReadPosition | None) -> None:
        """Have Keras draw the order in which the first epoch was read before; note what it draws the order from."""
        if place is not None and place.batch and self._draws_order:
            if place.order.size:
                random_streams.set_python(place.order)
            self.order = random_streams.read_python()

    # -- saving ----------------------------------------------------------------------------------

    def state(self, *, is_between_epochs: bool) -> Array:
        """Return the part of the position that must be saved: nothing if epoch and batch determine it. Independent."""
        if self.method != "saved" or self._pipeline is None:
            return NO_STATE
        try:
            return self._pipeline.place(self.next_iterator if is_between_epochs else self.iterator)
        except StateError as error:
            if self._is_confirmed and self._plan.mode == "exact":
                raise
            self._skip(str(error))
            return NO_STATE

    def confirm(self) -> None:
        """Check if the position can be saved; this needs an iterator that was read from. Independent.

        Raises
        ------
        OptionError
            If the position has to be exact, and cannot be.
        """
        self.state(is_between_epochs=False)
        self._is_confirmed = True
        if self.method == "saved" and (doubt := self._doubt()):
            self._skip(doubt)
        if self.method == "skipped" and self._plan.mode == "exact":
            raise OptionError(
                f"iterator='exact' is not possible with this data: {self.reason}; use iterator='auto', or data= with a "
                "pipeline that knows its position"
            )

    def read_to_end(self) -> None:
        """Read an iterator that ends with its epoch to its end, after the last batch. Independent.

        A prefetch does so at some time, and a repetition then makes its shuffle draw once more: before or after the
        next iterator draws, which gives different orders.
        """
        if self.method == "saved" and not self.is_array and self.iterator is not None and self.next_iterator is None:
            next(self.iterator, None)

    def _doubt(self) -> str:
        """Return why the position in this pipeline cannot be restored; empty if it can."""
        if self._pipeline is None or self._pipeline.doubt or self.next_iterator is None:
            return self._pipeline.doubt if self._pipeline is not None else ""
        return self._pipeline.doubt_with(self.validation)

    def _choose(self) -> None:
        """Set how a resume reaches a position in this data, as far as known before the first batch."""
        mode = self._plan.mode
        if mode == "own":
            self.method = "own"
        elif mode == "skip":
            self._skip("iterator='skip' was asked for")
        elif self.is_array and (not getattr(self.adapter, "_shuffle", False) or is_seeded()):
            self.method = "replayed"
        else:
            self.method = "saved"

    def _skip(self, reason: str) -> None:
        self.method, self.reason = "skipped", reason

    # -- getting there ---------------------------------------------------------------------------

    def _arrive(self, iterator: Any) -> None:
        """Move the first iterator to its position, and call ``on_arrival``."""
        place = self._plan.place
        self._choose()
        if self.method == "saved":
            self._pipeline = Pipeline(iterator, is_array=self.is_array, data=self.data)
        if place is not None and not self._is_restored(iterator, place) and place.is_read:
            self._go_to_batch(iterator, place.batch)
        self._plan.on_arrival(iterator)

    def _go_to_batch(self, iterator: Any, batch: int) -> None:
        """Move the iterator of an epoch to a batch: by its number where the data allows that, else by reading."""
        if not batch or self._pipeline is None or not self._pipeline.seek(iterator, batch):
            self._read(iterator, batch)

    def _is_restored(self, iterator: Any, place: ReadPosition) -> bool:
        if not place.state.size or self._pipeline is None:
            return False
        try:
            self._pipeline.go_to(iterator, place.state)
        except StateError as error:
            if self._plan.mode == "exact":
                raise
            self.lost = str(error)
            self.warnings.append(f"{error}; batches are skipped instead")
            return False
        return True

    def _read(self, iterator: Any, count: int) -> None:
        """Read and drop `count` batches."""
        for _ in self._plan.skipping.over(range(count), count):
            try:
                next(iterator)
            except StopIteration:
                self.warnings.append("there was less data to skip than was trained on")
                break

    def _draw(self, iterator: Any) -> None:
        """Make the shuffles draw as often as in a finished epoch, by reading as much of it as that takes."""
        if repeats_what_is_shuffled(iterator):
            for _ in self._plan.skipping.over(iterator, self.steps):
                pass
        elif shuffles_what_is_shuffled(iterator):
            next(iterator, None)


class DataHandlerSource(DataSource):
    """Keras 2.15's source: a ``DataHandler``."""

    _replaced = "enumerate_epochs"

    @property
    def adapter(self) -> Any:
        """Keras' own adapter of the data."""
        return self.source._adapter

    @property
    def is_renewed(self) -> bool:
        """Whether each epoch has an iterator that is made for it."""
        return bool(self.adapter.should_recreate_iterator())

    @property
    def _dataset(self) -> Any:
        """The ``tf.data`` pipeline that Keras reads; ``None`` if it has none."""
        return getattr(self.source, "_dataset", None)

    @property
    def steps(self) -> int | None:
        """Batches of an epoch, if that is known by now."""
        found: int | None = self.source.inferred_steps
        return found

    @property
    def next_iterator(self) -> Any:
        """The iterator that the next epoch reads on in; ``None`` if it makes one for itself."""
        return None if self.is_renewed else self.iterator

    @property
    def _draws_order(self) -> bool:
        """Whether Keras draws the order of each epoch from Python's random numbers when it begins to read."""
        return bool(getattr(self.adapter, "_shuffle_sequence", False))

    def first_epoch(self, plan: ReadPlan) -> int:
        """Return the epoch that Keras is to begin with."""
        place = plan.place or ReadPosition()
        return min(plan.initial_epoch, place.epoch) if place.is_read else place.epoch

    def watch(self, plan: ReadPlan) -> None:
        """Start reading at the position of the plan. Independent."""
        self._plan, place = plan, plan.place
        original = self.source.enumerate_epochs
        # Keras repeats arrays once for each epoch, and a restored position has the number of epochs that it had then
        is_restored_array = place is not None and place.state.size > 0 and self.is_array

        def enumerate_epochs() -> Iterator[tuple[int, Any]]:
            for epoch, iterator in original():
                if place is not None and epoch < place.epoch:
                    self._pass_epoch(iterator, place)
                    continue
                self.iterator = iterator
                if self.method == "none":
                    self._set_order(place)
                    self._arrive(iterator)
                if is_restored_array and is_at_end(iterator):
                    restart(iterator)
                yield epoch, iterator

        self.source.enumerate_epochs = enumerate_epochs

    def _pass_epoch(self, iterator: Any, place: ReadPosition) -> None:
        """Go through an epoch, reading its data only if what comes after depends on that."""
        if not place.is_read or place.state.size:
            return
        if self.is_renewed:
            self._draw(iterator)
        else:
            self._read(iterator, self.steps or 0)


class EpochIteratorSource(DataSource):
    """Keras 3's source: an ``EpochIterator``."""

    _replaced = "_enumerate_iterator"

    @property
    def adapter(self) -> Any:
        """Keras' own adapter of the data."""
        return self.source.data_adapter

    @property
    def is_renewed(self) -> bool:
        """Whether each epoch has an iterator that is made for it."""
        return self.source.steps_per_epoch is None

    @property
    def _dataset(self) -> Any:
        """The ``tf.data`` pipeline that Keras reads; ``None`` if it has none."""
        return getattr(self.source, "_distributed_dataset", None)

    @property
    def steps(self) -> int | None:
        """Batches of an epoch, if that is known by now."""
        found: int | None = self.source.num_batches
        return found

    @property
    def next_iterator(self) -> Any:
        """The iterator that the next epoch reads on in; ``None`` if it makes one for itself."""
        return None if self.is_renewed else self.source._current_iterator

    @property
    def _is_py_dataset(self) -> bool:
        return hasattr(self.adapter, "py_dataset")

    @property
    def _draws_order(self) -> bool:
        """Whether Keras draws the order of each epoch from Python's random numbers when it begins to read."""
        return self._is_py_dataset and self.is_renewed and bool(self.adapter.shuffle)

    def first_epoch(self, plan: ReadPlan) -> int:
        """Return the epoch that Keras is to begin with."""
        return (plan.place or ReadPosition()).epoch

    def watch(self, plan: ReadPlan) -> None:
        """Start reading at the position of the plan. Independent."""
        self._plan, place = plan, plan.place
        original = self.source._enumerate_iterator
        if place is not None and place.is_read:
            for _ in range(plan.initial_epoch, place.epoch):
                self._pass_epoch(original, place)

        def enumerate_iterator() -> Iterator[tuple[int, int, Any]]:
            at = place if self.method == "none" else None
            self._set_order(at)
            for begin, end, iterator in original():
                if at is not None and end < at.batch:
                    continue
                self.iterator = iterator
                if self.method == "none":
                    self._arrive(iterator)
                    if at is not None and at.state.size and self.next_iterator is not None:
                        # Keras counts what was read of an iterator that continues over epochs.
                        self.source._steps_seen = at.n_seen + self.source.steps_per_execution
                yield begin, end, iterator

        self.source._enumerate_iterator = enumerate_iterator

    def _pass_epoch(self, original: Callable[[], Iterator[tuple[int, int, Any]]], place: ReadPosition) -> None:
        """Go through an epoch as Keras would, reading its data only if the next epoch reads on in the same iterator."""
        if self._is_py_dataset and self.is_renewed:  # the order of each epoch is drawn when it is read
            self.adapter.py_dataset.on_epoch_begin()
            self.adapter.py_dataset.on_epoch_end()
            return
        steps = self.steps
        first = True
        for _, _, iterator in itertools.islice(original(), None if steps else 1):
            if first and not place.state.size:
                self._pass(iterator, steps)
            first = False
        if not steps:
            self.adapter.on_epoch_end()

    def _pass(self, iterator: Any, steps: int | None) -> None:
        if self.source.steps_per_epoch is not None:
            self._read(iterator, steps or 0)
        else:
            self._draw(iterator)


def make_data_source(source: Any) -> DataSource | None:
    """Return what watches an object that Keras reads with; ``None`` if it is none that we know."""
    if all(hasattr(source, name) for name in ("enumerate_epochs", "inferred_steps", "_adapter")):
        return DataHandlerSource(source)
    if all(hasattr(source, name) for name in ("_enumerate_iterator", "data_adapter", "steps_per_epoch")):
        return EpochIteratorSource(source)
    return None


def _elements_text(element_spec: Any, first_axis: int = 0) -> str:
    """Return the shapes, from an axis on, and dtypes of a batch as text: ``float32[None, 4], int64[None]``. Pure."""
    import tensorflow as tf

    def text(spec: Any) -> str:
        if not isinstance(spec, tf.TensorSpec):
            return str(spec)
        return f"{spec.dtype.name}{spec.shape.as_list()[first_axis:] if spec.shape.rank is not None else ''}"

    return ", ".join(map(text, tf.nest.flatten(element_spec)))


def is_seeded() -> bool:
    """Return True if the program has set a seed for TensorFlow."""
    from tensorflow.python.eager import context

    return context.global_seed() is not None
