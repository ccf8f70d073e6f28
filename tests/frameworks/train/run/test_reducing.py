"""Gradients averaged by mpi4py: right for all kinds of them, in few messages, in one order."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.train.callbacks import metric_allreduce
from tests.support.mpi.launch import mpirun
from tests.support.train.launch import ENV, HERE, completed, needs_mpirun

needs_mpi4py = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")


@needs_mpirun
@needs_mpi4py
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_gradients_of_all_kinds_are_averaged(n_ranks: int) -> None:
    ended = completed(mpirun(n_ranks, str(HERE / "reducejob.py"), timeout_s=240, **ENV))
    told = ended.lines("TOLD")
    assert len(told) == n_ranks
    mean = float(np.mean(range(1, n_ranks + 1)))
    for one in told:
        assert one["dense"] == pytest.approx([mean, 2 * mean])
        assert one["double"] == pytest.approx([mean])
        assert one["half"] == pytest.approx([mean], rel=1e-2)
        np.testing.assert_allclose(one["sparse"], [[0.0], [mean], [0.0], [mean]])
        assert one["none"] is None
        assert one["dtypes"] == ["float32", "float64", "bfloat16", "float32"]
        np.testing.assert_allclose(one["in order"], [[mean] * 3] * 40)


@needs_mpi4py
def test_messages_hold_one_dtype_each_and_no_more_than_they_may(monkeypatch: Any) -> None:
    from hpcckpt.train.loop import gradient_allreduce

    monkeypatch.setattr(gradient_allreduce, "MESSAGE_BYTES", 40)
    tensors = [
        tf.zeros(n, dtype)
        for n, dtype in ((4, "float32"), (5, "float32"), (2, "float64"), (3, "float32"), (99, "float32"))
    ]
    tensors.insert(1, None)
    found = list(gradient_allreduce._messages(tensors))
    assert sorted(number for message in found for number in message) == [0, 2, 3, 4, 5]
    assert [0, 2] in found
    assert [5] in found


def test_the_mean_over_ranks_weighs_validation_by_what_each_has_validated_on() -> None:
    every = [(3.0, {"loss": 1.0, "val_loss": 1.0, "mine": 0.0}), (1.0, {"loss": 3.0, "val_loss": 5.0})]
    assert metric_allreduce.mean_metrics(every) == {"loss": 2.0, "val_loss": 2.0}


@pytest.mark.parametrize("kind", ["fit", "own step"])
def test_a_rank_counts_for_as_many_rows_as_it_has_validated_on(kind: str) -> None:
    def read_of(n_rows: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((tf.zeros([n_rows, 2]), tf.zeros([n_rows, 1]))).batch(4)

    model = keras.Sequential([keras.layers.Dense(1)])
    if kind == "own step":
        model.test_step = lambda batch: {"largest": tf.reduce_max(model(batch[0]))}
    model.compile("sgd", "mse")
    rows = metric_allreduce.ValidatedRows(model)
    means = metric_allreduce.MetricMeans(SerialCommunicator(), rows)
    found = model.fit(read_of(8), validation_data=read_of(7), epochs=2, shuffle=False, verbose=0, callbacks=[means])
    assert rows.count == 7
    assert len([name for name in found.history if name.startswith("val_")]) == 1


def test_the_mean_over_ranks_is_a_plain_one_where_somebody_does_not_know() -> None:
    every = [(3.0, {"val_loss": 1.0}), (0.0, {"val_loss": 5.0})]
    assert metric_allreduce.mean_metrics(every) == {"val_loss": 3.0}
