"""Ranks that stop together: a training that a callback ends on one of them is ended on all, before the next batch.

A rank that stopped alone would leave the others waiting, in the next mean of gradients, for ever.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from keras.callbacks import Callback

from hpcckpt.collective.communicator import Communicator
from hpcckpt.train.callbacks.tensorboard import keras_name

__all__ = ["StopTogether", "may_stop_within_epochs"]

_WITHIN_EPOCHS = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_STOPPERS = frozenset({"TerminateOnNaN"})
"""Callbacks of Keras' that end a training within an epoch; the others do at its end, if at all."""
_KNOWN = frozenset({"hpcckpt", "keras", "tensorflow", "tf_keras"})


class StopTogether(Callback):  # type: ignore[misc]  # Keras has no types
    """Ends the training on all ranks if it ends on one. Must be called after the callbacks that end it. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    within_epochs : bool
        Whether to check after each batch too, which costs a message; it is always checked at the end of an epoch.
    """

    def __init__(self, comm: Communicator, *, within_epochs: bool) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self._comm, self._within_epochs = comm, within_epochs

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Check, if a callback may have ended it. Collective."""
        del batch, logs
        if self._within_epochs:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ask. Collective."""
        del epoch, logs
        self._agree()

    def _agree(self) -> None:
        if self._comm.allreduce(bool(self.model.stop_training), operator.or_):
            self.model.stop_training = True


def may_stop_within_epochs(callbacks: Sequence[Any]) -> bool:
    """Return True if one of the configuration's callbacks may end the training before an epoch is over. Pure."""
    return any(keras_name(each) in _STOPPERS or _has_own_hooks(each) for each in callbacks)


def _has_own_hooks(callback: Any) -> bool:
    """Return True if a callback's hooks within an epoch are neither Keras' nor hpcckpt's."""
    hooks = [getattr(callback, name, None) for name in _WITHIN_EPOCHS]
    modules = {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks if hook is not None}
    return not modules <= _KNOWN
