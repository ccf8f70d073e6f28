"""TMCI's Keras callback."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from keras.callbacks import Callback

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.connect import as_communicator
from hpcckpt.tmci.configs import Config, check
from hpcckpt.tmci.frequency import Frequency
from hpcckpt.tmci.functions import find_plugin, save_weights

__all__ = ["CheckpointCallback"]


class CheckpointCallback(Callback):  # type: ignore[misc]  # Keras has no types
    """Save the model while it trains. Independent with a plugin, Collective with a backend in Python.

    Parameters
    ----------
    backend, config, include_optimizer, everything
        As for `save_weights`.
    frequency : dict
        When to save; keys can be combined:

        ``epoch``
            After every N epochs: with 2, after the second, the fourth, … (TMCI saved after the first, the
            third, …, so it never saved the last epoch if their number was even.)
        ``batch``
            After every N batches of an epoch; the count restarts in each epoch.
        ``step``
            After every N batches, counted over all epochs of a ``fit``.
        ``minutes``
            After the first batch that ends N minutes or more after the last save, or after the beginning of the
            training. With a backend in Python rank 0's clock decides.

        If an epoch is saved, the other keys do not save again after its last batch.

    Raises
    ------
    TypeError
        If an argument is of a wrong type.
    OptionError
        If `frequency` has an invalid key or value.
    """

    def __init__(
        self,
        backend: str,
        config: Config = "",
        frequency: Mapping[str, float] = MappingProxyType({"epoch": 1}),
        include_optimizer: bool = True,
        *,
        everything: bool | None = None,
    ) -> None:
        super().__init__()
        check(backend, config, include_optimizer)
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self.backend = backend
        self.config = config
        self.frequency = Frequency.parse(frequency)
        self.include_optimizer = include_optimizer
        self.everything = everything
        self._comm: Communicator | None = None
        self._epoch = self._batch = self._step = 0
        self._saved_at = 0.0
        self._op: Any = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start counting. Collective if ranks must agree on the time."""
        del logs
        self._epoch = self._batch = self._step = 0
        self._saved_at = time.monotonic()
        self._op = None
        if self.frequency.minutes is not None and find_plugin(self.backend) is None:
            self._comm = as_communicator(None)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Restart the count of batches. Independent."""
        del logs
        self._epoch, self._batch = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if `batch`, `step` or `minutes` is due."""
        del logs
        n_new = batch + 1 - self._batch  # several, with steps_per_execution
        of_epoch, in_all = (range(n + 1, n + n_new + 1) for n in (self._batch, self._step))
        self._batch, self._step = of_epoch.stop - 1, in_all.stop - 1
        is_due = self.frequency.is_due_after_batches(of_epoch, in_all) | self._is_time()
        is_saved_anyway = self._batch == self.params.get("steps") and self._is_epoch_due()
        if is_due and not is_saved_anyway:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if `epoch` is due."""
        del logs
        self._epoch = epoch
        if self._is_epoch_due():
            self._save()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Release the communicator. Collective if ranks must agree on the time."""
        del logs
        if self._comm is not None:
            self._comm.free()
            self._comm = None

    def _is_epoch_due(self) -> bool:
        return self.frequency.is_due_after_epoch(self._epoch + 1)

    def _is_time(self) -> bool:
        """Return True if `minutes` is due; by rank 0's clock where all ranks save together."""
        is_time = self.frequency.is_due_after_minutes((time.monotonic() - self._saved_at) / 60)
        return is_time if self._comm is None else self._comm.bcast(is_time)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self._op is None:
            self._op = save_weights(
                self.model, self.backend, self.config, self.include_optimizer, everything=self.everything
            )
        if self._op is not None:  # only if Keras runs its model in a Session; made once: the graph would grow
            _run(self._op)


def _run(op: Any) -> None:
    import tensorflow as tf

    tf.compat.v1.keras.backend.get_session().run(op)
