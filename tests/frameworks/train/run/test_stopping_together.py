"""A training that a callback ends on one rank is ended on all, and only where that may be is it asked at each batch."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from hpcckpt.collective.communicator import Communicator
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.train.callbacks.stop_together import StopTogether, may_stop_within_epochs


class StopsItself(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = True


class StopsAtTheEnd(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_epoch_end"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_what_ends_on_one_rank_ends_on_all(n_ranks: int, moment: str) -> None:
    def train(comm: Communicator) -> list[bool]:
        together = StopTogether(comm, within_epochs=True)
        model = keras.Sequential()
        together.set_model(model)
        model.stop_training = False
        getattr(together, moment)(0)
        before = model.stop_training
        model.stop_training = comm.rank == n_ranks - 1
        getattr(together, moment)(1)
        return [before, model.stop_training]

    assert run_ranks(n_ranks, train) == [[False, True]] * n_ranks


def test_batches_are_not_asked_for_where_nobody_ends_an_epoch_early() -> None:
    def train(comm: Communicator) -> bool:
        together = StopTogether(comm, within_epochs=False)
        together.set_model(keras.Sequential())
        together.model.stop_training = comm.rank == 0
        together.on_train_batch_end(0)
        return bool(together.model.stop_training)

    assert run_ranks(2, train) == [True, False]


@pytest.mark.parametrize(
    ("callback", "may_stop"),
    [
        (keras.callbacks.TerminateOnNaN(), True),
        (StopsItself(), True),
        (keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None), True),
        (keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None), False),
        (StopsAtTheEnd(), False),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.TensorBoard("x"), False),
    ],
)
def test_it_is_known_which_callbacks_may_end_an_epoch_early(callback: Any, may_stop: bool) -> None:
    assert may_stop_within_epochs([keras.callbacks.EarlyStopping(), callback]) is may_stop
